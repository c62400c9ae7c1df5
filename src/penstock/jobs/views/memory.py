"""The read model in memory."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Unpack

from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.media import MEDIA
from penstock.jobs.views.view import JobView, Listing, Position, Wanted, cursor_of, take_in


class JobViews:
    """In memory: the `max_jobs` that were heard of last."""

    def __init__(self, max_jobs: int = 1_000_000, *, pipeline: Pipeline = MEDIA) -> None:
        self._pipeline = pipeline
        self._max_jobs = max_jobs
        self._views: OrderedDict[str, JobView] = OrderedDict()
        self._places: dict[str, list[tuple[int, str]]] = {}

    async def apply(self, events: Sequence[StageEvent]) -> Sequence[JobView]:
        changed = []
        for known, view in take_in(self._pipeline, self._views, events):
            self._views.move_to_end(view.job_id)
            if known is None or known.place != view.place:
                if known is not None:
                    self._leave_place(known)
                insort(self._places.setdefault(view.user_id, []), view.place)
            if len(self._views) > self._max_jobs:
                self._leave_place(self._views.popitem(last=False)[1])
            changed.append(view)
        return changed

    async def position(self, topic: str) -> Position:  # noqa: ARG002 - it has seen nothing of any
        return Position()

    async def reached(self, topic: str, position: Position) -> None:
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

    async def list(self, **wanted: Unpack[Wanted]) -> tuple[Sequence[JobView], str | None]:
        listing = Listing(**wanted)
        page: list[JobView] = []
        for _, job_id in self._places_of(listing.user_id, listing.before):
            view = self._views[job_id]
            if listing.has(view):
                if len(page) == listing.most:
                    return page, cursor_of(page[-1])
                page.append(view)
        return page, None

    def _places_of(
        self, user_id: str | None, before: tuple[int, str] | None
    ) -> Iterator[tuple[int, str]]:
        """The newest first."""
        if user_id is not None:
            owned = self._places.get(user_id, [])
            end = len(owned) if before is None else bisect_left(owned, before)
            return (owned[n] for n in range(end - 1, -1, -1))
        newest = heapq.merge(*(reversed(p) for p in self._places.values()), reverse=True)
        return (place for place in newest if before is None or place < before)
