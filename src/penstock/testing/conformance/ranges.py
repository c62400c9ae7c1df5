"""The behaviours of every `RangeLog`, for brokers that offer one.

class TestMyRanges(RangeLogConformance):
    @pytest.fixture
    def harness(self):
        return RangeHarness("mybroker://…")
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator, Sequence

import pytest

from penstock import Draft, Receipt
from penstock.broker import Extent, RangeLog
from penstock.columns import Columns
from penstock.config import TopicConfig
from penstock.connect import connect, open_ranges
from penstock.errors import FailedPreconditionError, NotFoundError

_numbers = itertools.count(1)
# More than a broker hands over at once, and enough to choose another way for.
_MANY = 12_000


class RangeHarness:
    """One broker under test, by its address. Override what it does another way."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.run_id = secrets.token_hex(3)

    def open(self) -> RangeLog:
        return open_ranges(self.url)

    def name(self, base: str) -> str:
        return f"{base}-{self.run_id}-{next(_numbers)}"

    def create(self, topic: str) -> None:
        async def run() -> None:
            broker = await connect(self.url)
            try:
                await broker.admin.create_topic(TopicConfig(name=topic))
            finally:
                await broker.aclose()

        asyncio.run(run())

    def delete(self, topic: str) -> None:
        async def run() -> None:
            broker = await connect(self.url)
            try:
                await broker.admin.delete_topic(topic)
            finally:
                await broker.aclose()

        asyncio.run(run())

    def publish(self, topic: str, drafts: Sequence[Draft]) -> None:
        async def run() -> None:
            broker = await connect(self.url)
            try:
                answers = await broker.publish(topic, drafts)
            finally:
                await broker.aclose()
            assert all(isinstance(answer, Receipt) for answer in answers)

        asyncio.run(run())


class RangeScene:
    """A range log, and topics with messages in them."""

    def __init__(self, harness: RangeHarness, log: RangeLog) -> None:
        self._harness = harness
        self.log = log

    def topic(self, *drafts: Draft) -> str:
        topic = self._harness.name("topic")
        self._harness.create(topic)
        self.publish(topic, *drafts)
        return topic

    def publish(self, topic: str, *drafts: Draft) -> None:
        if drafts:
            self._harness.publish(topic, drafts)

    def name(self, base: str) -> str:
        return self._harness.name(base)

    def make_anew(self, topic: str) -> None:
        self._harness.delete(topic)
        self._harness.create(topic)

    def all(self, topic: str, filter: str = "", *, headers: bool = False) -> Columns:
        extent = self.log.extent(topic)
        return self.read(topic, extent.first, extent.last, filter, headers=headers)

    def read(
        self, topic: str, first: int, last: int, filter: str = "", *, headers: bool = False
    ) -> Columns:
        found = Columns()
        for columns in self.log.read(topic, first, last, filter, headers=headers):
            assert columns, "every batch has a message"
            found.extend(columns)
        assert found.sequences == sorted(set(found.sequences)), "in order, and each once"
        return found


def numbered(count: int, **options: str) -> list[Draft]:
    return [Draft.of(b"%d" % n, dict(options)) for n in range(count)]


def numbers(columns: Columns) -> list[int]:
    return [int(data) for data in columns.data]


