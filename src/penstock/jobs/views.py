"""The read model: what is known of each job from its events, and nothing else.

`JobViews` keeps it in memory, `SqlJobViews` in a database. Both take events in any order and any
number of times. `Projection` feeds one of them from the event topic.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
import logging
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from penstock.errors import AlreadyExistsError, InvalidArgumentError
from penstock.flow import FlowControl
from penstock.jobs.client import PubSubClient, Subscriber
from penstock.jobs.codec import InvalidMessageError, decode_event
from penstock.jobs.job import (
    JobEvent,
    JobFailed,
    JobQueued,
    JobStage,
    MediaType,
    MetadataReady,
    TranscriptComplete,
    is_news,
)
from penstock.jobs.stage import Done
from penstock.jobs.together import Together
from penstock.transactional import Database

_log = logging.getLogger("penstock.jobs")
MAX_PAGE = 200
# What a watcher may be behind before it is told to look again at everything.
_WATCHER_BUFFER = 1000


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


def seen(view: JobView | None, event: JobEvent) -> JobView | None:
    """A view after an event; None when the event changes nothing."""
    if view is None:
        view = JobView(
            job_id=event.job_id,
            user_id=event.user_id,
            media_type=event.media_type,
            stage=event.stage,
            run=event.run,
            queued_at=event.at,
            updated_at=event.at,
            correlation_id=event.correlation_id,
        )
    elif not is_news(event.run, event.stage, view.run, view.stage):
        return None
    changes: dict[str, Any] = {"stage": event.stage, "run": event.run, "updated_at": event.at}
    match event:
        case JobQueued():
            changes |= dict.fromkeys(
                ("duration", "size", "language", "segments", "characters", "reason", "attempts")
            )
        case MetadataReady():
            changes |= {"duration": event.duration, "size": event.size}
        case TranscriptComplete():
            changes |= {
                "language": event.language,
                "segments": event.segments,
                "characters": event.characters,
            }
        case JobFailed():
            changes |= {"reason": event.reason, "attempts": event.attempts}
    return replace(view, **changes)


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
            if known is None:
                insort(self._places.setdefault(view.user_id, []), view.place)
                if len(self._views) > self._max_jobs:
                    self._forget_oldest()
            changed.append(view)
        return changed

    def _forget_oldest(self) -> None:
        _, view = self._views.popitem(last=False)
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


sql_metadata = MetaData()
sql_views = Table(
    "penstock_job_views",
    sql_metadata,
    Column("job_id", String(36), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("stage", String(24), nullable=False),
    Column("media_type", String(16), nullable=False),
    Column("queued_us", BigInteger, nullable=False),
    Column("progress", BigInteger, nullable=False),
    Column("view", LargeBinary, nullable=False),
    Index("penstock_job_views_by_user", "user_id", "queued_us", "job_id"),
    Index("penstock_job_views_by_time", "queued_us", "job_id"),
)


class SqlJobViews:
    """In a database, where every API process sees the same and a restart forgets nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __aenter__(self) -> Self:
        await self._database.create_tables(sql_metadata)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to end; the database is its owner's."""

    async def apply(self, events: Sequence[JobEvent]) -> Sequence[JobView]:
        if not events:
            return []
        ids = {event.job_id for event in events}
        async with self._database.transaction() as connection:
            query = select(sql_views.c.job_id, sql_views.c.view).where(sql_views.c.job_id.in_(ids))
            if connection.dialect.name == "postgresql":
                query = query.with_for_update()
            rows = (await connection.execute(query)).all()
            known = {job_id: msgspec.json.decode(view, type=JobView) for job_id, view in rows}
            changed: dict[str, JobView] = {}
            history = []
            for event in events:
                view = seen(known.get(event.job_id), event)
                if view is not None:
                    known[event.job_id] = changed[event.job_id] = view
                    history.append(view)
            if changed:
                dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
                upsert = dialect.insert(sql_views)
                given = upsert.excluded
                # Two processes may have read the same row: the later stage wins, whoever writes.
                await connection.execute(
                    upsert.on_conflict_do_update(
                        index_elements=["job_id"],
                        set_={name: given[name] for name in ("stage", "progress", "view")},
                        where=sql_views.c.progress < given.progress,
                    ),
                    [_row(view) for view in changed.values()],
                )
        return history

    async def get(self, job_id: str) -> JobView | None:
        async with self._database.transaction(reading=True) as connection:
            found = await connection.scalar(
                select(sql_views.c.view).where(sql_views.c.job_id == job_id)
            )
        return None if found is None else msgspec.json.decode(found, type=JobView)

    async def count(self) -> int:
        from sqlalchemy import func

        async with self._database.transaction(reading=True) as connection:
            return int(await connection.scalar(select(func.count()).select_from(sql_views)) or 0)

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
        c = sql_views.c
        query = select(c.view).order_by(c.queued_us.desc(), c.job_id.desc()).limit(limit + 1)
        if user_id is not None:
            query = query.where(c.user_id == user_id)
        if stage is not None:
            query = query.where(c.stage == stage.value)
        if media_type is not None:
            query = query.where(c.media_type == media_type.value)
        if cursor is not None:
            query = query.where(tuple_(c.queued_us, c.job_id) < read_cursor(cursor))
        async with self._database.transaction(reading=True) as connection:
            rows = (await connection.scalars(query)).all()
        page = [msgspec.json.decode(row, type=JobView) for row in rows[:limit]]
        return page, cursor_of(page[-1]) if len(rows) > limit else None


