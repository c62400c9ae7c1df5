"""The lean way through: nats-py keeps the connection, this reads and writes.

nats-py spends some 40 microseconds of Python on each message it sends or receives, most of it on
a task, a future or an object per message. Publishing, pulling, settling and reading ranges need
none of these, and the server can take several times that rate. So the parser of nats-py's
connection is replaced by one that hands messages of our own subscriptions straight to a function,
and our writes go to its transport in one piece per batch.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from penstock.brokers.nats.aio.client import SteadyClient
from penstock.brokers.nats.aio.line import Line
from penstock.brokers.nats.aio.parser import LeanParser, RunSink, Sink
from penstock.brokers.nats.aio.running import Running
from penstock.brokers.nats.protocol.errors import connection_lost
from penstock.errors import ClosedError, PenstockError, UnavailableError

# Bytes that are written before waiting for the socket to take them.
WRITE_CHUNK = 512 * 1024
# So long, twice at the most, leaving may take.
LEAVES_WITHIN = 1.0
# So many operations are no batch, and not worth a call to the system.
_FEW = 8
# Timers may ring a moment early.
_NEARLY = 0.9


class Wire:
    """Raw subscriptions and writes on a connection of nats-py."""

    def __init__(self, client: SteadyClient) -> None:
        self._client = client
        self._sinks: dict[bytes, Sink] = {}
        self._losses: list[Callable[[], None]] = []
        self._pings: set[asyncio.Future[bool]] = set()
        # Subscriptions that have been ended, of which the server does not know yet.
        self._ended: set[int] = set()
        self._back: Line[None] = Line()
        self._slow_writers = 0
        # When the socket last took what it was given, or had nothing to take.
        self._taken_at = 0.0
        self._write_order = asyncio.Lock()
        self.timeout = 5.0
        self.running = Running()
        self.closed = False
        """We ended it ourselves: nothing will be tried again."""
        self._parser = LeanParser(client, self._sinks)
        self._parser.on_reset = self._on_reset
        client._ps, client.feed = self._parser, self._parser.feed
        self.afterwards = self._parser.afterwards
        """For sinks: see there."""

    @property
    def max_payload(self) -> int:
        return self._client._max_payload

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def lone_server(self) -> str:
        """Which run of which server this is, of one that is alone; nothing for one of a cluster."""
        return self._client.lone_server

    @property
    def is_ready(self) -> bool:
        """`until_connected` would return at once. To ask first saves the many who publish one
        message at a time a tenth of what they wait for."""
        return self._client.is_connected and not self.closed and not self._back.standing

    def check_open(self) -> None:
        if self.closed:
            raise closed_error()

    def check_connected(self) -> None:
        self.check_open()
        if not self._client.is_connected:
            raise UnavailableError(
                "Not connected to the NATS server; a reconnect is being attempted"
                if not self._client.is_closed
                else "The connection to the NATS server is closed"
            )

    async def until_connected(self, within: float | None = None) -> None:
        """Return at once while connected, else with the reconnect, in the order of coming;
        `UnavailableError` when that takes longer than `within` seconds, by default as long as an
        answer may take.

        Whoever tries again and again waits here, and leaves the event loop to the reconnect.
        """
        if self._client.is_connected and not self.closed:
            if self._back:
                await self._back.follow(None)
        elif not (self.closed or self._client.is_closed):
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeout if within is None else within):
                    await self._back.wait()
        self.check_connected()

    # In.

    def subscribe(self, subject: str, sink: Sink, *, queue: str = "") -> Callable[[], None]:
        """Messages on `subject` go to `sink`, also after a reconnect; returns how to end it."""
        return self._ending(self._subscribe(subject, sink, queue))

    def subscribe_runs(self, subject: str, rest: bytes, sink: RunSink, other: Sink) -> None:
        """Like `subscribe` for answers that come by the thousand and all look alike.

        Messages without headers on `subject`, whose last token and payload match `rest`, go to
        `sink` in runs, as the groups of the pattern; `other` gets those that look different.
        """

        def not_alike(subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
            # Not before the answers that came before it.
            self._parser.tell()
            other(subject, reply, block, payload)

        number = b"%d" % self._subscribe(f"{subject}.>", not_alike, "")
        pattern = rb"MSG %b\.%b" % (re.escape(subject.encode()), rest % number)
        self._parser.alike = (re.compile(pattern), sink)

    def _subscribe(self, subject: str, sink: Sink, queue: str) -> int:
        self.check_connected()
        number = self._client.subscribe_now(subject, queue)
        self._sinks[b"%d" % number] = sink
        return number

    def _ending(self, number: int) -> Callable[[], None]:
        def unsubscribe() -> None:
            self._client.unsubscribe_now(number)
            if self._client.is_connected:
                # What the server sent before it knew must still find its sink, however slowly it
                # comes. It answers behind all of that.
                self._ended.add(number)
                self._client.ping_now().add_done_callback(lambda _: self._drop(number))
            else:
                self._drop(number)

        return unsubscribe

    def _drop(self, number: int) -> None:
        """Nothing more comes for it."""
        self._ended.discard(number)
        self._sinks.pop(b"%d" % number, None)

    # Out.

    def post(self, parts: list[bytes]) -> None:
        """Send a few small operations without waiting; nothing happens while not connected."""
        if self._client.is_connected:
            self._client.send(b"".join(parts))

    def write_now(self, data: bytes) -> bool:
        """Send complete operations, if nothing is in the way; whether they were sent. `write` does
        the rest."""
        client = self._client
        if self._slow_writers or self.closed or not client.is_connected or client.behind:
            return False
        client.send_now(data)
        return True

    async def write(self, parts: list[bytes], on_piece: Callable[[], None] = lambda: None) -> None:
        """Send complete operations, in order, waiting when the socket is behind. Few of them leave
        with what else is sent in this turn of the loop. Of many, each piece has the whole time.
        `on_piece` is called as each is given to the socket."""
        self.check_connected()
        if not (self._slow_writers or self._client.behind):
            data = b"".join(parts)
            if len(data) <= WRITE_CHUNK:
                if len(parts) > _FEW:
                    self._client.send_now(data)
                else:
                    self._client.send(data)
                on_piece()
                return
        loop = asyncio.get_running_loop()
        if not self._slow_writers:
            self._taken_at = loop.time()
        self._slow_writers += 1
        try:
            # Waiting for those who write before us is a part of the time.
            async with asyncio.timeout(self.timeout) as limit, self._write_order:
                self.check_connected()
                self._client.send_now()
                for number, piece in enumerate(_pieces(parts)):
                    if number:
                        limit.reschedule(loop.time() + self.timeout)
                    on_piece()
                    await self._write(piece)
        except TimeoutError:
            raise self._not_taken(loop.time()) from None
        finally:
            self._slow_writers -= 1

    async def _write(self, data: bytes) -> None:
        transport = self._client.io
        try:
            transport.write(data)
            await transport.drain()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            raise connection_lost(error) from error
        except AttributeError as error:
            raise self.loss() from error  # So says nats-py that it has closed the connection.
        self._taken_at = asyncio.get_running_loop().time()

    def _not_taken(self, now: float) -> UnavailableError:
        """One write took too long; the connection is of no use if all of them did."""
        is_stuck = now - self._taken_at >= _NEARLY * self.timeout
        if is_stuck:
            self.abort()
            self._taken_at = now  # Nobody blames the next connection.
        return UnavailableError(
            f"The NATS server did not take what was sent within {self.timeout:g} s"
            + ("; connecting anew" if is_stuck else ", because of what was sent before it")
        )

    async def ping(self) -> float:
        """Seconds until the server has answered; it has then taken all that was written before."""
        self.check_connected()
        loop = asyncio.get_running_loop()
        began = loop.time()
        pong = self._client.ping_now()
        self._pings.add(pong)
        try:
            async with asyncio.timeout(self.timeout):
                await pong
        except TimeoutError:
            raise UnavailableError(
                f"The NATS server does not answer within {self.timeout:g} s"
            ) from None
        finally:
            self._pings.discard(pong)
        return loop.time() - began

    async def hear_all(self) -> None:
        """Until all that the server had sent has come, and what is nobody's was given back; not for
        long, and without a word where there is nobody to hear."""
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(LEAVES_WITHIN):
                await self.ping()

    # The end of a connection.

    def abort(self) -> None:
        """Drop the connection without waiting for a peer that may never read again."""
        self._client.abort()

    def begin_anew(self) -> None:
        """Nothing of the last connection, or of one that was not completed, is of use."""
        self._parser.reset()
        self.abort()

    def _on_reset(self) -> None:
        # nats-py is about to reconnect, and would first wait for what is unsent to be sent.
        if self._client.is_reconnecting:
            self.abort()

    def on_loss(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` when the connection is lost; returns how to end that."""
        self._losses.append(act)
        return lambda: self._losses.remove(act)

    def loss(self, told: str = "") -> PenstockError:
        """Why those who wait do so in vain: we closed the connection, or it was lost."""
        if self.closed:
            return closed_error()
        return UnavailableError(told) if told else connection_lost()

    def found(self) -> None:
        """There is a connection again, or there will be none: nobody need wait for it."""
        self._back.tell(None)

    def lost(self) -> None:
        """The connection is gone: nobody will answer what was asked on it, or has not yet."""
        self._parser.tell()
        for act in list(self._losses):
            act()
        for pong in self._pings:
            if not pong.done():
                pong.set_exception(self.loss())
        for number in list(self._ended):
            self._drop(number)


def _pieces(parts: list[bytes]) -> Iterator[bytes]:
    """All of it, in writes of a bounded size."""
    pending: list[bytes] = []
    size = 0
    for part in parts:
        pending.append(part)
        size += len(part)
        if size >= WRITE_CHUNK:
            yield b"".join(pending)
            pending.clear()
            size = 0
    if pending:
        yield b"".join(pending)


def closed_error() -> ClosedError:
    return ClosedError("This connection to NATS is closed; make a new PubSub")
