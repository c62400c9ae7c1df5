"""Publishing: pipelined, or as atomic batches where the server syncs every write."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby, repeat
from math import inf
from operator import attrgetter

from penstock.batching import GroupCommit
from penstock.brokers.nats.aio.calls import STORED, Call, Operation, written
from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.reply_names import ReplyNames
from penstock.brokers.nats.catalogue import Catalogue, Routes
from penstock.brokers.nats.protocol.errors import denied
from penstock.brokers.nats.protocol.headers import (
    HEADER_BLOCK,
    MAX_HEADERS,
    NO_RESPONDERS,
    check_subject,
    encode_header,
    status_of,
    stores,
)
from penstock.brokers.nats.protocol.records import unnamed
from penstock.brokers.nats.protocol.requests import decode_ack, publish_operation, stored
from penstock.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    TopicNotFoundError,
)
from penstock.message import Draft, PublishFault, Receipt
from penstock.optional_verbs import OnSent
from penstock.rules.standing_still import time_to_read
from penstock.rules.subjects import routed_subject

# JetStream takes at most 1000 messages in an atomic batch; the bytes are bounded so that one batch
# does not hold up the connection.
_BATCH_MESSAGES = 1000
_BATCH_BYTES = 4 * 2**20
_QUIET_TURNS = 10
# What an atomic batch adds to the headers of a message, generously.
_BATCH_HEADERS = 160

_subject, _data = attrgetter("subject"), attrgetter("data")


class Publishing:
    """The publishing half of a connection. Every draft is answered for itself."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self.wire = connection.wire
        self._prefix = f"{connection.options.inbox_prefix}.{secrets.token_hex(8)}"
        self._reply = f" {self._prefix}.".encode()
        self._calls: dict[bytes, Call] = {}
        self._names = ReplyNames()
        self._watching: asyncio.TimerHandle | None = None
        self._at = len(self._prefix) + 1
        self._committers: dict[str, _Committer] = {}
        self.wire.on_loss(self._on_loss)

    @property
    def max_payload(self) -> int:
        return self.wire.max_payload

    def open(self) -> None:
        self.wire.subscribe_runs(self._prefix, STORED, self._on_stored, self._on_answer)

    def denied(self, subject: str) -> None:
        """The server refused a subject we published on: say so to those who did."""
        error = denied(f"it has no permission to publish to {subject!r}")
        refused = subject.encode()
        for call in list(self._calls.values()):
            call.refuse(refused, error)

    async def publish(
        self, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None = None
    ) -> Sequence[Receipt | PublishFault]:
        if not self.wire.is_ready:
            await self.wire.until_connected()
        try:
            routes = self._catalogue.known_routes(topic) or await self._catalogue.routes(topic)
        except TopicNotFoundError as error:
            return [PublishFault(error)] * len(drafts)
        answers: list[Receipt | PublishFault | None] = [None] * len(drafts)
        operations = self._plain(topic, drafts, routes)
        if operations is None:
            operations = await self._one_by_one(topic, drafts, routes, answers)
        if operations:
            if self._connection.options.group_commit:
                committer = self._committers.get(topic)
                if committer is None:
                    committer = self._committers[topic] = _Committer(self, topic)
                await committer.commit(drafts, operations, answers, on_sent)
            else:
                if not self.wire.is_ready:  # Any more: what is known of a topic is asked for.
                    await self.wire.until_connected()
                # Of the server too: another may be there than the one that told of the topic.
                alone = routes.alone and bool(self.wire.lone_server)
                await self.pipeline(topic, drafts, operations, answers, on_sent, alone=alone)
        return answers  # type: ignore[return-value]

    def _plain(self, topic: str, drafts: Sequence[Draft], routes: Routes) -> list[Operation] | None:
        """What to send of drafts that all go to the topic's own subject, with nothing wrong about
        them, as nearly all do: they are looked at together. None when these are not such."""
        if routes.subjects or routes.routed or any(map(_subject, drafts)):
            return None
        try:
            headers = [*map(encode_header, drafts)]
        except InvalidArgumentError:
            return None
        largest = max(map(len, headers))
        whole = largest + max(map(len, map(_data, drafts)))
        if largest > MAX_HEADERS or whole > self.wire.max_payload:
            return None
        subject = topic.encode()
        return [*zip(range(len(headers)), repeat(subject), headers)]

    async def _one_by_one(
        self,
        topic: str,
        drafts: Sequence[Draft],
        routes: Routes,
        answers: list[Receipt | PublishFault | None],
    ) -> list[Operation]:
        """What to send; drafts that cannot be sent are answered."""
        operations: list[Operation] = []
        limit = self.wire.max_payload
        asked_again = False
        for at, draft in enumerate(drafts):
            try:
                subject = topic.encode()
                if draft.subject or routes.subjects:
                    wanted = draft.subject or topic
                    if not asked_again and not stores(topic, wanted, routes.subjects):
                        # Its subjects may have changed since we asked.
                        asked_again = True
                        routes = await self._catalogue.routes_again(topic)
                    subject = check_subject(topic, wanted, routes.subjects)
                elif routes.routed:
                    subject = routed_subject(topic, routes.routed, draft.attributes).encode()
                header = encode_header(draft)
                size = len(header)
                if size > MAX_HEADERS or size + len(draft.data) > limit:
                    raise _too_large(size, len(draft.data), limit)
            except InvalidArgumentError as error:
                answers[at] = PublishFault(error)
            else:
                operations.append((at, subject, header))
        return operations

    async def pipeline(
        self,
        topic: str,
        drafts: Sequence[Draft],
        operations: list[Operation],
        answers: list[Receipt | PublishFault | None],
        on_sent: OnSent | None,
        *,
        alone: bool = False,
    ) -> None:
        """Send each by itself, all at once, and wait for all acks. `alone`: the server is in no
        cluster, and answers each once."""
        name = self._names.next() if alone else self._names.new()
        parts = written(b"%b%b." % (self._reply, name), drafts, operations)
        # What can be done while the server works is: no answer is read before the first `await`.
        sent = len(parts) == 1 and self.wire.write_now(parts[0])
        call = self._calls[name] = Call(operations, len(operations), len(drafts))
        tell = None if on_sent is None else partial(on_sent, [at for at, _, _ in operations])
        error = await self._send(call, name, [] if sent else parts, tell)
        got = call.answers
        plain = True
        for at, _, _ in operations:
            answer, draft = got[at], drafts[at]
            if type(answer) is int:
                answers[at] = Receipt(draft.message_id or unnamed(topic, answer), answer)
            else:
                plain = False
                answers[at] = self._receipt(topic, draft, answer, error)  # type: ignore[arg-type]
        if call.repeated:
            self._names.doubt()
        elif alone and plain:
            self._names.answered(name, asyncio.get_running_loop().time())

    async def _send(
        self, call: Call, name: bytes, parts: list[bytes], tell: Callable[[], None] | None
    ) -> PenstockError:
        """Write what is not written yet, `tell` that it is being sent, and wait; returns what to
        say of those that were not answered."""
        self._watch(call)
        begun = False

        def on_piece() -> None:
            nonlocal begun
            if begun:
                self._prolong(call)
            elif tell is not None:
                tell()
            begun = True

        try:
            if parts:
                await self.wire.write(parts, on_piece)
            else:
                on_piece()
            await call.done
        except PenstockError as error:
            return error
        finally:
            del self._calls[name]
            if self.wire.closed:
                self._stop_watching()
        return InternalError("The NATS server did not answer")

    def _watch(self, call: Call) -> None:
        """See to it that the call ends though nobody answers. One timer for all: they have the
        same time."""
        self._prolong(call)
        if self._watching is None:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_at(call.until, self._give_up_late)

    def _prolong(self, call: Call) -> None:
        """A call has its whole time from here on."""
        call.until = asyncio.get_running_loop().time() + self._connection.options.timeout

    def _give_up_late(self) -> None:
        self._watching = None
        loop = asyncio.get_running_loop()
        now, calls = loop.time(), list(self._calls.values())
        for call in calls:
            more = 0.0 if call.spared else time_to_read(call.until, now)
            if more:
                call.spared, call.until = True, now + more
            elif call.until <= now:
                call.fail(_not_acknowledged(self._connection.options.timeout))
        later = min((call.until for call in calls if call.until > now), default=inf)
        if later < inf:
            self._watching = loop.call_at(later, self._give_up_late)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _receipt(
        self,
        topic: str,
        draft: Draft,
        answer: tuple[bytes, bytes] | PenstockError | None,
        otherwise: PenstockError,
    ) -> Receipt | PublishFault:
        if answer is None or isinstance(answer, PenstockError):
            return PublishFault(answer or otherwise)
        block, payload = answer
        ack = stored(topic, block, payload)
        if isinstance(ack, PenstockError):
            return PublishFault(ack)
        return Receipt(draft.message_id or unnamed(topic, ack.seq), ack.seq, ack.duplicate)

    def _on_answer(self, subject: bytes, _reply: bytes, block: bytes, payload: bytes) -> None:
        name, _, index = subject[self._at :].partition(b".")
        call = self._calls.get(name)
        if call is not None:
            call.answer(int(index), (block, payload))
        else:
            self._names.doubt()

    def _on_stored(self, run: list[bytes]) -> None:
        """Plain acks, a run of them: call, index and sequence of each. Those of a call mostly
        follow each other."""
        indexes, sequences = run[1::3], [*map(int, run[2::3])]
        first = 0
        for name, group in groupby(run[::3]):
            last = first + len([*group])
            call = self._calls.get(name)
            if call is not None:
                call.stored(indexes[first:last], sequences[first:last])
            else:
                self._names.doubt()
            first = last

    def _on_loss(self) -> None:
        self._names.doubt()
        error = self.wire.loss(
            "The connection to the NATS server was lost before it acknowledged; the message may "
            "or may not be stored"
        )
        for call in list(self._calls.values()):
            call.fail(error)
        self._stop_watching()

    # Atomic batches.

    async def atomic(
        self,
        topic: str,
        waiting: list[tuple[Draft, bytes, bytes]],
        tell: Callable[[], None] | None = None,
    ) -> list[Receipt | PublishFault] | None:
        """Store drafts with their subjects and headers, all or none; `tell` when they are sent.

        None when the server refused the batch as a whole.
        """
        name = self._names.new()
        call = self._calls[name] = Call(waiting, 1, 1, together=True)
        reply = b"%b.%b.0" % (self._prefix.encode(), name)
        batch = secrets.token_hex(8).encode()
        last = len(waiting)
        parts = []
        for number, (draft, subject, header) in enumerate(waiting, 1):
            end = b"Nats-Batch-Commit: 1\r\n\r\n" if number == last else b"\r\n"
            block = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n%b" % (
                header[:-2] or HEADER_BLOCK,
                batch,
                number,
                end,
            )
            answer_to = reply if number == last else b""
            parts.append(publish_operation(subject, answer_to, block, draft.data))
        error = await self._send(call, name, parts, tell)
        answer = call.answers[0]
        if isinstance(answer, PenstockError):
            return None  # One of them was refused: then none of them was stored.
        if answer is None:
            return [PublishFault(error)] * last
        if isinstance(answer, int):
            return None  # The ack of a lone message: the server knows no atomic batches.
        block, payload = answer
        if block:
            code, _ = status_of(block)
            if code == NO_RESPONDERS:
                return [PublishFault(TopicNotFoundError(topic))] * last
            return None
        ack = decode_ack(payload)
        if ack.error is not None or ack.count != last:
            return None
        first = ack.seq - last + 1
        return [
            Receipt(draft.message_id or unnamed(topic, first + n), first + n)
            for n, (draft, _, _) in enumerate(waiting)
        ]


