"""A range log in memory that fails on purpose, for what stands on the port."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from penstock.broker import Extent, Mark
from penstock.columns import Columns
from penstock.errors import FailedPreconditionError, PenstockError, TopicNotFoundError
from penstock.message import Draft
from penstock.rules.filters import parse_filter
from penstock.testing.conformance.ranges import RangeHarness

WAYS = {"directly": 10**9, "through a consumer": 1}
"""How JetStream reads a range, by the least length that is worth a consumer."""


def read_all_ranges(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Read every range this way, however long it is."""
    monkeypatch.setattr("penstock.brokers.nats.sync.ranges.WORTH_A_CONSUMER", WAYS[way])


_identities = itertools.count(1)
_BATCH = 1000


class FakeTopic:
    """Messages by sequence. Set what it says of itself."""

    def __init__(self) -> None:
        self.identity = str(next(_identities))
        self.messages: dict[int, tuple[int, Draft]] = {}
        self.last = 0
        self.first = 1
        self.is_queue = self.is_compacted = False

    def add(self, draft: Draft) -> None:
        self.last += 1
        self.messages[self.last] = (self.last * 1_000_000, draft)


class FakeRangeLog:
    """`failures` are raised by the next calls, one each; a reading call raises after its first
    batch if `half_way`."""

    def __init__(self, *failures: PenstockError, half_way: bool = False) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.marks: dict[tuple[str, str], Mark] = {}
        self.failures = list(failures)
        self.half_way = half_way
        self.calls: list[str] = []
        self.lost_answers = 0
        self.closed = 0

    def fill(self, topic: str, count: int, **attributes: str) -> FakeTopic:
        found = self.topics.setdefault(topic, FakeTopic())
        for _ in range(count):
            found.add(Draft(b"%d" % (found.last + 1), dict(attributes)))
        return found

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failures:
            raise self.failures.pop(0)

    def _topic(self, topic: str) -> FakeTopic:
        found = self.topics.get(topic)
        if found is None:
            raise TopicNotFoundError(topic)
        return found

    def extent(self, topic: str) -> Extent:
        self._called("extent")
        found = self._topic(topic)
        return Extent(
            found.first, found.last, found.identity, 10.0, found.is_queue, found.is_compacted
        )

    def first_since(self, topic: str, moment_us: int) -> int | None:
        self._called("first_since")
        found = self._topic(topic).messages
        return next((at for at, (when, _) in found.items() if when >= moment_us), None)

    def read(
        self, topic: str, first: int, last: int, filter: str = "", *, headers: bool = False
    ) -> Iterator[Columns]:
        if not self.half_way:
            self._called(f"read {first}")
        matches = parse_filter(filter).matches if filter else None
        messages = self._topic(topic).messages
        wanted = [at for at in messages if first <= at <= last]
        for begin in range(0, len(wanted), _BATCH):
            columns = Columns()
            for row, at in enumerate(wanted[begin : begin + _BATCH]):
                _add(columns, row, topic, at, *messages[at], headers)
            found = columns.matching(matches) if matches is not None else columns
            if found:
                yield found
            if self.half_way:
                self._called(f"read {first}")

    def purge(self, topic: str, before: int) -> None:
        self._called(f"purge {topic} {before}")
        found = self._topic(topic)
        found.first = max(found.first, min(before, found.last + 1))
        found.messages = {at: kept for at, kept in found.messages.items() if at >= found.first}

    def mark(self, topic: str, name: str) -> Mark | None:
        self._called("mark")
        return self.marks.get((topic, name))

    def set_mark(self, topic: str, name: str, data: bytes, *, replaces: int) -> int:
        self._called("set_mark")
        found = self.marks.get((topic, name))
        if (found.version if found is not None else 0) != replaces:
            raise FailedPreconditionError("another version is there")
        made = Mark(data, max((mark.version for mark in self.marks.values()), default=0) + 1)
        self.marks[topic, name] = made
        return made.version

    def close(self) -> None:
        self.closed += 1


def _add(
    columns: Columns, row: int, topic: str, at: int, when: int, draft: Draft, headers: bool
) -> None:
    columns.sequences.append(at)
    columns.ids.append((draft.message_id or f"{topic}-{at}").encode())
    columns.subjects.append((draft.subject or topic).encode())
    columns.published_us.append(when)
    columns.data.append(draft.data)
    if draft.ordering_key:
        columns.keys[row] = draft.ordering_key
    if draft.attributes:
        columns.attributes[row] = dict(draft.attributes)
        if headers:
            columns.headers[row] = dict(draft.attributes)


class FakeHarness(RangeHarness):
    """Shows that the fake keeps to the port."""

    def __init__(self) -> None:
        super().__init__("fake://")
        self.log = FakeRangeLog()

    def open(self) -> FakeRangeLog:
        return self.log

    def create(self, topic: str) -> None:
        self.log.topics[topic] = FakeTopic()

    def delete(self, topic: str) -> None:
        del self.log.topics[topic]

    def publish(self, topic: str, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self.log.topics[topic].add(draft)
