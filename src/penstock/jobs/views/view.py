"""The read model: what is known of each job from its events, and nothing else.

`JobViews` keeps it in memory, `SqlJobViews` in a database. Both take events in any order and any
number of times. `Projection` feeds them from the event topic.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Protocol, TypedDict, Unpack

from msgspec import Struct, inspect, to_builtins
from msgspec.structs import fields, replace

from penstock.errors import InvalidArgumentError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.model.names import JobStage, MediaType
from penstock.jobs.pipeline.declaration import Pipeline

MAX_PAGE = 200
_log = logging.getLogger("penstock.jobs")


class JobView(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A job as its events tell it. What media jobs tell has fields of its own; `facts` is all else
    that events say, by the names of their fields, as JSON has it."""

    job_id: str
    user_id: str
    media_type: MediaType
    stage: JobStage
    run: int
    queued_at: datetime
    updated_at: datetime
    duration: float | None = None
    size: int | None = None
    language: str | None = None
    segments: int | None = None
    characters: int | None = None
    pages: int | None = None
    truncated: bool | None = None
    doubtful: bool | None = None
    reason: str | None = None
    attempts: int | None = None
    correlation_id: str | None = None
    facts: Mapping[str, Any] = {}

    @property
    def place(self) -> tuple[int, str]:
        """Where it is in a list: by the time it was first heard of."""
        return int(self.queued_at.timestamp() * 1e6), self.job_id


_PLACES = (
    *("duration", "size", "language", "segments", "characters", "pages", "truncated"),
    *("doubtful", "reason", "attempts"),
)


def take_in(
    pipeline: Pipeline, known: MutableMapping[str, JobView], events: Sequence[StageEvent]
) -> Iterator[tuple[JobView | None, JobView]]:
    """Bring what is known up to date, event by event: the view before each that changes something,
    and after it. An event that cannot be taken in is logged and skipped: whatever is wrong with
    it, the others are news."""
    for event in events:
        before = known.get(event.job_id)
        try:
            view = seen(pipeline, before, event)
        except Exception:
            _log.exception(
                "The read model of pipeline %r skips %s of job %s: it cannot be taken in",
                *(pipeline.name, type(event).__name__, event.job_id),
            )
            continue
        if view is not None:
            known[event.job_id] = view
            yield before, view


def seen(pipeline: Pipeline, view: JobView | None, event: StageEvent) -> JobView | None:
    """A view after an event; None when the event changes nothing. The order of events does not
    matter: a late one adds what it knows of the run the view is about."""
    if view is None:
        return first_view(event)
    facts, others = _facts_of(event)
    changes: dict[str, Any] = {}
    if pipeline.is_news(event.run, event.stage, view.run, view.stage):
        known: Mapping[str, Any] = view.facts
        if event.run > view.run:
            changes, known = dict.fromkeys(_PLACES), {}
        changes |= {"stage": event.stage, "run": event.run, "updated_at": event.at, **facts}
        changes["facts"] = {**known, **others}
    elif event.run == view.run:
        changes = {name: value for name, value in facts.items() if getattr(view, name) is None}
        if others.keys() - view.facts.keys():
            changes["facts"] = {**others, **view.facts}
    if event.at < view.queued_at:
        changes["queued_at"] = event.at
    return replace(view, **changes) if changes else None


def first_view(event: StageEvent) -> JobView:
    """What an event alone tells of a job."""
    facts, others = _facts_of(event)
    return JobView(
        job_id=event.job_id,
        user_id=event.user_id,
        media_type=event.media_type,
        stage=event.stage,
        run=event.run,
        queued_at=event.at,
        updated_at=event.at,
        correlation_id=event.correlation_id,
        facts=others,
        **facts,
    )


def _facts_of(event: StageEvent) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those that every view has a place for, and the others."""
    placed, others = _names_of(type(event))
    return (
        {name: value for name in placed if (value := getattr(event, name)) is not None},
        {
            name: to_builtins(value, str_keys=True)
            for name in others
            if (value := getattr(event, name)) is not None
        },
    )


@cache
def _names_of(kind: type[StageEvent]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The facts of such events that every view has a place for, and the others."""
    placed = _placed(kind)
    return (
        tuple(name for name in kind.facts() if name in placed),
        tuple(name for name in kind.facts() if name not in placed),
    )


def _placed(kind: type[StageEvent]) -> frozenset[str]:
    """The facts of such events that a view has a place for. A fact of the same name and another
    type is none of them: a shirt's size is a word."""
    places = {field.name: _kinds(field.type) for field in fields(JobView) if field.name in _PLACES}
    return frozenset(
        field.name for field in fields(kind) if places.get(field.name) == _kinds(field.type)
    )


def _kinds(declared: Any) -> frozenset[type]:
    """What a value may be, whatever its limits; that it may be missing does not count."""
    info = inspect.type_info(declared)
    options = info.types if isinstance(info, inspect.UnionType) else (info,)
    return frozenset(type(one) for one in options) - {inspect.NoneType}


class Wanted(TypedDict, total=False):
    """Which views a list is asked for: of a user, at a stage, of a media type; how many, at most
    200 and 50 unless given; and where the page begins."""

    user_id: str | None
    stage: JobStage | None
    media_type: MediaType | None
    limit: int
    cursor: str | None


class Listing(Struct, frozen=True, kw_only=True):
    """`Wanted` with everything filled in. `before`: where the page begins."""

    user_id: str | None = None
    stage: JobStage | None = None
    media_type: MediaType | None = None
    limit: int = 50
    cursor: str | None = None

    @property
    def most(self) -> int:
        return max(1, min(self.limit, MAX_PAGE))

    @property
    def before(self) -> tuple[int, str] | None:
        return None if self.cursor is None else read_cursor(self.cursor)

    def has(self, view: JobView) -> bool:
        return self.stage in (None, view.stage) and self.media_type in (None, view.media_type)


class Position(Struct, frozen=True, kw_only=True):
    """How far a topic was taken in: up to `sequence`, in the log of that identity. `stored`: when
    the message there was, by which it is known again. Empty: not known."""

    sequence: int = 0
    log: str = ""
    stored: str = ""


class Views(Protocol):
    """A read model."""

    async def apply(self, events: Sequence[StageEvent]) -> Sequence[JobView]:
        """Take events in; returns the views that changed."""
        ...

    async def get(self, job_id: str) -> JobView | None: ...

    async def list(self, **wanted: Unpack[Wanted]) -> tuple[Sequence[JobView], str | None]:
        """The newest first, and where the next page begins."""
        ...

    async def count(self) -> int: ...

    async def position(self, topic: str) -> Position:
        """How far a topic was taken in for good."""
        ...

    async def reached(self, topic: str, position: Position) -> None:
        """Everything up to there was taken in; up to 0: the topic is read from its beginning."""
        ...


def cursor_of(view: JobView) -> str:
    queued, job_id = view.place
    return base64.urlsafe_b64encode(f"{queued}:{job_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[int, str]:
    try:
        text = base64.urlsafe_b64decode(cursor[:200] + "=" * (-len(cursor) % 4)).decode()
        at, _, job_id = text.partition(":")
        return int(at) % 2**63, job_id.replace("\0", "")
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("This cursor is not one of ours; begin without one") from None