def _not_acknowledged(seconds: float) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"The NATS server did not acknowledge within {seconds:g} s; the message may or may not "
        "be stored"
    )


def _too_large(header: int, payload: int, most: int) -> InvalidArgumentError:
    """What the server would refuse, or end the connection for."""
    if header > MAX_HEADERS:
        return InvalidArgumentError(
            f"Message with {header:,} bytes of headers (attributes, message id and ordering key) "
            f"has more of them than JetStream takes ({MAX_HEADERS:,}); put some into its data"
        )
    return InvalidArgumentError(
        f"Message of {payload:,} bytes with {header:,} bytes of headers is larger than the "
        f"NATS server takes ({most:,})"
    )


class _Committer:
    """Group commit for one topic: what waits while the server syncs goes out together.

    A batch that the server refuses, because one of its ids is a duplicate or one of its
    expectations fails, is sent again message by message.
    """

    def __init__(self, publishing: Publishing, topic: str) -> None:
        self._publishing = publishing
        self._topic = topic
        # The few turns of the loop that publishers need to come with more cost nothing beside a
        # sync to disk, and double what goes together.
        self._commits: GroupCommit[_Entry, None] = GroupCommit(
            self._commit,
            most=_BATCH_MESSAGES,
            most_bytes=_BATCH_BYTES,
            measure=lambda entry: (len(entry.operations), entry.size),
            quiet_turns=_QUIET_TURNS,
        )

    async def commit(
        self,
        drafts: Sequence[Draft],
        operations: list[Operation],
        answers: list[Receipt | PublishFault | None],
        on_sent: OnSent | None,
    ) -> None:
        wire = self._publishing.wire
        until = asyncio.get_running_loop().time() + wire.timeout
        parts = [
            _Entry(drafts, operations[at : at + _BATCH_MESSAGES], answers, on_sent, until)
            for at in range(0, len(operations), _BATCH_MESSAGES)
        ]
        failures = await asyncio.gather(*map(self._commits.ask, parts), return_exceptions=True)
        some_were_sent = None in failures
        for part, failure in zip(parts, failures, strict=True):
            if some_were_sent and isinstance(failure, PenstockError):
                for at, _, _ in part.operations:
                    answers[at] = PublishFault(failure)
            elif failure is not None:
                raise failure

    async def _commit(self, batch: Sequence[_Entry]) -> list[None]:
        wire = self._publishing.wire
        if not wire.is_ready:  # Any more: what is gathered waits for what is being stored.
            until = max(entry.until for entry in batch)
            await wire.until_connected(max(0.0, until - asyncio.get_running_loop().time()))
        flat = [(entry, *operation) for entry in batch for operation in entry.operations]
        outcome = None
        if len(flat) > 1 and not any(self._must_go_alone(entry) for entry in batch):
            waiting = [(entry.drafts[at], subject, header) for entry, at, subject, header in flat]
            tell = partial(_tell, batch)
            outcome = await self._publishing.atomic(self._topic, waiting, tell)
        if outcome is not None:
            for (entry, at, _, _), answer in zip(flat, outcome, strict=True):
                entry.answers[at] = answer
        else:
            await asyncio.gather(
                *(
                    self._publishing.pipeline(
                        self._topic, entry.drafts, entry.operations, entry.answers, entry.on_sent
                    )
                    for entry in batch
                )
            )
        return [None] * len(batch)

    def _must_go_alone(self, entry: _Entry) -> bool:
        """Expectations are about the message before; the largest have no room for a batch's
        headers."""
        most = self._publishing.max_payload - _BATCH_HEADERS
        return any(
            entry.drafts[at].expect is not None
            or len(header) + len(entry.drafts[at].data) > most
            or len(header) > MAX_HEADERS - _BATCH_HEADERS
            for at, _, header in entry.operations
        )


class _Entry:
    """A caller's drafts, or a batch's worth of them, waiting to be committed."""

    __slots__ = ("answers", "drafts", "on_sent", "operations", "size", "until")

    def __init__(
        self,
        drafts: Sequence[Draft],
        operations: list[Operation],
        answers: list[Receipt | PublishFault | None],
        on_sent: OnSent | None,
        until: float,
    ) -> None:
        self.drafts = drafts
        self.operations = operations
        self.answers = answers
        self.on_sent = on_sent
        self.until = until
        """When waiting for a connection ends."""
        self.size = sum(len(drafts[at].data) for at, _, _ in operations)


def _tell(batch: Sequence[_Entry]) -> None:
    """All of them were sent."""
    for entry in batch:
        if entry.on_sent is not None:
            entry.on_sent([at for at, _, _ in entry.operations])
