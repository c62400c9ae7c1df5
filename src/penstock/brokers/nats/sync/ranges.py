"""The range log of JetStream: ranges of streams in columns, for readers that block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.broker import Extent, Mark
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.configuration import (
    NoDirectReadsError,
    extent_of,
    keeps_by_limits,
    topic_config,
)
from penstock.brokers.nats.protocol.headers import encode_name
from penstock.brokers.nats.protocol.passing import WORTH_A_CONSUMER
from penstock.brokers.nats.sync.connection import LazyConnection
from penstock.brokers.nats.sync.direct import DirectReader
from penstock.brokers.nats.sync.marks import get_mark, set_mark
from penstock.brokers.nats.sync.passing_consumer import PassingConsumer
from penstock.columns import Columns, merged
from penstock.errors import PermissionDeniedError, TopicNotFoundError
from penstock.rules.filters import Filter, parse_filter
from penstock.rules.subjects import subject_filters

# Each subject of a filter is a read of its own; beyond a few, reading everything is cheaper.
_MOST_SUBJECTS = 4


class NatsRangeLog:
    """JetStream behind the port `RangeLog`.

    `options` is asked for the address each time a connection is made: it may have changed.
    """

    def __init__(self, options: Callable[[], NatsOptions]) -> None:
        self._link = LazyConnection(options)

    def extent(self, topic: str) -> Extent:
        return extent_of(DirectReader(self._link, topic).info())

    def first_since(self, topic: str, moment_us: int) -> int | None:
        return DirectReader(self._link, topic).first_since(moment_us)

    def read(
        self, topic: str, first: int, last: int, filter: str = "", *, headers: bool = False
    ) -> Iterator[Columns]:
        first = max(first, 1)
        if not filter:
            return self._read(topic, first, last, None, headers)
        tree = parse_filter(filter)
        found = self._read(topic, first, last, tree, headers)
        # The server may have let more through.
        return (kept for columns in found if (kept := columns.matching(tree.matches)))

    def purge(self, topic: str, before: int) -> None:
        with self._link.use() as connection:
            connection.request(
                f"STREAM.PURGE.{encode_name(topic)}",
                {"seq": before},
                missing=lambda: TopicNotFoundError(topic),
            )

    def mark(self, topic: str, name: str) -> Mark | None:
        return get_mark(self._link, topic, name)

    def set_mark(self, topic: str, name: str, data: bytes, *, replaces: int) -> int:
        return set_mark(self._link, topic, name, data, replaces)

    def close(self) -> None:
        self._link.close()

    def _read(
        self, topic: str, first: int, last: int, tree: Filter | None, headers: bool
    ) -> Iterator[Columns]:
        direct = DirectReader(self._link, topic, headers=headers)
        is_long = last - first + 1 >= WORTH_A_CONSUMER
        info = direct.info() if is_long or tree is not None else {}
        subjects = narrowed(topic, info, tree) if tree is not None else ()
        passing = PassingConsumer(self._link, topic, subjects, headers=headers)
        if is_long and keeps_by_limits(info):
            try:
                for columns in _checked(passing, direct, first, last, subjects):
                    first = columns.sequences[-1] + 1
                    yield columns
            except PermissionDeniedError:
                pass  # This user may read and make no consumers.
            else:
                return
        try:
            if len(subjects) > 1:
                yield from merged([direct.read(first, last, subject) for subject in subjects])
            else:
                yield from direct.read(first, last, *subjects)
        except NoDirectReadsError:
            # Said of the first read, so nothing was given yet.
            if not keeps_by_limits(direct.info()):
                raise
            yield from _checked(passing, direct, first, last, subjects)


def _checked(
    passing: PassingConsumer, direct: DirectReader, first: int, last: int, subjects: Sequence[str]
) -> Iterator[Columns]:
    """What a consumer sends. It is on one of the replicas, which may be behind; where its word is
    the end of the range, the leader is asked."""
    for columns in passing.read(first, last):
        first = columns.sequences[-1] + 1
        yield columns
    direct.check_end(first, last, subjects)


def narrowed(topic: str, info: dict[str, Any], tree: Filter) -> tuple[str, ...]:
    """The few subjects on which all that a filter lets through is stored; none: anywhere."""
    found = subject_filters(topic, topic_config(info).routed_attributes, tree)
    return tuple(found) if len(found) <= _MOST_SUBJECTS else ()
