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
    bindparam,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.broker import Log
from penstock.errors import AlreadyExistsError, InvalidArgumentError, PenstockError
from penstock.flow import Backoff, FlowControl
from penstock.jobs.client import PubSubClient, Subscriber
from penstock.jobs.codec import InvalidMessageError, decode_event
from penstock.jobs.job import (
    JobEvent,
    JobStage,
    MediaType,
    is_news,
)
from penstock.jobs.stage import Done
from penstock.jobs.together import Together
from penstock.message import Record
from penstock.transactional import Database

_log = logging.getLogger("penstock.jobs")
MAX_PAGE = 200
# What a watcher may be behind before it is told to look again at everything.
_WATCHER_BUFFER = 1000
# Seconds between looks at the event topic: what a live page is behind at most, or nearly.
_POLL = 0.1
_TROUBLE = Backoff(initial=0.5, maximum=10.0)


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


sql_metadata = MetaData()
sql_views = Table(
    "penstock_job_views",
    sql_metadata,
    Column("job_id", String(36), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("stage", String(24), nullable=False),
    Column("media_type", String(16), nullable=False),
    Column("queued_us", BigInteger, nullable=False),
    Column("view", LargeBinary, nullable=False),
    Index("penstock_job_views_by_user", "user_id", "queued_us", "job_id"),
    Index("penstock_job_views_by_time", "queued_us", "job_id"),
)


sql_positions = Table(
    "penstock_job_views_position",
    sql_metadata,
    Column("topic", String(255), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)
_CHANGE_VIEW = (
    update(sql_views)
    .where(sql_views.c.job_id == bindparam("id"))
    .values({name: bindparam(f"new_{name}") for name in ("stage", "queued_us", "view")})
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
        async with self._database.transaction() as connection:
            known = await self._locked(connection, events)
            changed: dict[str, JobView] = {}
            history = []
            for event in events:
                view = seen(known.get(event.job_id), event)
                if view is not None:
                    known[event.job_id] = changed[event.job_id] = view
                    history.append(view)
            if changed:
                await connection.execute(_CHANGE_VIEW, [_row(view) for view in changed.values()])
        return history

    async def _locked(
        self, connection: AsyncConnection, events: Sequence[JobEvent]
    ) -> dict[str, JobView]:
        """The views of the jobs that events are about. New ones get a row first, without a view:
        then there is one to lock, and of two processes the second sees what the first made."""
        blank = {
            event.job_id: {
                "job_id": event.job_id,
                "user_id": event.user_id,
                "media_type": event.media_type.value,
                "stage": "",
                "queued_us": 0,
                "view": b"",
            }
            for event in events
        }
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        await connection.execute(
            dialect.insert(sql_views).on_conflict_do_nothing(index_elements=["job_id"]),
            [blank[job_id] for job_id in sorted(blank)],
        )
        query = (
            select(sql_views.c.job_id, sql_views.c.view)
            .where(sql_views.c.job_id.in_(blank))
            .order_by(sql_views.c.job_id)
        )
        if connection.dialect.name == "postgresql":
            query = query.with_for_update()
        rows = (await connection.execute(query)).all()
        return {i: msgspec.json.decode(view, type=JobView) for i, view in rows if view}

    async def position(self, topic: str) -> int:
        """The last event of a topic that was taken in, by its sequence; 0 when none was."""
        async with self._database.transaction(reading=True) as connection:
            query = select(sql_positions.c.sequence).where(sql_positions.c.topic == topic)
            return int(await connection.scalar(query) or 0)

    async def reached(self, topic: str, sequence: int) -> None:
        async with self._database.transaction() as connection:
            dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
            upsert = dialect.insert(sql_positions).values(topic=topic, sequence=sequence)
            await connection.execute(
                upsert.on_conflict_do_update(
                    index_elements=["topic"],
                    set_={"sequence": sequence},
                    where=sql_positions.c.sequence < sequence,
                )
            )

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
        "id": job_id,
        "new_stage": view.stage.value,
        "new_queued_us": queued,
        "new_view": msgspec.json.encode(view),
    }


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """How far the read model is behind: events not yet taken in, and the age of the oldest."""

    events: int
    seconds: float


class Projection:
    """Keeps a read model up to date, and tells watchers what changes.

    Every process follows the whole event topic by its log, so each can tell its own watchers; the
    model does not mind that several write to it. When entered it first takes in what it has not
    seen, so a model in memory is whole before it answers. A broker without a log is followed
    through `subscription`, which only one process may use.
    """

    def __init__(self, client: PubSubClient, views: Views, subscription: str = "job-views") -> None:
        self._client = client
        self._views = views
        self._subscription = subscription
        self._topic = client.settings.topics.events
        self._watchers: set[Watcher] = set()
        self._next = 1
        self._caught_up = asyncio.get_running_loop().time()
        self._following: asyncio.Task[None] | None = None
        self._subscriber: Subscriber[JobEvent] | None = None
        self._taking = Together(self._take_all)

    async def __aenter__(self) -> Self:
        log = (await self._client.pubsub.broker()).log
        if log is None:
            await self._subscribe()
            return self
        self._next = await self._views.position(self._topic) + 1
        taken = await self._catch_up(log)
        if taken:
            _log.info("The read model took in %d events of %r", taken, self._topic)
        # Owned here: leaving ends it.
        self._following = asyncio.get_running_loop().create_task(self._follow(log))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for watcher in list(self._watchers):
            watcher.end()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        if self._subscriber is not None:
            await self._subscriber.aclose()
        await self._taking.aclose()

    async def lag(self) -> Lag:
        broker = await self._client.pubsub.broker()
        if broker.log is None:
            status = await self._client.pubsub.subscription(self._subscription).describe()
            return Lag(events=status.backlog, seconds=status.oldest_age)
        behind = max(0, (await broker.log.extent(self._topic)).last - self._next + 1)
        since = asyncio.get_running_loop().time() - self._caught_up
        return Lag(events=behind, seconds=since if behind else 0.0)

    def watch(self, user_id: str | None = None, job_id: str | None = None) -> Watcher:
        """Changes from now on, of one user or one job or all."""
        return Watcher(self._watchers, user_id, job_id)

    async def _follow(self, log: Log) -> None:
        failures = 0
        while True:
            try:
                await self._catch_up(log)
                failures = 0
            except PenstockError as error:
                failures += 1
                _log.warning("The read model cannot follow %r: %s", self._topic, error)
            await asyncio.sleep(_POLL if not failures else _TROUBLE.delay(failures))

    async def _catch_up(self, log: Log) -> int:
        """Take in what the topic holds and we have not seen; returns how many messages."""
        taken = 0
        extent = await log.extent(self._topic)
        if extent.last >= self._next:
            async for records in log.read(self._topic, self._next, extent.last):
                await self._take_records(records)
                self._next = records[-1].sequence + 1
                taken += len(records)
            self._next = extent.last + 1
            await self._views.reached(self._topic, extent.last)
        self._caught_up = asyncio.get_running_loop().time()
        return taken

    async def _take_records(self, records: Sequence[Record]) -> None:
        events = []
        for record in records:
            try:
                events.append(decode_event(record.data, record.attributes))
            except InvalidMessageError as error:
                _log.warning(
                    "Message %d of %r is no event: %s", record.sequence, self._topic, error.reason
                )
        await self._take_all(events)

    async def _take_all(self, events: Sequence[JobEvent]) -> Sequence[Done]:
        changed = list(await self._views.apply(events))
        if self._watchers:
            # What another process was faster to write is news to our watchers all the same.
            ours = {view.job_id for view in changed}
            for job_id in {event.job_id for event in events} - ours:
                view = await self._views.get(job_id)
                if view is not None:
                    changed.append(view)
            for watcher in list(self._watchers):
                watcher.tell(changed)
        return [Done()] * len(events)

    async def _subscribe(self) -> None:
        handle = self._client.pubsub.subscription(
            self._subscription,
            topic=self._topic,
            flow_control=FlowControl(max_messages=500),
            ack_deadline=60.0,
        )
        with suppress(AlreadyExistsError):
            await handle.create()
        if (await self._client.pubsub.broker()).capabilities.seek:
            await handle.seek(datetime.fromtimestamp(0, UTC))
        self._subscriber = Subscriber(
            handle,
            decode_event,
            self._take,
            self._client.observer,
            name="projection",
            publisher=self._client.publisher,
            dead_letters=self._client.settings.topics.dead_events,
        )
        await self._subscriber.__aenter__()

    async def _take(self, event: JobEvent, _attempt: int) -> Done:
        return await self._taking.do(event)


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
