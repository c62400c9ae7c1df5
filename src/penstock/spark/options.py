"""The options of `format("penstock")`, read from text and checked before anything is opened."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from penstock.config import check_name
from penstock.connect import broker_kind, check_shared, scheme_of
from penstock.errors import InvalidArgumentError
from penstock.rules.filters import parse_filter
from penstock.spark.source import choice
from penstock.spark.source.offsets import EARLIEST, IDENTITY, LATEST, Position

T = TypeVar("T")

# Spark's own, which it hands over with ours.
_SPARK = ("checkpointlocation", "queryname", "outputmode")
# Words of others, and what to write here.
_ELSEWHERE = {
    "provider": "Spark 4.3 forgets the options of a table that is made with CREATE TABLE … USING "
    "penstock; make a view: CREATE TEMPORARY VIEW … USING penstock OPTIONS (…)",
}
_FLAGS = {"true": True, "false": False}
# Of the year 9999, in microseconds: what is later was meant in another unit.
_LAST_MOMENT = 253_402_300_799_999_999


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What `readStream` and `read` were told; see docs/spark.md for each."""

    url: str = field(repr=False)
    topics: tuple[str, ...] = ()
    pattern: str = ""
    """Instead: what their names match, and those of topics that come later."""
    mode: str = "log"
    starting: Position = EARLIEST
    ending: Position = LATEST
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay: float = 900.0
    max_bytes: int | None = None
    min_partitions: int | None = None
    max_records: int = 50_000
    fail_on_data_loss: bool = True
    begins_again: bool = False
    """A topic that was deleted and made again is read from its beginning, and no error."""
    filter: str = ""
    include_headers: bool = False
    push_filters: bool = False
    """Off by default: Spark 4.3 keeps what it pushed for later queries of the same DataFrame."""
    server_timeout: float = 60.0
    subscription: str = ""
    spool: str = ""
    segment_bytes: int = 16 * 2**20
    segment_seconds: float = 1.0
    spool_bytes: int = 2**30

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        options = _Options(given)
        url = options.url()
        mode = options.take("mode", _one_of("log", "queue"), "log" if _has_ranges(url) else "queue")
        topics, pattern = _topics(options)
        lossless = options.take("failOnDataLoss", _flag, True)
        recreated = options.take(
            "whenRecreated", _one_of("fail", "begin"), "fail" if lossless else "begin"
        )
        strategies = _one_of("latest", "error")
        strategy = options.take("startingOffsetsByTimestampStrategy", strategies, "latest")
        found = cls(
            url=url,
            mode=mode,
            topics=topics,
            pattern=pattern,
            starting=replace(_position(options, "starting", EARLIEST), strict=strategy == "error"),
            ending=_position(options, "ending", LATEST),
            max_offsets=options.take("maxOffsetsPerTrigger", _count, None),
            min_offsets=options.take("minOffsetsPerTrigger", _count, None),
            max_delay=options.take("maxTriggerDelay", _duration, cls.max_delay),
            max_bytes=options.take("maxBytesPerTrigger", _count, None),
            min_partitions=options.take("minPartitions", _count, None),
            max_records=options.take("maxRecordsPerPartition", _count, cls.max_records),
            fail_on_data_loss=lossless,
            begins_again=recreated == "begin",
            filter=options.take("filter", _filter, ""),
            include_headers=options.take("includeHeaders", _flag, False),
            push_filters=options.take("pushFilters", _flag, False),
            server_timeout=options.take("serverTimeout", _seconds, cls.server_timeout),
            subscription=options.take("subscription", str, ""),
            spool=options.take("spoolLocation", str, ""),
            segment_bytes=options.take("segmentBytes", _count, cls.segment_bytes),
            segment_seconds=options.take("segmentSeconds", _seconds, cls.segment_seconds),
            spool_bytes=options.take("maxSpoolBytes", _count, cls.spool_bytes),
        )
        options.none_left()
        found._check()
        return found

    def _check(self) -> None:
        if self.mode == "queue":
            if not self.subscription or not self.spool:
                raise InvalidArgumentError(
                    "A queue is read through a spool: set 'subscription' to what to pull from and "
                    "'spoolLocation' to a folder that the driver and all executors see"
                )
            check_name("Subscription", self.subscription)
            if self.include_headers or self.filter:
                raise InvalidArgumentError(
                    "A queue has neither 'includeHeaders' nor 'filter': its subscription filters"
                )
            if self.topics or self.pattern:
                raise InvalidArgumentError(
                    "A queue is read from its 'subscription'; leave out 'topic' and 'topics'"
                )
        elif self.min_offsets and self.max_offsets and self.min_offsets > self.max_offsets:
            raise InvalidArgumentError(
                "'minOffsetsPerTrigger' is above 'maxOffsetsPerTrigger': no batch could be both"
            )
        elif not self.topics and not self.pattern:
            raise InvalidArgumentError("Set option 'topic' (or 'topics': one,two) to what to read")
        elif self.subscription or self.spool:
            raise InvalidArgumentError(
                "'subscription' and 'spoolLocation' are for mode=queue; a log is read by 'topic'"
            )


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """What `writeStream` and `write` were told."""

    url: str = field(repr=False)
    topic: str = ""
    fence: bool = False
    fence_topic: str = "penstock-fences"
    max_in_flight: int = 2_000
    server_timeout: float = 60.0

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkOptions:
        options = _Options(given)
        found = cls(
            url=options.url(),
            topic=options.take("topic", lambda name: check_name("Topic", name), ""),
            fence=options.take("fence", _flag, False),
            fence_topic=options.take(
                "fenceTopic", lambda name: check_name("Topic", name), cls.fence_topic
            ),
            max_in_flight=options.take("maxInFlight", _count, cls.max_in_flight),
            server_timeout=options.take("serverTimeout", _seconds, cls.server_timeout),
        )
        options.none_left()
        if found.fence and not found.topic:
            raise InvalidArgumentError(
                "fence=true guards one topic: set option 'topic', and leave out column 'topic'"
            )
        if found.fence and not _has_ranges(found.url):
            raise InvalidArgumentError(
                "fence=true looks through the topic for what is stored, and what is behind "
                f"{scheme_of(found.url)}:// keeps no log that Spark can read; leave it out"
            )
        return found