class RangeLogConformance:
    """Subclass it and give it a `harness` fixture."""

    @pytest.fixture
    def scene(self, harness: RangeHarness) -> Iterator[RangeScene]:
        log = harness.open()
        yield RangeScene(harness, log)
        log.close()

    def test_an_extent_says_what_a_topic_holds(self, scene: RangeScene) -> None:
        topic = scene.topic()
        empty = scene.log.extent(topic)
        assert (empty.end, empty.last + 1) == (empty.first, empty.first)
        scene.publish(topic, *numbered(3))
        full = scene.log.extent(topic)
        assert (full.first, full.last, full.end) == (empty.first, empty.last + 3, empty.end + 3)
        assert full.identity == empty.identity
        assert not full.is_queue
        assert not full.is_compacted

    def test_a_topic_that_was_made_anew_is_another(self, scene: RangeScene) -> None:
        topic = scene.topic(*numbered(2))
        before = scene.log.extent(topic)
        if not before.identity:
            pytest.skip("the broker does not say which topic it is")
        scene.make_anew(topic)
        scene.publish(topic, *numbered(5))
        assert scene.log.extent(topic).identity != before.identity

    def test_any_range_is_read_in_order(self, scene: RangeScene) -> None:
        topic = scene.topic(*numbered(_MANY))
        extent = scene.log.extent(topic)
        everything = scene.all(topic)
        assert numbers(everything) == list(range(_MANY))
        assert everything.sequences == list(range(extent.first, extent.end))
        middle = scene.read(topic, extent.first + 990, extent.first + 3009)
        assert numbers(middle) == list(range(990, 3010))
        assert numbers(scene.read(topic, extent.last, extent.last)) == [_MANY - 1]
        assert not scene.read(topic, extent.end, extent.end + 10)
        assert not scene.read(topic, extent.first + 1, extent.first)

    @pytest.mark.parametrize("count", [1, 1500])
    def test_columns_say_what_was_published(self, scene: RangeScene, count: int) -> None:
        attributes = {"a b": "é", "stage": "new"}
        drafts = [Draft.of(b"x", attributes, "ann", f"id-{n}") for n in range(count)]
        topic = scene.topic(Draft.of(b"plain", message_id="id"), *drafts)
        found = scene.all(topic)
        assert found.ids == [b"id", *(b"id-%d" % n for n in range(count))]
        assert found.subjects == [topic.encode()] * (count + 1)
        assert found.data == [b"plain", *[b"x"] * count]
        assert found.keys == dict.fromkeys(range(1, count + 1), "ann")
        assert found.attributes == dict.fromkeys(range(1, count + 1), attributes)
        assert found.headers == {}
        assert len(found.published_us) == count + 1
        assert found.published_us == sorted(found.published_us)

    @pytest.mark.parametrize("count", [1, 1500])
    def test_headers_come_when_asked_for(self, scene: RangeScene, count: int) -> None:
        topic = scene.topic(*numbered(count, stage="new"))
        found = scene.all(topic, headers=True)
        assert [found.headers[row].get("stage") for row in range(count)] == ["new"] * count
        assert found.attributes == {row: {"stage": "new"} for row in range(count)}
        assert numbers(found) == list(range(count))

    @pytest.mark.parametrize("count", [10, 1500])
    def test_only_what_a_filter_lets_through_is_read(self, scene: RangeScene, count: int) -> None:
        drafts = [Draft.of(b"%d" % n, {"kind": "abc"[n % 3]}) for n in range(count)]
        topic = scene.topic(*drafts)
        found = scene.all(topic, 'attributes.kind = "b"')
        assert numbers(found) == [n for n in range(count) if n % 3 == 1]
        assert not scene.all(topic, "attributes:other")

    def test_what_was_purged_is_gone_and_the_rest_is_not(self, scene: RangeScene) -> None:
        topic = scene.topic(*numbered(10))
        extent = scene.log.extent(topic)
        for _ in range(2):
            scene.log.purge(topic, extent.first + 4)
            after = scene.log.extent(topic)
            assert (after.first, after.last) == (extent.first + 4, extent.last)
        assert numbers(scene.read(topic, extent.first, extent.last)) == [4, 5, 6, 7, 8, 9]
        scene.log.purge(topic, extent.end)
        assert scene.log.extent(topic).end == extent.end
        assert not scene.read(topic, extent.first, extent.last)

    def test_a_moment_is_found_in_a_topic(self, scene: RangeScene) -> None:
        topic = scene.topic(*numbered(5))
        extent = scene.log.extent(topic)
        moments = scene.all(topic).published_us
        assert scene.log.first_since(topic, 0) == extent.first
        assert scene.log.first_since(topic, moments[0]) == extent.first
        later = scene.log.first_since(topic, moments[-1] + 1)
        assert later is None or moments[later - extent.first] >= moments[-1]
        assert scene.log.first_since(topic, moments[-1] + 3_600_000_000) is None

    def test_a_topic_that_is_not_there_is_said(self, scene: RangeScene) -> None:
        missing = scene.name("missing")
        for call in (
            lambda: scene.log.extent(missing),
            lambda: list(scene.log.read(missing, 1, 10)),
            lambda: list(scene.log.read(missing, 1, 10_000)),
            lambda: scene.log.first_since(missing, 0),
            lambda: scene.log.purge(missing, 2),
        ):
            with pytest.raises(NotFoundError, match=missing):
                call()
        # An error leaves it usable.
        assert numbers(scene.all(scene.topic(*numbered(3)))) == [0, 1, 2]

    def test_reading_may_be_left_half_way(self, scene: RangeScene) -> None:
        topic = scene.topic(*numbered(_MANY))
        extent = scene.log.extent(topic)
        reading = scene.log.read(topic, extent.first, extent.last)
        first = next(reading)
        del reading
        assert len(first) < _MANY
        rest = scene.read(topic, first.sequences[-1] + 1, extent.last)
        assert numbers(first) + numbers(rest) == list(range(_MANY))

    def test_a_mark_is_replaced_only_by_who_knows_it(self, scene: RangeScene) -> None:
        log, marks = scene.log, scene.name("marks")
        assert log.mark(marks, "query.1") is None
        first = log.set_mark(marks, "query.1", b"one", replaces=0)
        assert log.mark(marks, "query.1") == (b"one", first)
        assert log.mark(marks, "query.2") is None
        for stale in (0, first + 1):
            with pytest.raises(FailedPreconditionError):
                log.set_mark(marks, "query.1", b"other", replaces=stale)
        other = log.set_mark(marks, "query.2", b"", replaces=0)
        assert log.mark(marks, "query.2") == (b"", other)
        second = log.set_mark(marks, "query.1", b"two", replaces=first)
        assert log.mark(marks, "query.1") == (b"two", second)
        with pytest.raises(FailedPreconditionError):
            log.set_mark(marks, "query.1", b"other", replaces=first)

    def test_it_may_be_closed_twice_and_used_again(self, scene: RangeScene) -> None:
        topic = scene.topic(*numbered(3))
        scene.log.close()
        scene.log.close()
        assert isinstance(scene.log.extent(topic), Extent)
        assert numbers(scene.all(topic)) == [0, 1, 2]
