"""Pulling and settling: raw messages in, raw acks out."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

from penstock.brokers.nats.aio.allowance import Allowance
from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.inbox import HandOver, Inbox
from penstock.brokers.nats.aio.quiet import QUIET
from penstock.brokers.nats.aio.wire import LEAVES_WITHIN
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.errors import denied, no_answer, odd_status
from penstock.brokers.nats.protocol.headers import (
    CONFLICT,
    NO_MESSAGES,
    NO_RESPONDERS,
    TIMED_OUT,
)
from penstock.brokers.nats.protocol.records import Raw
from penstock.brokers.nats.protocol.requests import (
    encode_request,
    next_message,
    publish_operation,
)
from penstock.clock import NS
from penstock.errors import PenstockError, SubscriptionNotFoundError, UnavailableError


class _Leaving:
    """Requests of one consumer that are withdrawn together, and the deliveries to give back when
    they are."""

    def __init__(self) -> None:
        self.inboxes = 0
        self.replies: list[bytes] = []


class Pulling:
    """The receiving half of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wire = connection.wire
        self.inbox_prefix = connection.options.inbox_prefix
        self._prefix = f"{self.inbox_prefix}.{secrets.token_hex(8)}"
        self._names = itertools.count(1)
        self._idle: list[Inbox] = []
        self._busy: set[Inbox] = set()
        self.allowance = Allowance(connection.wire)
        # By the key of a consumer: those of whose requests one is watched, those that had more when
        # they last sent something, and those with a message for which there was no room.
        self._watched: set[tuple[str, str]] = set()
        self._with_more: set[tuple[str, str]] = set()
        self._large: dict[tuple[str, str], asyncio.Event] = {}
        # By the subject they have asked: those who begin to leave in this turn of the loop.
        self._leaving: dict[bytes, _Leaving] = {}
        self._seen_off: dict[Inbox, asyncio.Task[None]] = {}
        self.giving_back: Callable[[list[bytes]], list[tuple[bytes, bytes]]] = _naks
        """What to send, as subjects and payloads, to give deliveries back."""
        self.on_sign: Callable[[Consumer], None] = lambda _: None
        """Called now and then with a consumer that is waited for in vain."""
        self._wire.on_loss(self._on_loss)

    async def pull(
        self,
        consumer: Consumer,
        max_messages: int,
        max_bytes: int,
        wait: float,
        hand_over: HandOver | None = None,
    ) -> list[Raw]:
        """What is there now; else what comes first within `wait` seconds. `hand_over` may take
        parts of it before; what follows them is returned.

        One request for both: the server ends it as soon as it has sent something and has no more.
        """
        key = consumer.key
        # One of them is enough to notice a server that has forgotten all: it answers none that
        # comes while their consumer is being deleted. Signs are not given for a short one.
        is_watcher = key not in self._watched and wait >= 2 * _SIGN_OF_LIFE
        if is_watcher:
            self._watched.add(key)
        try:
            await self._wire.until_connected(min(wait, self._wire.timeout))
            with self._inbox() as inbox:
                if is_watcher:
                    inbox.heartbeat = _SIGN_OF_LIFE
                    inbox.on_sign = lambda: self.on_sign(consumer)
                inbox.hand_over = hand_over
                is_lone = hand_over is not None and key not in self._with_more
                if is_lone and max_bytes >= self._wire.max_payload:
                    # Whoever takes what comes asks again at once. A request for one is over with
                    # it, and no status has to be read before it is handed over.
                    max_messages, max_bytes = 1, 0 if self.allowance.is_plenty else max_bytes
                return await self._pull(inbox, consumer, max_messages, max_bytes, wait)
        finally:
            if is_watcher:
                self._watched.discard(key)

    async def pull_dated(
        self,
        consumer: Consumer,
        max_messages: int,
        max_bytes: int,
        wait: float,
        *,
        heartbeat: float,
    ) -> tuple[list[Raw], float]:
        """The same, and the time of the event loop since when it was lent, at the earliest. While
        nothing comes the server says so every `heartbeat` seconds, so that this is not long before
        it came, unless it was long under way."""
        await self._wire.until_connected(min(wait, self._wire.timeout))
        with self._inbox() as inbox:
            inbox.heartbeat, inbox.late_after = heartbeat, _LATE * heartbeat
            inbox.on_sign = lambda: self.on_sign(consumer)
            raws = await self._pull(inbox, consumer, max_messages, max_bytes, wait)
            return raws, inbox.lent_since

    async def _pull(
        self, inbox: Inbox, consumer: Consumer, max_messages: int, max_bytes: int, wait: float
    ) -> list[Raw]:
        limits = consumer.limits
        max_messages = min(max_messages, limits.messages or max_messages)
        if limits.unsettled:
            max_messages = min(max_messages, max(1, limits.unsettled // _SIDE_BY_SIDE))
        wait = min(wait, limits.seconds or wait)
        if limits.unsettled:
            # A request is not ended before some are settled, and those may be the ones that came
            # for it.
            inbox.quiet_after, inbox.hand_over = QUIET, None
        if max_bytes < 1:
            max_messages, max_bytes = 1, 0  # The server takes 0 for no bound.
        else:
            max_bytes = min(max_bytes, limits.size or max_bytes, self.allowance.share(max_messages))
        with self.allowance.asking(max_bytes or self.allowance.one):
            raws = await self._ask(inbox, consumer, max_messages, max_bytes, max(wait, 0.0))
        if inbox.is_caught_up:
            self._with_more.discard(consumer.key)
        elif inbox.is_caught_up is False:
            if len(self._with_more) >= _REMEMBERED:
                self._with_more.clear()
            self._with_more.add(consumer.key)
        return raws

    def give_back(self, replies: list[bytes]) -> None:
        """Nobody looks at these deliveries; without waiting, and lost with the connection, in
        which case they come back when their deadline has passed."""
        if replies:
            back = self.giving_back(replies)
            self._wire.post([publish_operation(to, b"", b"", verb) for to, verb in back])

    async def write_acks(self, acks: list[tuple[bytes, bytes]]) -> None:
        """Answer deliveries by their ack subjects, without waiting for the server."""
        await self._wire.write([b"PUB " + to + _sized(verb) for to, verb in acks])

    async def write_acks_and_wait(self, acks: list[tuple[bytes, bytes]]) -> None:
        """The same, until the server has confirmed all of them."""
        with self._inbox() as inbox:
            await self._request(inbox, acks, expected=len(acks))
            code, text = inbox.status
            if code:
                raise UnavailableError(
                    f"The NATS server did not confirm the acks ({code} {text}); the subscription "
                    "may be gone"
                )

    async def acks_are_counted(self, consumer: Consumer) -> None:
        """Until the server has counted what was answered before: it reads answers in a line of
        their own, which questions overtake."""
        # About a message that never was, so that it changes nothing; and confirmed in its turn.
        subject = f"$JS.ACK.{consumer.stream}.{consumer.name}.1.{_NEVER}.{_NEVER}.1.0"
        await self.write_acks_and_wait([(subject.encode(), b"+WPI")])

    async def read(self, subject: str, request: object, expected: int) -> tuple[list[Raw], int]:
        """Ask for messages that nobody has to answer; returns them, and the status that ended them,
        or 0 when as many came as were `expected`."""
        body = encode_request(request)
        with self._inbox(lent=False) as inbox:
            await self._request(inbox, [(subject.encode(), body)], expected=expected)
            return inbox.messages, inbox.status[0]

    async def _ask(
        self,
        inbox: Inbox,
        consumer: Consumer,
        batch: int,
        max_bytes: int,
        wait: float,
        *,
        one_shot: bool = True,
    ) -> list[Raw]:
        request: dict[str, object] = {"batch": batch}
        if one_shot:
            request["no_wait"] = True
        if wait:
            request["expires"] = int(wait * NS)
        signs = 0 < 2 * inbox.heartbeat <= wait  # The server takes no others.
        if signs:
            request["idle_heartbeat"] = int(inbox.heartbeat * NS)
        if max_bytes:
            request["max_bytes"] = max_bytes
        if consumer.group:
            request["group"] = consumer.group
        subject = next_message(consumer.stream, consumer.name).encode()
        body = encode_request(request)
        try:
            await self._request(inbox, [(subject, body)], expected=batch, wait=wait, signs=signs)
        except asyncio.CancelledError:
            await self._see_off(subject, inbox)
            raise
        code, text = inbox.status
        if inbox.messages or inbox.is_taken:
            return inbox.messages
        if code == CONFLICT and "Exceeds MaxBytes" in text:
            # A message larger than the room asked for: it must get through some time.
            return await self._ask_for_large(inbox, consumer, wait)
        if code == TIMED_OUT and text == _OTHERS_WAIT and wait and one_shot:
            # There are messages, and no more may be unsettled: then the server refuses to let such
            # a request wait. A plain one waits its turn.
            return await self._ask(inbox, consumer, 1, max_bytes, wait, one_shot=False)
        if code == CONFLICT and text == _NO_ROOM_TO_WAIT:
            # Others wait already, as many as may. One of them gets what comes.
            await asyncio.sleep(min(wait, _ASK_AGAIN_AFTER))
            return []
        failure = ended_by(consumer, code, text)
        if failure is not None:
            raise failure
        if inbox.hand_over is not None and (code == NO_MESSAGES or text == _TIME_IS_UP):
            inbox.is_caught_up = True
        return []

    async def _ask_for_large(self, inbox: Inbox, consumer: Consumer, wait: float) -> list[Raw]:
        """One message, however large it is. Requests beside this one have met the same message:
        they end when it has come, and whoever made them asks again."""
        going = self._large.get(consumer.key)
        if going is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await going.wait()
            return []
        going = self._large[consumer.key] = asyncio.Event()
        try:
            async with self.allowance.turn():
                # Not with a request that the server refuses because others wait.
                wait = min(wait, _ASK_AGAIN_AFTER)
                return await self._ask(inbox, consumer, 1, 0, wait, one_shot=not wait)
        finally:
            del self._large[consumer.key]
            going.set()

    async def _request(
        self,
        inbox: Inbox,
        parts: list[tuple[bytes, bytes]],
        *,
        expected: int,
        wait: float = 0.0,
        signs: bool = False,
    ) -> None:
        """Send payloads to subjects and wait for `expected` answers or the status that ends them,
        the server's timeout beyond the `wait` that was asked for; or, if it was asked for `signs`,
        until there are none."""
        done = inbox.expect(expected)
        inbox.asked = parts
        await self._wire.write(
            [publish_operation(to, inbox.subject, b"", payload) for to, payload in parts]
        )
        timer: asyncio.TimerHandle | None = None
        if signs:
            inbox.watch_for_signs()
        else:
            # Not `asyncio.timeout`, which costs a message that comes alone a tenth of its way.
            seconds = wait + self._connection.options.timeout
            timer = asyncio.get_running_loop().call_later(seconds, _give_up, inbox, seconds)
        try:
            await done
        finally:
            if timer is not None:
                timer.cancel()
            inbox.stop_watching()

    @contextmanager
    def _inbox(self, *, lent: bool = True) -> Iterator[Inbox]:
        """An inbox for one exchange; used again when that ends well, abandoned when it does not.
        `lent`: what comes is given back if nobody takes it."""
        inbox = self._take_inbox()
        inbox.lent = lent
        # Not when it is left: what comes late is still that request's.
        inbox.heartbeat = inbox.late_after = 0.0
        try:
            yield inbox
        except BaseException:
            self._abandon(inbox)
            raise
        self._busy.discard(inbox)
        inbox.quiet_after = inbox.hand_over = inbox.on_sign = None
        if inbox.is_cut_short:
            inbox.leave()  # As when it is abandoned, but that what came is taken.
        else:
            self._idle.append(inbox)

    def _take_inbox(self) -> Inbox:
        self._wire.check_connected()
        inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            name = f"{self._prefix}.{next(self._names)}"
            inbox = Inbox(name)
            inbox.afterwards = self._wire.afterwards
            inbox.on_stray = lambda reply: self._stray(inbox, reply)
            inbox.unsubscribe = self._wire.subscribe(f"{name}.*", inbox.receive)
        self._busy.add(inbox)
        return inbox

    def _stray(self, inbox: Inbox, reply: bytes) -> None:
        """It came when nobody waited any more."""
        if inbox.lent and not inbox.is_late:
            self.give_back([reply])

    async def _see_off(self, subject: bytes, inbox: Inbox) -> None:
        """Withdraw a request. Whoever is cancelled once more, as when a program ends, waits no
        longer, and it is withdrawn all the same."""
        # Owned here: `close` waits for it.
        leaving = asyncio.get_running_loop().create_task(self._withdraw(subject, inbox))
        self._seen_off[inbox] = leaving
        leaving.add_done_callback(lambda _: self._has_left(inbox))
        await asyncio.shield(leaving)

    def _has_left(self, inbox: Inbox) -> None:
        del self._seen_off[inbox]
        # Nothing, unless that was cancelled before it had begun.
        self.give_back(self._leave(inbox))

    async def close(self) -> None:
        """Until every request that was given up is withdrawn, and what came for it given back."""
        if self._seen_off:
            await asyncio.wait(self._seen_off.values(), timeout=2 * LEAVES_WITHIN)
        await self._wire.hear_all()

    async def _withdraw(self, subject: bytes, inbox: Inbox) -> None:
        """Nobody waits for what was asked of `subject` any more: see to it that the server has
        nothing more for it, and give back what came. Not before all that are cancelled together
        have left, or it would be sent to them."""
        leaving = self._leaving.setdefault(subject, _Leaving())
        leaving.inboxes += 1
        try:
            inbox.gather()
            await asyncio.sleep(0)  # All of those have begun to leave.
            self._let_nobody_join(subject, leaving)
            await self._gather(inbox)
        finally:
            leaving.replies += self._leave(inbox)
            leaving.inboxes -= 1
            if not leaving.inboxes:
                self._let_nobody_join(subject, leaving)
                self.give_back(leaving.replies)
        await self._wire.hear_all()

    def _let_nobody_join(self, subject: bytes, leaving: _Leaving) -> None:
        """Those who come all the time must not keep it from what came for the first."""
        if self._leaving.get(subject) is leaving:
            del self._leaving[subject]

    async def _gather(self, inbox: Inbox) -> None:
        """Until nothing follows what the server is sending: of what it sends when there is no
        interest nobody hears, and it has cost an attempt."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEAVES_WITHIN
        while inbox.is_being_answered and self._wire.connected and loop.time() < until:
            came = inbox.came
            await asyncio.wait([inbox.gather()], timeout=QUIET)
            if inbox.came == came:
                break

    def _abandon(self, inbox: Inbox) -> None:
        """A request that was given up: what still comes for it is given back."""
        self._busy.discard(inbox)
        if inbox not in self._seen_off:
            self.give_back(self._leave(inbox))

    def _leave(self, inbox: Inbox) -> list[bytes]:
        """Without our interest the server drops the request instead of answering it. Returns what
        came for it and is to be given back."""
        if inbox.done is not None and not inbox.done.done():
            inbox.done.cancel()
        inbox.leave()
        raws, inbox.messages = inbox.messages, []
        is_ours = inbox.lent and not inbox.is_late
        return [reply for _, reply, _, _ in raws if reply and is_ours]

    def denied(self, subject: str) -> None:
        """The server refused a subject that we asked: say so to those who wait for its answer."""
        refused = subject.encode()
        for inbox in list(self._busy):
            if any(to == refused for to, _ in inbox.asked):
                inbox.fail(denied(subject))

    def _on_loss(self) -> None:
        error = self._wire.loss()
        for inbox in list(self._busy):
            inbox.fail(error)


# Of so many consumers it is known that they had more; nobody says when one was deleted. One that is
# forgotten is asked for one message once more.
_REMEMBERED = 10_000
_TIME_IS_UP = "Request Timeout"
_OTHERS_WAIT = "Requests Pending"
_NO_ROOM_TO_WAIT = "Exceeded MaxWaiting"
_ASK_AGAIN_AFTER = 0.25
# Of a consumer with such a limit, requests side by side are to leave room for each other; and what
# has come for one is handed over when nothing followed for so long.
_SIDE_BY_SIDE = 5
_NEVER = 2**62
# So often the server says of a plain request that it still has it.
_SIGN_OF_LIFE = 5.0
# After so many, half of the ack deadline has passed, and what comes is left to who gets it next.
_LATE = 4
# The request has ended and nothing else: whoever asks again is answered by the next leader.
_PASSING = ("Batch Completed", "Leadership Change", "Server Shutdown")


# Few answers are given again and again.
@lru_cache(maxsize=1024)
def _sized(payload: bytes) -> bytes:
    return b" %d\r\n%b\r\n" % (len(payload), payload)


def _give_up(inbox: Inbox, seconds: float) -> None:
    inbox.fail(no_answer(seconds))


def _naks(replies: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [(reply, b"-NAK") for reply in replies]


def ended_by(consumer: Consumer, code: int, text: str) -> PenstockError | None:
    """What the status that ended a request means; None: ask again."""
    if code in (0, NO_MESSAGES, TIMED_OUT) or (code == CONFLICT and text in _PASSING):
        return None
    name = consumer.config.name
    if code == NO_RESPONDERS or "Consumer Deleted" in text or "Stream Deleted" in text:
        return SubscriptionNotFoundError(
            name, f"it or its topic {consumer.config.topic!r} was deleted; create it again"
        )
    return odd_status(f"Subscription {name!r}", code, text)