class _Options:
    """Text by name, in whatever case; knows which names were asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._left = {name.lower(): value for name, value in given.items()}
        self._known: list[str] = []

    def take(self, name: str, read: Callable[[str], T], default: T) -> T:
        self._known.append(name)
        text = self._left.pop(name.lower(), None)
        if text is None:
            return default
        try:
            return read(text.strip())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"Option {name!r}: {error}") from None

    def url(self) -> str:
        url = self.take("url", str, "")
        if not url and not self._left:
            raise InvalidArgumentError(
                "There are no options. Is this a table that was made with CREATE TABLE … USING "
                "penstock? Spark 4.3 forgets its options; use CREATE TEMPORARY VIEW … USING "
                "penstock OPTIONS (url '…', topic '…')"
            )
        if not url:
            self._none_of_others()
            raise InvalidArgumentError(
                "Set option 'url' to the broker: nats://HOST, tls://HOST or local:///DIR"
            )
        try:
            check_shared(url, everywhere=True)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"Option 'url', for Spark's processes: {error}") from None
        return url

    def _none_of_others(self) -> None:
        for name in self._left.keys() & _ELSEWHERE.keys():
            raise InvalidArgumentError(f"Option {name!r}: {_ELSEWHERE[name]}")

    def none_left(self) -> None:
        self._none_of_others()
        for name in self._left:
            if name in _SPARK:
                continue
            close = difflib.get_close_matches(name, [known.lower() for known in self._known], 1)
            meant = [known for known in self._known if close and known.lower() == close[0]]
            raise InvalidArgumentError(
                f"Unknown option {name!r}"
                + (f"; did you mean {meant[0]!r}?" if meant else "")
                + f" Known: {', '.join(sorted(self._known))}"
            )


def _has_ranges(url: str) -> bool:
    """Topics are read by sequence where the broker offers it; elsewhere through a spool."""
    return broker_kind(url).ranges is not None


def _topics(options: _Options) -> tuple[tuple[str, ...], str]:
    """Those that are named, or a pattern."""
    named: dict[str, Callable[[str], tuple[str, ...]]] = {
        "topic": choice.one,
        "topics": choice.several,
        "subscribe": choice.several,
        "assign": choice.assigned,
    }
    nothing: tuple[str, ...] = ()
    given = [options.take(name, read, nothing) for name, read in named.items()]
    pattern = options.take("subscribePattern", choice.pattern, "")
    found = [topics for topics in given if topics]
    if len(found) + bool(pattern) > 1:
        names = ", ".join(map(repr, named))
        raise InvalidArgumentError(
            f"Set one of the options {names} and 'subscribePattern', not several"
        )
    return found[0] if found else nothing, pattern


def _position(options: _Options, end: str, default: Position) -> Position:
    """`startingOffsets`, `startingTimestamp` and `startingOffsetsByTimestamp`, or the `ending…`
    three."""
    names = (f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp")
    readers = (_offsets, _at_moment, _at_moments)
    given = [options.take(name, read, None) for name, read in zip(names, readers, strict=True)]
    found = [position for position in given if position is not None]
    if len(found) > 1:
        raise InvalidArgumentError(
            f"Set one of the options {', '.join(map(repr, names))}, not several"
        )
    if not found:
        return default
    # Topics that it does not name begin, or end, as they would without it.
    return replace(found[0], edge=default.edge) if found[0].topics else found[0]


def _at_moment(text: str) -> Position:
    return Position(moment_us=_moment(text))


def _at_moments(text: str) -> Position:
    """Milliseconds by topic."""
    found = _by_topic(text)
    if not found or not all(
        type(at) is int and at <= _LAST_MOMENT // 1000 for at in found.values()
    ):
        raise InvalidArgumentError(
            f'must be milliseconds by topic, as in {{"orders": 1767225600000}}, not {text!r}'
        )
    return Position(moments_us={topic: at * 1000 for topic, at in found.items()})


def _offsets(text: str) -> Position:
    if text.lower() == "earliest":
        return EARLIEST
    if text.lower() == "latest":
        return LATEST
    found = _by_topic(text)
    identities = found.pop(IDENTITY, {})
    is_told = isinstance(identities, dict) and all(type(at) is int for at in found.values())
    if not found or not is_told or any(at < 1 and at not in (-1, -2) for at in found.values()):
        raise InvalidArgumentError(
            "must be earliest, latest or sequences by topic, as in "
            f'{{"orders": 17}} (-2: earliest, -1: latest), not {text!r}'
        )
    return Position(sequences=found, identities=identities)


def _by_topic(text: str) -> dict[str, Any]:
    """What JSON says of topics. Readers of Kafka say it of partitions, and a topic has one: 0."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        topic: said["0"] if isinstance(said, dict) and said.keys() == {"0"} else said
        for topic, said in found.items()
    }


def _moment(text: str) -> int:
    """Microseconds since the epoch, from ISO 8601 or from milliseconds."""
    # More digits are no time, and Python reads no number of thousands.
    if len(text) <= 20 and text.removeprefix("-").isdecimal() and int(text) * 1000 <= _LAST_MOMENT:
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgumentError(
            f"must be a time with a zone, as 2026-01-02T03:04:05Z, or milliseconds, not {text!r}"
        )
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _filter(text: str) -> str:
    if text:
        parse_filter(text)
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgumentError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise InvalidArgumentError(f"must be seconds above 0, not {text!r}")
    return seconds


def _duration(text: str) -> float:
    """Seconds, or as Kafka's readers write them: 500ms, 30s, 15m, 1h."""
    for unit, seconds in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(unit) and text[: -len(unit)].isdecimal():
            return int(text[: -len(unit)]) * seconds
    return _seconds(text)


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise InvalidArgumentError(f"must be true or false, not {text!r}")
    return _FLAGS[text.lower()]


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in values:
            raise InvalidArgumentError(f"must be one of {', '.join(values)}, not {text!r}")
        return text.lower()

    return read
