"""nats-py's client, made steady: it connects, logs in, encrypts and connects again.

nats-py's loops end without a word on what they do not expect, and cancelling one of its calls at
the wrong moment is enough: the answer to a ping that nobody waits for any more ends its read loop,
and only later pings notice, half a minute on. The loops here end for a reason that is told, and
then the connection is made anew at once.

This and `wire.py`, which puts its parser in the place of nats-py's, are all that knows nats-py's
insides; everywhere else it is used as its documentation says. `check_compatible` tells when the
insides are others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import nats.aio.client
import nats.errors
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from penstock.brokers.nats.protocol.frames import check_info
from penstock.errors import InternalError, UnavailableError

if TYPE_CHECKING:
    from nats.aio.transport import Transport

    from penstock.brokers.nats.aio.parser import LeanParser

_log = logging.getLogger("penstock")
_PING, _PONG = b"PING\r\n", b"PONG\r\n"
# At once: some 150 messages of 256 bytes, which are handled before the server hears of any. With
# four times as much it waits for us as long as we do for it. In the middle of a large message more:
# a read should hold several.
_RECEIVE = 64 * 1024
_RECEIVE_LARGE = 512 * 1024
_LARGE = 4096
# Whoever cancels all tasks is about to end; if not, or if closing takes longer, we go on after this
# many seconds.
_SOON = 0.05
_INSIDES = (
    "options", "_ps", "_transport", "_sid", "_subs", "_remove_sub", "_pongs", "_pings_outstanding",
    "_status", "_server_info", "_reading_task", "_reconnection_task", "_process_msg",
    "_process_ping", "_process_pong", "_process_info", "_process_err", "_process_op_err",
    "_process_connect_init", "_read_loop", "_ping_interval", "_ping_interval_task",
    "_attempt_reconnect", "_reconnection_task_future", "_max_payload",
)  # fmt: skip


def check_compatible() -> None:
    """Fail early and clearly if this version of nats-py is not built as we expect."""
    for part, names in (
        (nats.aio.client.Client(), _INSIDES),
        (TcpTransport(), ("_io_reader", "_io_writer")),  # type: ignore[no-untyped-call]
        (Parser, ("parse", "reset")),
    ):
        for name in names:
            if not hasattr(part, name):
                kind = part if isinstance(part, type) else type(part)
                raise InternalError(
                    f"This version of nats-py has no {kind.__name__}.{name}; install the version "
                    "that penstock[nats] asks for"
                )


class Missing(Protocol):
    """A parser that may be in the middle of a message."""

    missing: int
    """Bytes that are still to come of it, if it is."""


class Shortcut(asyncio.BufferedProtocol):
    """From the socket past nats-py's reader: `feed` handles what comes where it comes, a turn of
    the loop before a task that reads could. What it returns is for the reader, and while that has
    some `left`, everything is, so that the order stays.

    It reads into a buffer of its own. A plain protocol is given bytes, for which asyncio asks the
    system for 256 KB at each read and gives them back: ten times what reading a message takes.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        transport: asyncio.Transport,
        feed: Callable[[bytes], bytes],
        parser: Missing,
        *,
        left: int,
    ) -> None:
        self._reader = reader
        self._feed = feed
        self._parser = parser
        self.left = left
        self._buffer = memoryview(bytearray(_RECEIVE_LARGE))
        self._front = self._buffer[:_RECEIVE]
        # It knows who waits to write, and who waits for the end.
        self._streams = cast("asyncio.StreamReaderProtocol", transport.get_protocol())
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        transport.set_protocol(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._front if self._parser.missing < _LARGE else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        if not self.left:
            try:
                data = self._feed(data)
            except Exception as error:
                self._reader.set_exception(error)
                return
        if data:
            self.left += len(data)
            self._streams.data_received(data)

    def eof_received(self) -> bool:
        # A reader that was made before TLS began would keep the connection open, which asyncio
        # cannot do then, and says so.
        return bool(self._streams.eof_received()) and not self._is_encrypted

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.connection_lost(error)

    def pause_writing(self) -> None:
        self._streams.pause_writing()

    def resume_writing(self) -> None:
        self._streams.resume_writing()


class SteadyClient(nats.aio.client.Client):
    """One connection, kept for as long as it is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self._leaving: list[bytes] = []
        self._out: asyncio.WriteTransport | None = None
        self._shortcut: Shortcut | None = None
        self._is_parsing = False
        self.feed: Callable[[bytes], bytes] = lambda data: data
        """Takes what it can of data that has just come; returns what is for the read loop."""

    # What we do on it.

    @property
    def io(self) -> Transport:
        return cast("Transport", self._transport)

    @property
    def lone_server(self) -> str:
        """Which run of which server this is, of one that is alone; nothing for one of a cluster."""
        info = self._server_info
        # One that is a leaf node names itself as its cluster.
        alone = info.get("cluster") in (None, "", info.get("server_name"))
        return str(info.get("server_id", "")) if alone else ""

    def send(self, data: bytes) -> None:
        """Write with what else is sent in this turn of the event loop: an ack, the next pull and
        what a handler publishes are one call to the system, not three."""
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self.send_now)
        self._leaving.append(data)

    def send_now(self, data: bytes = b"") -> None:
        """Write what waits for the end of this turn, and this behind it."""
        if self._leaving:
            data = b"".join((*self._leaving, data))
            self._leaving.clear()
        # Not through nats-py's transport and asyncio's stream writer, which only pass it on.
        out = self._out
        if data and out is not None and self.is_connected:
            try:  # noqa: SIM105 - a context manager takes a tenth as long as the call
                out.write(data)
            except (OSError, RuntimeError):
                pass  # What is wrong with the connection is told by whoever reads.

    @property
    def behind(self) -> bool:
        """The socket has not taken all that was written. Ask only while connected."""
        return self._out is None or self._out.get_write_buffer_size() > 0

    def subscribe_now(self, subject: str, queue: str) -> int:
        """Subscribe, also on every later connection; nothing written after it overtakes it.

        Returns the number that messages of this subscription come with.
        """
        self._sid += 1
        number = self._sid
        # Never started: its messages are taken by the parser. It is what is subscribed again.
        self._subs[number] = Subscription(self, number, subject, queue=queue)
        self.send(b"SUB %b %b %d\r\n" % (subject.encode(), queue.encode(), number))
        return number

    def unsubscribe_now(self, number: int) -> None:
        self._remove_sub(number)
        if self.is_connected:
            self.send(b"UNSUB %d\r\n" % number)

    def ping_now(self) -> asyncio.Future[bool]:
        """Done when the server has answered; may be cancelled."""
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.send(_PING)
        return pong

    def reconnect_for_ever(self) -> None:
        """nats-py is told once, when it connects; this is for those who were connected."""
        self.options["allow_reconnect"] = True
        self.options["max_reconnect_attempts"] = -1

    def lead_to(self, servers: list[str], user: str | None, password: str | None) -> None:
        """Connect to these from now on, and with this login."""
        if not self.is_closed:
            self.set_server_pool(servers)
        self.options["user"], self.options["password"] = user, password

    def abort(self) -> None:
        """Drop the connection without waiting for a peer that may never read again."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    # What nats-py does on it.

    async def _process_ping(self) -> None:
        self.send(_PONG)

    async def _process_pong(self) -> None:
        self._pings_outstanding = 0
        if self._pongs:
            pong = self._pongs.pop(0)
            if not pong.done():
                pong.set_result(True)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        check_info(info)
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        self._out = self.io._io_writer.transport  # type: ignore[attr-defined]
        self._shortcut, self._is_parsing = None, False
        for task in self._loops():
            task.add_done_callback(lambda _: self._go_on_soon())

    def _loops(self) -> list[asyncio.Task[None]]:
        """What must run on a connection, or nobody notices what becomes of it."""
        tasks = (self._reading_task, self._ping_interval_task)
        return [task for task in tasks if task is not None]

    async def _read_loop(self) -> None:
        # Not the transport, which is another connection's after the next reconnect.
        reader, writer = self.io._io_reader, self.io._io_writer  # type: ignore[attr-defined]
        try:
            while self._is_reading() and not (self.is_closed or self.is_reconnecting):
                data = await reader.read(_RECEIVE)
                if not data:
                    raise nats.errors.UnexpectedEOF
                if self._shortcut is None and len(data) < _RECEIVE:
                    # Nothing is left in the reader: what comes from here on may be taken before it.
                    parser = cast("LeanParser", self._ps)
                    self._shortcut = Shortcut(
                        reader, writer.transport, self._feed, parser, left=len(data)
                    )
                self._is_parsing = True
                await self._ps.parse(data)
                self._is_parsing = False
                if self._shortcut is not None:
                    self._shortcut.left -= len(data)
        except Exception as error:
            if not isinstance(error, OSError | nats.errors.Error):
                _log.error("Reading from the NATS server failed", exc_info=error)
            elif isinstance(error, UnavailableError):
                _log.warning("%s", error)
            if self._is_reading():
                await self._process_op_err(error)

    def _feed(self, data: bytes) -> bytes:
        """What is for the read loop of data that has just come."""
        return self.feed(data) if self._status == self.CONNECTED else data

    def _begin_again(self) -> None:
        """Loops were cancelled while they waited, and what has come since waits for them."""
        for name, work in (
            ("_reading_task", self._read_loop),
            ("_ping_interval_task", self._ping_interval),
        ):
            if getattr(self, name).done():
                # Owned by nats-py: closing and connecting anew end it.
                task = asyncio.get_running_loop().create_task(work())
                task.add_done_callback(lambda _: self._go_on_soon())
                setattr(self, name, task)

    def _is_reading(self) -> bool:
        """The current task is the one that reads."""
        return asyncio.current_task() is self._reading_task

    async def _ping_interval(self) -> None:
        while True:
            await asyncio.sleep(self.options["ping_interval"])
            self._pings_outstanding += 1
            if self._pings_outstanding > self.options["max_outstanding_pings"]:
                await self._process_op_err(nats.errors.StaleConnectionError())
                return
            self.ping_now()

    async def _attempt_reconnect(self) -> None:
        try:
            await super()._attempt_reconnect()
        except Exception as error:
            # nats-py expects a server at the other end, and gives up on anything else.
            _log.warning("Connecting anew to the NATS server failed: %s", type(error).__name__)
            self._server_info = {}
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        asyncio.get_running_loop().call_later(_SOON, self._go_on)

    def _go_on(self) -> None:
        """Go on reading, or connect anew, unless that is being done or nobody wants it."""
        connecting = self._reconnection_task
        if self.is_closed or not self.options.get("allow_reconnect"):
            return
        if connecting is not None and not connecting.done():
            return
        # Which is there as long as not all who want to know have been told of the connection.
        is_complete = self._reconnection_task_future is None
        if self.is_connected and is_complete:
            if not any(task.done() for task in self._loops()):
                return
            if not self._is_parsing:
                self._begin_again()
                return
        self._status = self.RECONNECTING
        self._ps.reset()
        # Owned by nats-py: closing ends it.
        self._reconnection_task = asyncio.get_running_loop().create_task(self._attempt_reconnect())