def _row(view: JobView) -> dict[str, Any]:
    queued, job_id = view.place
    return {
        "job_id": job_id,
        "user_id": view.user_id,
        "stage": view.stage.value,
        "media_type": view.media_type.value,
        "queued_us": queued,
        "progress": view.run * 4 + view.stage.rank,
        "view": msgspec.json.encode(view),
    }


def cursor_of(view: JobView) -> str:
    queued, job_id = view.place
    return base64.urlsafe_b64encode(f"{queued}:{job_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[int, str]:
    try:
        text = base64.urlsafe_b64decode(cursor[:200] + "=" * (-len(cursor) % 4)).decode()
        at, _, job_id = text.partition(":")
        return int(at), job_id
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("This cursor is not one of ours; begin without one") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """How far the read model is behind: events not yet taken in, and the age of the oldest."""

    events: int
    seconds: float


class Projection:
    """Keeps a read model up to date, and tells watchers what changes.

    When entered it first takes in what the event topic still holds, where the broker can replay,
    so a model in memory is whole before it answers; then it follows the topic.
    """

    def __init__(self, client: PubSubClient, views: Views, subscription: str = "job-views") -> None:
        self._client = client
        self._views = views
        self._topic = client.settings.topics.events
        self._handle = client.pubsub.subscription(
            subscription,
            topic=self._topic,
            flow_control=FlowControl(max_messages=500),
            ack_deadline=60.0,
        )
        self._subscriber = Subscriber(
            self._handle, decode_event, self._take, client.observer, name="projection"
        )
        self._watchers: set[Watcher] = set()
        self._taking = Together(self._apply)

    async def __aenter__(self) -> Self:
        with suppress(AlreadyExistsError):
            await self._handle.create()
        await self.rebuild()
        await self._subscriber.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for watcher in list(self._watchers):
            watcher.end()
        await self._subscriber.aclose()
        await self._taking.aclose()

    async def rebuild(self) -> int:
        """Take in every event the topic holds; returns how many there were."""
        broker = await self._client.pubsub.broker()
        if broker.log is None:
            if broker.capabilities.seek:
                await self._handle.seek(datetime.fromtimestamp(0, UTC))
            return 0
        extent = await broker.log.extent(self._topic)
        taken = 0
        async for records in broker.log.read(self._topic, extent.first, extent.last):
            events = []
            for record in records:
                # What does not decode is the subscription's to deal with.
                with suppress(InvalidMessageError):
                    events.append(decode_event(record.data, record.attributes))
            await self._views.apply(events)
            taken += len(records)
        if taken:
            _log.info("The read model was rebuilt from %d events of %r", taken, self._topic)
        return taken

    async def lag(self) -> Lag:
        status = await self._handle.describe()
        return Lag(events=status.backlog, seconds=status.oldest_age)

    def watch(self, user_id: str | None = None, job_id: str | None = None) -> Watcher:
        """Changes from now on, of one user or one job or all."""
        return Watcher(self._watchers, user_id, job_id)

    async def _take(self, event: JobEvent, _attempt: int) -> Done:
        return await self._taking.do(event)

    async def _apply(self, events: Sequence[JobEvent]) -> Sequence[Done]:
        """Events that come together are applied together."""
        changed = await self._views.apply(events)
        for watcher in list(self._watchers):
            watcher.tell(changed)
        return [Done()] * len(events)


class Watcher:
    """Changes of views, as they come: `async for view in watcher`. None among them means that
    some were missed because the reader was too slow: look at everything again."""

    def __init__(self, among: set[Watcher], user_id: str | None, job_id: str | None) -> None:
        self._among = among
        self._user_id = user_id
        self._job_id = job_id
        self._news: deque[JobView | None] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        among.add(self)

    def tell(self, changed: Sequence[JobView]) -> None:
        wanted = [
            view
            for view in changed
            if self._user_id in (None, view.user_id) and self._job_id in (None, view.job_id)
        ]
        if not wanted:
            return
        self._news.extend(wanted)
        if len(self._news) > _WATCHER_BUFFER:
            self._news.clear()
            self._news.append(None)
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._among.discard(self)
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[JobView | None]:
        try:
            while True:
                while self._news:
                    yield self._news.popleft()
                if self._ended:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self.end()
