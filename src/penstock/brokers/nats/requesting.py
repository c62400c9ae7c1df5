"""The requests of one subscription, one at the server after the other, and what comes for them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from penstock.brokers.nats.aio.quiet import Quiet
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.headers import status_of
from penstock.brokers.nats.protocol.records import Raw
from penstock.brokers.nats.protocol.requests import encode_request, publish_operation


class Requests:
    """Listens from the first request on until it is told to end that.

    `on_delivery` is called with what comes, also after that; `on_end` when the server has nothing
    more for a request.
    """

    def __init__(
        self,
        wire: Wire,
        inbox_prefix: str,
        *,
        on_delivery: Callable[[Raw], object],
        on_end: Callable[[], object],
    ) -> None:
        self._wire = wire
        self._prefix = f"{inbox_prefix}.{secrets.token_hex(8)}"
        self._on_delivery = on_delivery
        self._on_end = on_end
        self._unsubscribe: Callable[[], None] | None = None
        self._sent = 0
        self._left = 0
        self._status = (0, "")
        self._ended: asyncio.Future[None] | None = None
        self.quiet = Quiet()

    @property
    def listening(self) -> bool:
        return self._unsubscribe is not None

    def listen(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._wire.subscribe(f"{self._prefix}.*", self._receive)

    def end_listening(self) -> None:
        """Without our interest the server drops a request instead of answering it."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    async def send(
        self,
        subject: str,
        request: dict[str, object],
        messages: int,
        wait: float,
        *,
        on_written: Callable[[], object],
    ) -> tuple[int, str]:
        """Ask `subject` and wait until as many messages have come, or for the status that ends the
        request, which is returned. `on_written` is called if it has not ended by then."""
        self._sent += 1
        self._left, self._status = messages, (0, "")
        self._ended = ended = asyncio.get_running_loop().create_future()
        self.quiet.disturbed()
        operation = publish_operation(
            subject.encode(), self._reply_to, b"", encode_request(request)
        )
        await self._wire.write([operation])
        if not ended.done():
            on_written()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait + self._wire.timeout):
                await ended
        return self._status

    def lost(self) -> None:
        """The connection is: nobody answers."""
        self._on_end()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(self._wire.loss())
            self._ended.exception()  # Seen: whoever waits for it is told, if anybody does.

    async def gather(self, while_wanted: Callable[[], bool]) -> None:
        """Until nothing follows what the server is sending."""
        await self.quiet.wait(lambda: self._is_out and self._wire.connected and while_wanted())

    @property
    def _is_out(self) -> bool:
        """A request is at the server, whether or not somebody still waits for its end."""
        ended = self._ended
        return ended is not None and (ended.cancelled() or not ended.done())

    @property
    def _reply_to(self) -> bytes:
        return f"{self._prefix}.{self._sent}".encode()

    def _receive(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        if block and not payload and not reply:
            status = status_of(block)
            if status[0]:
                if subject == self._reply_to:
                    self._end(status)
                return
        if not reply.startswith(b"$JS.ACK."):
            return
        self.quiet.came(reply)
        self._on_delivery((subject, reply, block, payload))
        self._left -= 1
        if not self._left:
            self._end((0, ""))

    def _end(self, status: tuple[int, str]) -> None:
        self._on_end()
        if self._ended is not None and not self._ended.done():
            self._status = status
            self._ended.set_result(None)
