"""Ordered subscriptions: fetched here, and lent one message of a key at a time.

    the server ─▶ fetch ──▶ KeyBook ─▶ pull ─▶ whoever receives
               ─▶ Survey ─┘

One client of a subscription is served at a time (a pinned client, in the server's words); another
that waits takes over when the first is silent. Whoever begins, takes over or connects anew finds
out first what is still with somebody else, and keeps back the keys of that until it is settled or
has come back.

So does whoever stood still, or whose connection did, for longer than messages are lent: what it has
may be another's by now, and what it reads next may have been sent long ago. Until when something is
ours is counted from before the server can have lent or renewed it, never from when it came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress

from penstock.brokers.nats.aio.pulling import Pulling, ended_by
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.keeping import Keeping
from penstock.brokers.nats.key_book import KeyBook
from penstock.brokers.nats.loans import ROUNDED_BY, written_before
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.errors import denied
from penstock.brokers.nats.protocol.headers import pin_of
from penstock.brokers.nats.protocol.records import Raw
from penstock.brokers.nats.protocol.requests import (
    nak,
    nak_delay,
    next_message,
    publish_operation,
    unpin,
)
from penstock.brokers.nats.requesting import Requests
from penstock.brokers.nats.returns import EXTRA, Returns
from penstock.brokers.nats.survey import Survey
from penstock.clock import NS
from penstock.errors import PenstockError
from penstock.message import Delivery

# The longest a request waits at the server: a client that is alive is heard of so often. Less where
# messages are lent for a shorter time, because they may have been lent since it was sent.
_EXPIRES = 2.0
_SHARE = 4
# What came less than this share of its deadline ago needs no renewal, to spare the server.
_NEARLY = 0.1
# What is asked for however large it is, is there.
_TURN = 0.25
# After so long without a pull, nobody receives: what waits here is for others.
_IDLE = 1.0
_WRONG_PIN = 423

_log = logging.getLogger("penstock")

Decode = Callable[[Consumer, Raw], Delivery]


class OrderedQueue:
    """What one connection has of one ordered subscription."""

    def __init__(
        self,
        consumer: Consumer,
        wire: Wire,
        pulling: Pulling,
        catalogue: Catalogue,
        log: NatsLog,
        decode: Decode,
    ) -> None:
        self._consumer = consumer
        self._wire = wire
        self._pulling = pulling
        self._catalogue = catalogue
        self._decode = decode
        self._book = KeyBook()
        self._keeping = Keeping()
        self._survey = Survey(
            consumer,
            catalogue,
            log,
            self._book,
            self._keeping,
            on_news=self._changed,
            on_failure=self._fail,
        )
        self._requests = Requests(
            wire,
            pulling.inbox_prefix,
            on_delivery=self._receive,
            on_end=self._keeping.answered,
        )
        self._pin = ""
        self._asked = (1, 0)
        self._returns = Returns(self._book)
        self._pulls = 0
        self._news = asyncio.Event()
        self._failure: PenstockError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetching: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._renewing: asyncio.TimerHandle | None = None
        self._leaving = False
        self._closed = False
        self._lender = ""
        self._unwritten: set[int] = set()
        self._ignore_losses = wire.on_loss(self._on_loss)
        wire.running.begin()

    # Those who receive.

    async def pull(self, max_messages: int, max_bytes: int, wait: float) -> list[Delivery]:
        """As `Pulling.pull`, of what may be lent; nothing at once when it was closed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        self._pulls += 1
        self._leaving = False
        self._asked = (max_messages, max_bytes)
        try:
            while True:
                if self._closed:
                    return []
                taken = self._take(max_messages, max_bytes)
                if taken:
                    return taken
                if self._failure is not None and self._fetching is None:
                    failure, self._failure = self._failure, None
                    raise failure
                self._keep_fetching()
                left = until - loop.time()
                if left <= 0 and (wait > 0 or not await self._look()):
                    return self._take(max_messages, max_bytes)
                await self._change(max(left, 0.0))
        finally:
            self._pulls -= 1
            if not self._pulls:
                self._idle_soon()

    def _take(self, max_messages: int, max_bytes: int) -> list[Delivery]:
        if not self._book.ready:
            return []
        self._heed_restart()
        if not self._is_kept():
            self._doubt()
        taken = self._book.take(max_messages, max_bytes)
        now, deadline = asyncio.get_running_loop().time(), self._consumer.config.ack_deadline
        waited = self._keeping.waited([d.record.sequence for d in taken], now - _NEARLY * deadline)
        if waited:
            # Who is handed one has its whole time, however long it waited here.
            self._tell_renewed([d.ack_id for d in taken if d.record.sequence in waited])
        return taken

    async def _look(self) -> bool:
        """For those who do not wait: give the server a moment to say what it has."""
        await self._change(0.25)
        return False

    def settling(self, sequence: int, answer: bytes) -> None:
        """What the server is about to be told of a delivery."""
        if not answer.startswith(b"+WPI"):
            self._book.settling(sequence)

    def settled(self, sequence: int, answer: bytes) -> None:
        """What the server was told of a delivery."""
        if answer.startswith((b"+ACK", b"+TERM")):
            self._book.settled(sequence)
        elif answer.startswith(b"-NAK"):
            due = asyncio.get_running_loop().time() + nak_delay(answer)
            self._book.given_back(sequence, due)
            self._returns.expected()
            self._requests.quiet.disturbed()  # It may come at once.
        self._changed()
        if self._book.waits and self._requests.listening:
            self._survey.begin()

    def reconfigure(self, consumer: Consumer) -> None:
        """The same one, configured anew; what is here and lent stays so."""
        self._consumer = self._survey.consumer = consumer

    async def leave(self) -> None:
        """Give back what nobody took, and have nothing sent before somebody pulls again. Until
        that is so: what is given back next must not come here."""
        if self._pulls or not self._requests.listening:
            return
        self._leaving = True
        try:
            await self._requests.gather(lambda: self._leaving)
        finally:
            if self._leaving:
                self._let_go()
        await self._wire.hear_all()

    def close(self) -> None:
        """Give back what nobody took; nobody waits for more."""
        if self._closed:
            return
        self._closed = True
        self._ignore_losses()
        self._let_go()
        self._survey.close()
        for timer in (self._idle, self._renewing):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._changed()

    async def _change(self, within: float) -> None:
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._news.wait()

    def _changed(self) -> None:
        self._news.set()

    # The server.

    def _keep_fetching(self) -> None:
        if self._fetching is None and not self._closed:
            self._fetching = self._spawn(self._fetch())
            self._fetching.add_done_callback(self._fetched)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        # Owned here: `close` and `_let_go` end them.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if isinstance(error, PenstockError):
                self._failure = error
            else:
                _log.error("Fetching for %r failed", self._consumer.config.name, exc_info=error)
        self._changed()

    async def _fetch(self) -> None:
        """Have a request at the server for as long as somebody receives and there is room."""
        await self._wire.until_connected()
        self._heed_restart()
        self._requests.listen()
        if self._survey.needed:
            self._begin_anew()
        now = asyncio.get_running_loop().time
        while self._pulls or (self._book.lent and not self._leaving):
            if self._keeping.doubtful:
                await self._until_heard()
                continue
            room, size = self._room()
            if room <= 0:
                pause = self._returns.pause(now())
                if pause is not None:
                    await self._change(pause)
                room, size = self._room()
                if room > 0 or not (self._book.waits or self._book.lent):
                    continue
                batch = self._returns.batch(now())
                spare = min(self._asked[1], self._pulling.allowance.one)
                self._make_room(batch - room - EXTRA, -spare - size)
                room, size = batch, max(size, spare)
            await self._request(max(room, 1), size)

    async def _until_heard(self) -> None:
        """What came before would be nobody's until its deadline has passed."""
        await self._wire.until_connected()
        if self._survey.needed:
            self._begin_anew()
        await self._change(_EXPIRES)

    def _room(self) -> tuple[int, int]:
        """Messages and bytes that may be asked for beside what is here; with nothing here one
        message, however large it is. Less than nothing: so much more is here."""
        messages, most = self._asked
        here = self._book.here
        size = most - self._book.size
        room = max(messages, 1) - here
        return (min(room, 0) if here and size <= 0 else room), size

    def _make_room(self, messages: int, size: int) -> None:
        """All that is here waits, perhaps for what only another request brings: the last of it may
        come later, behind those that it waits for; so many, and of so many bytes."""
        now = asyncio.get_running_loop().time()
        away_for = self._returns.away_for
        operations: list[bytes] = []
        while messages > 0 or size >= 0:
            last = self._book.give_back_last(now + away_for)
            if last is None:
                break
            messages, size = messages - 1, size - last.record.size
            ack_id = last.ack_id.encode()
            told = [*(o for o in self._pulling.giving_back([ack_id]) if o[0] != ack_id)]
            operations += [
                publish_operation(to, b"", b"", what)
                for to, what in [*told, (ack_id, nak(away_for))]
            ]
        if operations:
            self._wire.post(operations)

    async def _request(self, batch: int, max_bytes: int, *, has_turn: bool = False) -> None:
        expires = min(_EXPIRES, self._consumer.config.ack_deadline / _SHARE)
        if has_turn:
            expires = min(expires, _TURN)
        if max_bytes < 1:
            batch = 1  # The server takes 0 for no bound.
        request: dict[str, object] = {"batch": batch, "expires": int(expires * NS)}
        if self._consumer.group:
            request["group"] = self._consumer.group
            if self._pin:
                request["id"] = self._pin
        allowance = self._pulling.allowance
        size = allowance.one
        if batch > 1:
            size = request["max_bytes"] = min(max_bytes, allowance.share(batch))
        elif not (has_turn or allowance.is_plenty):
            size = request["max_bytes"] = allowance.share(1)
        self._returns.asking()
        self._keeping.asking(asyncio.get_running_loop().time())
        subject = next_message(self._consumer.stream, self._consumer.name)
        with allowance.asking(size):
            code, text = await self._requests.send(
                subject, request, batch, expires, on_written=self._keeping.asked
            )
        if code == _WRONG_PIN:
            self._lose_pin()
        elif "Exceeds MaxBytes" in text:
            async with allowance.turn():
                await self._request(1, 0, has_turn=True)
        else:
            failure = ended_by(self._consumer, code, text)
            if failure is not None:
                raise failure
            if code:
                # It waited: a new filter is heard of before the next message comes.
                self._catalogue.look_again_at(self._consumer)

    def _receive(self, raw: Raw) -> None:
        _, reply, block, _ = raw
        if not self._requests.listening:
            self._pulling.give_back([reply])  # It came after we had let go.
            return
        pin = pin_of(block) if self._consumer.group else ""
        if pin and pin != self._pin:
            self._book.doubt_returning()
            self._pin = pin
            self._begin_anew()
        self._arrive(self._decode(self._consumer, raw))
        if self._book.ready:
            self._changed()

    def _arrive(self, delivery: Delivery) -> None:
        now, deadline = asyncio.get_running_loop().time(), self._consumer.config.ack_deadline
        sequence = delivery.record.sequence
        if not self._keeping.arrived(sequence, now, deadline, first=not self._book.here):
            if not self._keeping.doubtful:
                self._doubt()
            self._book.doubt(delivery.record)
            return
        self._returns.came(sequence, again=delivery.delivery_attempt > 1)
        self._book.arrive(delivery)
        self._renew_soon()

    def _on_loss(self) -> None:
        """What was sent to us and not read is nobody's for a while: it has to be found out."""
        self._unwritten |= self._keeping.came_since(written_before(self._wire.running))
        self._begin_anew()
        self._requests.lost()

    # Who has what.

    def _lose_pin(self) -> None:
        """Another client is served now; what we have not lent is for that one."""
        self._pin = ""
        self._give_back_all()
        self._begin_anew()

    def _heed_restart(self) -> None:
        """A lone server that was started again does not know what it lent last (see `Loans`)."""
        if self._wire.connected:
            lender = self._wire.lone_server
            if lender not in ("", self._lender):
                self._book.doubt_here(self._unwritten)
                self._keeping.shorten(ROUNDED_BY)
                self._lender = lender
            self._unwritten.clear()

    def _is_kept(self) -> bool:
        """What is here is ours, for all we know."""
        return self._keeping.is_kept(asyncio.get_running_loop().time())

    def _give_back_all(self) -> None:
        """What nobody has taken; but not what may be with somebody else already."""
        self._heed_restart()
        if not self._is_kept():
            self._book.doubt_here()
        self._pulling.give_back([d.ack_id.encode() for d in self._book.give_back_all()])

    def _doubt(self) -> None:
        """We stood still: what is here may be with others by now, and so may what comes, as long as
        it may have been sent before the server heard of us again."""
        _log.debug("Received nothing in time for %r: asking who has what", self._consumer.name)
        self._keeping.doubt()
        self._book.doubt_here()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Find out who has what, now or as soon as there is somebody to ask."""
        self._survey.halt()
        if not self._pin:
            # Others may have been served, and have had what would have come back to us.
            self._book.doubt_returning()
        if self._wire.connected and self._requests.listening:
            self._survey.begin()

    def _fail(self, error: PenstockError) -> None:
        """It will not pass: whoever receives is told."""
        self._failure = error
        if self._fetching is not None:
            self._fetching.cancel()

    def denied(self, subject: str) -> None:
        """The server refused a subject; if it was that of our requests, they are in vain."""
        if subject == next_message(self._consumer.stream, self._consumer.name):
            self._fail(denied(subject))

    # What waits here.

    def _renew_soon(self) -> None:
        if self._renewing is None and self._book.here:
            loop = asyncio.get_running_loop()
            self._renewing = loop.call_later(self._consumer.config.ack_deadline / 3, self._renew)

    def _renew(self) -> None:
        self._renewing = None
        if self._book.here and not self._is_kept():
            self._doubt()
        ack_ids = self._book.ack_ids()
        now = asyncio.get_running_loop().time()
        before = written_before(self._wire.running)
        renewal = self._keeping.renewing(now, forget_before=before)
        if ack_ids:
            self._tell_renewed(ack_ids)
            self._spawn(self._confirm(renewal))
        self._renew_soon()

    def _tell_renewed(self, ack_ids: list[str]) -> None:
        self._wire.post([publish_operation(i.encode(), b"", b"", b"+WPI") for i in ack_ids])

    async def _confirm(self, renewal: tuple[float, int]) -> None:
        """It counts when the server is known to have read it."""
        with suppress(PenstockError):
            await self._wire.ping()
            self._keeping.renewed(renewal, self._consumer.config.ack_deadline)

    def _idle_soon(self) -> None:
        if self._idle is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(_IDLE, self._on_idle)

    def _on_idle(self) -> None:
        self._idle = None
        if self._pulls or self._closed:
            return
        if self._book.lent:
            self._idle_soon()
        else:
            self._spawn(self.leave())

    def _let_go(self) -> None:
        """Nobody receives here: others may."""
        if self._fetching is not None:
            self._fetching.cancel()
        self._requests.end_listening()
        self._keeping.answered()
        self._give_back_all()
        away = self._book.out_of_the_way
        if away and self._is_kept():
            # It is in nobody's way elsewhere. That it was given back has been counted.
            self._wire.post(
                [publish_operation(i.encode(), b"", b"", nak(0)) for i in away.values()]
            )
        away.clear()
        if self._pin:
            self._wire.post(
                [unpin(self._consumer.stream, self._consumer.name, self._consumer.group)]
            )
            self._pin = ""
        self._survey.rest()
