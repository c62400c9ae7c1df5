"""The read model: what is known of each job from its events, and nothing else.

`JobViews` keeps it in memory, `SqlJobViews` in a database. Both take events in any order and any
number of times. `Projection` feeds them from the event topic.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import InvalidArgumentError
from penstock.jobs.model.job import JobEvent, JobStage, MediaType, is_news

MAX_PAGE = 200


class JobView(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A job as its events tell it."""

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
    reason: str | None = None
    attempts: int | None = None
    correlation_id: str | None = None

    @property
    def place(self) -> tuple[int, str]:
        """Where it is in a list: by the time it was first heard of."""
        return int(self.queued_at.timestamp() * 1e6), self.job_id


_FACTS = ("duration", "size", "language", "segments", "characters", "reason", "attempts")


def seen(view: JobView | None, event: JobEvent) -> JobView | None:
    """A view after an event; None when the event changes nothing. The order of events does not
    matter: a late one adds what it knows of the run the view is about."""
    if view is None:
        return first_view(event)
    facts = _facts_of(event)
    changes: dict[str, Any] = {}
    if is_news(event.run, event.stage, view.run, view.stage):
        if event.run > view.run:
            changes = dict.fromkeys(_FACTS)
        changes |= {"stage": event.stage, "run": event.run, "updated_at": event.at, **facts}
    elif event.run == view.run:
        changes = {name: value for name, value in facts.items() if getattr(view, name) is None}
    if event.at < view.queued_at:
        changes["queued_at"] = event.at
    return replace(view, **changes) if changes else None


def first_view(event: JobEvent) -> JobView:
    """What an event alone tells of a job."""
    return JobView(
        job_id=event.job_id,
        user_id=event.user_id,
        media_type=event.media_type,
        stage=event.stage,
        run=event.run,
        queued_at=event.at,
        updated_at=event.at,
        correlation_id=event.correlation_id,
        **_facts_of(event),
    )


def _facts_of(event: JobEvent) -> dict[str, Any]:
    known = {name: getattr(event, name, None) for name in _FACTS}
    return {name: value for name, value in known.items() if value is not None}


class Views(Protocol):
    """A read model."""

    async def apply(self, events: Sequence[JobEvent]) -> Sequence[JobView]:
        """Take events in; returns the views that changed."""
        ...

    async def get(self, job_id: str) -> JobView | None: ...

    async def list(
        self,
        *,
        user_id: str | None = None,
        stage: JobStage | None = None,
        media_type: MediaType | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[JobView], str | None]:
        """The newest first, and where the next page begins."""
        ...

    async def count(self) -> int: ...

    async def position(self, topic: str) -> int:
        """The last event of a topic that was taken in for good, by its sequence."""
        ...

    async def reached(self, topic: str, sequence: int) -> None:
        """Everything up to there was taken in."""
        ...


class JobViews:
    """In memory: the `max_jobs` that were heard of last."""

    def __init__(self, max_jobs: int = 1_000_000) -> None:
        self._max_jobs = max_jobs
        self._views: OrderedDict[str, JobView] = OrderedDict()
        self._places: dict[str, list[tuple[int, str]]] = {}

    async def apply(self, events: Sequence[JobEvent]) -> Sequence[JobView]:
        changed = []
        for event in events:
            known = self._views.get(event.job_id)
            view = seen(known, event)
            if view is None:
                continue
            self._views[event.job_id] = view
            self._views.move_to_end(event.job_id)
            if known is None or known.place != view.place:
                if known is not None:
                    self._leave_place(known)
                insort(self._places.setdefault(view.user_id, []), view.place)
            if len(self._views) > self._max_jobs:
                self._leave_place(self._views.popitem(last=False)[1])
            changed.append(view)
        return changed

    async def position(self, topic: str) -> int:  # noqa: ARG002 - it has seen nothing of any topic
        return 0

    async def reached(self, topic: str, sequence: int) -> None:
        """What is in memory begins anew each time."""

    def _leave_place(self, view: JobView) -> None:
        places = self._places[view.user_id]
        del places[bisect_left(places, view.place)]
        if not places:
            del self._places[view.user_id]

    async def get(self, job_id: str) -> JobView | None:
        return self._views.get(job_id)

    async def count(self) -> int:
        return len(self._views)

    async def list(
        self,
        *,
        user_id: str | None = None,
        stage: JobStage | None = None,
        media_type: MediaType | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[JobView], str | None]:
        limit = max(1, min(limit, MAX_PAGE))
        page: list[JobView] = []
        if user_id is not None:
            owned = self._places.get(user_id, [])
            end = len(owned) if cursor is None else bisect_left(owned, read_cursor(cursor))
            places = (owned[n] for n in range(end - 1, -1, -1))
        else:
            before = None if cursor is None else read_cursor(cursor)
            places = (
                place
                for place in heapq.merge(
                    *(reversed(p) for p in self._places.values()), reverse=True
                )
                if before is None or place < before
            )
        for _, job_id in places:
            view = self._views[job_id]
            if stage in (None, view.stage) and media_type in (None, view.media_type):
                if len(page) == limit:
                    return page, cursor_of(page[-1])
                page.append(view)
        return page, None


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
