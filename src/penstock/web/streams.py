"""Changes of jobs as server-sent events, to as many readers as there is room for."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec
from litestar.response import ServerSentEvent, ServerSentEventMessage

from penstock.errors import PenstockError, ResourceExhaustedError
from penstock.jobs.views.projection import Projection
from penstock.jobs.views.view import JobView
from penstock.web.own_jobs import OwnJob, OwnJobs

_log = logging.getLogger("penstock.web")
_HEARTBEAT = 15.0
# Below what the server takes at a time, so that other requests always get through.
MAX_STREAMS = 500
MAX_STREAMS_OF_ONE = 100


class Streams:
    """Who watches. A reader takes its place when its stream begins to be sent and not before: one
    that leaves earlier leaves nothing behind, because its stream never runs."""

    def __init__(
        self,
        projection: Projection,
        *,
        most: int = MAX_STREAMS,
        most_of_one: int = MAX_STREAMS_OF_ONE,
    ) -> None:
        self._projection = projection
        self._pipeline = projection.pipeline
        self._most = most
        self._most_of_one = most_of_one
        self._watching: Counter[str] = Counter()

    @property
    def watching(self) -> int:
        return self._watching.total()

    def of_user(self, user: str, jobs: OwnJobs) -> ServerSentEvent:
        """Changes of all jobs of a user."""
        return self._answer(user, None, jobs)

    def of_job(self, user: str, job_id: str, jobs: OwnJobs) -> ServerSentEvent:
        """A job as it is, and its changes until it has ended."""
        return self._answer(user, job_id, jobs)

    def _answer(self, user: str, job_id: str | None, jobs: OwnJobs) -> ServerSentEvent:
        if not self._has_room(user):
            raise ResourceExhaustedError("Too many are watching; try again later")
        return ServerSentEvent(self._stream(user, job_id, jobs), retry_duration=1000)

    def _has_room(self, user: str) -> bool:
        return self.watching < self._most and self._watching[user] < self._most_of_one

    def _is_news(self, job: JobView, known: JobView) -> bool:
        return self._pipeline.is_news(job.run, job.stage, known.run, known.stage)

    async def _stream(
        self, user: str, job_id: str | None, jobs: OwnJobs
    ) -> AsyncIterator[ServerSentEventMessage]:
        if not self._has_room(user):
            # Others began since this one was let in; whoever reads it will come back.
            yield ServerSentEventMessage(comment="too many are watching", data=None)
            return
        self._watching[user] += 1
        # Watch first, then read: a change between the two is seen twice rather than missed.
        watcher = self._projection.watch(user, job_id)
        changes = aiter(watcher)
        coming: asyncio.Future[JobView | None] | None = None
        try:
            yield ServerSentEventMessage(comment="watching", data=None)
            known = None if job_id is None else await jobs.as_told(job_id, user)
            if known is not None:
                yield _message(known)
            while known is None or not self._pipeline.is_end(known.stage):
                coming = coming or asyncio.ensure_future(anext(changes))
                done, _ = await asyncio.wait({coming}, timeout=_HEARTBEAT)
                if not done:
                    yield ServerSentEventMessage(comment="still here", data=None)
                    # Its event may be lost with its topic; the row is not.
                    if known is not None:
                        newest = await jobs.get(known.job_id, user)
                        if self._is_news(newest, known):
                            known = newest
                            yield _message(known)
                    continue
                news, coming = [coming.result(), *watcher.more()], None
                for job in await _named(jobs, news):
                    if known is not None:
                        job = job or await jobs.as_told(known.job_id, user)
                        if not self._is_news(job, known):
                            continue
                        known = job
                    yield _message(job)
        except StopAsyncIteration:
            return
        except PenstockError as error:
            _log.warning("A stream of events ends early: %s", error)
        finally:
            if coming is not None:
                coming.cancel()
            watcher.end()
            self._watching[user] -= 1
            if not self._watching[user]:
                del self._watching[user]


async def _named(jobs: OwnJobs, news: Sequence[JobView | None]) -> list[OwnJob | None]:
    """By one look for all that came together: there may be thousands in a second."""
    named = iter(await jobs.named([view for view in news if view is not None]))
    return [None if view is None else next(named) for view in news]


def _message(view: JobView | None) -> ServerSentEventMessage:
    """A changed job; or `reset`: some changes were missed, so look at everything again."""
    kind: Literal["job", "reset"] = "reset" if view is None else "job"
    body = b"{}" if view is None else msgspec.json.encode(view)
    return ServerSentEventMessage(data=body.decode(), event=kind)
