"""Push consumers: the server sends, and what came waits here until it is pulled.

How much may wait is the server's to bound: it sends no more than `max_ack_pending` messages that
are not settled and, to a consumer with flow control that has one listener, no more than some 32 MB
beyond what we said that we have. It sends to whoever listens, so we listen only while somebody
receives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.aio.quiet import Quiet
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.errors import denied
from penstock.brokers.nats.protocol.headers import IDLE, stalled_of, status_of
from penstock.brokers.nats.protocol.records import Raw
from penstock.brokers.nats.protocol.requests import publish_operation
from penstock.errors import PenstockError
from penstock.message import Settlement, Verb
from penstock.rules.deadlines import Deadlines

# After so long without a pull, and with nothing lent, nobody receives: others may have it.
_LEAVE_AFTER = 1.0
# While more bytes than this wait to be pulled, a server with flow control is not told to go on.
_ENOUGH = 8 * 2**20


class PushInbox:
    """What the server pushed for one subscription."""

    def __init__(self, wire: Wire, pulling: Pulling, consumer: Consumer) -> None:
        self._wire = wire
        self._pulling = pulling
        self._consumer = consumer
        self._waiting: deque[Raw] = deque()
        self._ack_ids: set[bytes] = set()
        self._size = 0
        # Whom to tell that we have got so far.
        self._owed = b""
        self._failure: PenstockError | None = None
        self._lent: Deadlines[str] = Deadlines()
        self._pulls = 0
        self._news = asyncio.Event()
        self._ended = False
        self._is_leaving = False
        self._quiet = Quiet()
        self._leaving: asyncio.TimerHandle | None = None
        self._renewing: asyncio.TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def pull(self, max_messages: int, max_bytes: int, wait: float) -> list[Raw]:
        """As `Pulling.pull`, from what is here; nothing at once when it was closed."""
        self._pulls += 1
        self._is_leaving = False
        self._go_on()
        try:
            if not self._ended:
                await self._wire.until_connected(min(wait, self._wire.timeout))
                self._listen()
            if not self._waiting:
                await self._change(wait)
            self._wire.check_open()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return self._take(max_messages, max_bytes)
        finally:
            self._pulls -= 1
            if not self._pulls:
                self._leave_soon()

    def lend(self, ack_ids: Sequence[str]) -> None:
        """These are with whoever pulled, until they are settled or their time is up."""
        now = asyncio.get_running_loop().time()
        self._lent.pop_due(now)
        if ack_ids:
            self._lent.add(now + self._consumer.config.ack_deadline, ack_ids)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._lent.discard(settlement.ack_id)
        self.lend([one.ack_id for one in settlements if one.verb is Verb.EXTEND and one.seconds])

    def reconfigure(self, consumer: Consumer) -> None:
        """The same one, configured anew; what is here and lent stays so."""
        self._consumer = consumer

    async def leave(self) -> None:
        """Give back what nobody pulled, and have nothing pushed before somebody pulls again. Until
        that is so: what is given back next must not come here."""
        if self._pulls or self._unsubscribe is None:
            return
        self._is_leaving = True
        try:
            await self._quiet.wait(lambda: self._is_leaving and self._wire.connected)
        finally:
            if self._is_leaving:
                self._leave()
        await self._wire.hear_all()

    def close(self) -> None:
        """Give back what nobody pulled; nobody waits for more."""
        self._ended = True
        self._leave()
        self._news.set()

    async def _change(self, wait: float) -> None:
        if wait > 0 and not self._ended:
            self._news.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                return

    def _take(self, max_messages: int, max_bytes: int) -> list[Raw]:
        taken: list[Raw] = []
        while self._waiting and len(taken) < max_messages:
            max_bytes -= _size(self._waiting[0])
            if max_bytes < 0 and taken:
                break
            raw = self._waiting.popleft()
            self._ack_ids.discard(raw[1])
            self._size -= _size(raw)
            taken.append(raw)
        self._go_on()
        return taken

    # Listening, while somebody receives.

    def _listen(self) -> None:
        push = self._consumer.config.push
        if self._unsubscribe is None and push is not None:
            self._unsubscribe = self._wire.subscribe(push.subject, self._receive, queue=push.group)

    def _leave_soon(self) -> None:
        if self._leaving is None and self._unsubscribe is not None:
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(_LEAVE_AFTER, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        self._leaving = None
        self._lent.pop_due(asyncio.get_running_loop().time())
        if self._pulls:
            return
        if self._lent:
            self._leave_soon()
        else:
            self._leave()

    def _leave(self) -> None:
        self._is_leaving = False
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for timer in (self._leaving, self._renewing):
            if timer is not None:
                timer.cancel()
        self._leaving = self._renewing = None
        self._pulling.give_back([raw[1] for raw in self._waiting])
        self._waiting.clear()
        self._ack_ids.clear()
        self._size = 0
        self._lent.clear()
        self._go_on()

    # What comes, and waits.

    def _receive(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        if reply.startswith(b"$JS.ACK."):
            if self._unsubscribe is None:
                self._pulling.give_back([reply])  # It came after we had left.
                return
            if reply in self._ack_ids:
                return  # A server that was killed forgot that it had lent it, and lends it anew.
            raw = (subject, reply, block, payload)
            self._quiet.came(reply)
            self._waiting.append(raw)
            self._ack_ids.add(reply)
            self._size += _size(raw)
            self._news.set()
            self._renew_soon()
            return
        # A consumer with flow control sends no more until it is told that we have got so far.
        if status_of(block)[0] == IDLE:
            self._owed = reply or stalled_of(block) or self._owed
            self._go_on()

    def _go_on(self) -> None:
        """Have the server go on, if it waits for us and we have room. It waits for any member of a
        group: those who have no room must not keep it from the others."""
        push = self._consumer.config.push
        has_room = self._size <= _ENOUGH or (push is not None and push.group)
        if self._owed and has_room and not self._is_leaving:
            self._wire.post([publish_operation(self._owed, b"", b"", b"")])
            self._owed = b""

    def denied(self, subject: str) -> None:
        """The server refused a subject; if it was the one to have it go on, nothing more comes."""
        to_go_on = f"$JS.FC.{self._consumer.stream}.{self._consumer.name}."
        if subject.startswith(to_go_on):
            self._failure = denied(f"{to_go_on}>")
            self._news.set()

    def _renew_soon(self) -> None:
        if self._renewing is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._renewing = loop.call_later(self._consumer.config.ack_deadline / 3, self._renew)

    def _renew(self) -> None:
        """What nobody has seen must not come again as another attempt."""
        self._renewing = None
        replies = [raw[1] for raw in self._waiting]
        self._wire.post([publish_operation(reply, b"", b"", b"+WPI") for reply in replies])
        self._renew_soon()


def _size(raw: Raw) -> int:
    _, _, block, payload = raw
    return len(block) + len(payload)
