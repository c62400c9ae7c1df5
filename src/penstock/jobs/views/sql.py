"""The read model in a database, where every API process sees the same and a restart forgets
nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, Unpack

import msgspec
from msgspec import Struct
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.errors import FailedPreconditionError
from penstock.jobs.model.codec import without_input
from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.media import MEDIA
from penstock.jobs.views.view import JobView, Listing, Position, Wanted, cursor_of, take_in
from penstock.transactional import Database, insert_into
from penstock.transactional.many_rows import READ_FIRST, ManyRows, OvertakenError
from penstock.transactional.schema import prepare

_log = logging.getLogger("penstock.jobs")
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
    Column("log", String(64)),
    Column("stored", String(32)),
)
_CHANGED = ("stage", "queued_us", "view")


def _upsert(insert: Any) -> ManyRows:
    new = {name: insert.excluded[name] for name in _CHANGED}
    return ManyRows(insert.on_conflict_do_update(index_elements=["job_id"], set_=new))


_INSERT: dict[str, Any] = {
    "sqlite": sqlite.insert(sql_views),
    "postgresql": postgresql.insert(sql_views),
}
_KEEP = {dialect: _upsert(insert) for dialect, insert in _INSERT.items()}
_ADD = {
    dialect: ManyRows(insert.on_conflict_do_nothing(index_elements=["job_id"]))
    for dialect, insert in _INSERT.items()
}
# Where a view is in lists stays as it is, but for an event that comes late: SQLite would move a row
# within its indexes whenever it is told where it is.
_NEW_VIEW: dict[str, Any] = {"stage": bindparam("new_stage"), "view": bindparam("new_view")}
_IS_IT = sql_views.c.job_id == bindparam("id")
_CHANGE = ManyRows(update(sql_views).where(_IS_IT).values(_NEW_VIEW))
_CHANGE_FROM = ManyRows(
    update(sql_views).where(_IS_IT, sql_views.c.view == bindparam("old_view")).values(_NEW_VIEW)
)
_BY_ID = select(sql_views.c.job_id, sql_views.c.view)
_FIND: dict[str, Any] = {
    # One value, however many ids: a statement for each number of them would be made anew each time.
    "sqlite": _BY_ID.where(
        sql_views.c.job_id.in_(
            select(func.json_each(bindparam("ids", type_=Text())).table_valued("value").c.value)
        )
    ),
    "postgresql": _BY_ID.where(
        sql_views.c.job_id == any_(bindparam("ids", type_=ARRAY(String(36))))
    ).order_by(sql_views.c.job_id),
}
# On SQLite nobody else writes before the transaction ends.
_FIND_LOCKED = _FIND | {"postgresql": _FIND["postgresql"].with_for_update()}


class _Changes(Struct):
    """What events come to: all views that they led to, one after the other, and the last of each
    job, by their ids: of jobs that nothing was known of, of those that stay where they are in
    lists, and of others."""

    history: Sequence[JobView]
    new: Sequence[JobView]
    stayed: Sequence[JobView]
    moved: Sequence[JobView]


class _Staged(Struct):
    """As much of a view as one of another version has."""

    stage: str | None = None


class SqlJobViews:
    """Rows of views, of the media types of one pipeline. Enter it to create the tables."""

    def __init__(self, database: Database, *, pipeline: Pipeline = MEDIA) -> None:
        self._database = database
        self._pipeline = pipeline
        kinds = [kind.value for kind in pipeline.job_types]
        # A row without a stage is one that no event could be taken into yet.
        self._ours = and_(sql_views.c.media_type.in_(kinds), sql_views.c.stage != "")

    async def __aenter__(self) -> Self:
        await prepare(self._database, "views", sql_metadata)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to end; the database is its owner's."""

    async def apply(self, events: Sequence[StageEvent]) -> Sequence[JobView]:
        if not events:
            return []
        if len(events) >= READ_FIRST:
            with suppress(OvertakenError):
                return await self._apply_as_read(events)
        async with self._database.transaction() as connection:
            if connection.dialect.name == "postgresql":
                await self._make_rows(connection, events)
            changes = self._changes(await self._found(connection, events, _FIND_LOCKED), events)
            if changes.stayed:
                await _CHANGE.execute(connection, [_change(view) for view in changes.stayed])
            if others := [*changes.moved, *changes.new]:
                await _KEEP[connection.dialect.name].execute(connection, [*map(_row, others)])
        return changes.history

    async def _apply_as_read(self, events: Sequence[StageEvent]) -> Sequence[JobView]:
        """They are read before the transaction; `OvertakenError` when one has changed since."""
        async with self._database.transaction(reading=True) as connection:
            found = await self._found(connection, events, _FIND)
        changes = self._changes(found, events)
        if changes.moved:
            raise OvertakenError  # Rare, and not worth a way of its own.
        added = [*map(_row, changes.new)]
        changed = [_change(view) | {"old_view": found[view.job_id]} for view in changes.stayed]
        async with self._database.transaction() as connection:
            if added:
                await _ADD[connection.dialect.name].execute_each(connection, added)
            if changed:
                await _CHANGE_FROM.execute_each(connection, changed)
        return changes.history

    async def _found(
        self, connection: AsyncConnection, events: Sequence[StageEvent], query: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """What is kept of the jobs that events are about."""
        ids: Any = sorted({event.job_id for event in events})
        dialect = connection.dialect.name
        if dialect == "sqlite":
            ids = msgspec.json.encode(ids).decode()
        rows = await connection.execute(query[dialect], {"ids": ids})
        return {row.job_id: row.view for row in rows}

    def _changes(self, found: Mapping[str, bytes], events: Sequence[StageEvent]) -> _Changes:
        """An event of a job whose view cannot be read is skipped."""
        known: dict[str, JobView] = {}
        unreadable: set[str] = set()
        for job_id, data in found.items():
            try:
                if data:
                    known[job_id] = self._view(job_id, data)
            except FailedPreconditionError as error:
                _log.error("The read model skips what it hears of a job. %s", error)
                unreadable.add(job_id)
        places = {job_id: view.queued_at for job_id, view in known.items()}
        readable = [event for event in events if event.job_id not in unreadable]
        history = [view for _, view in take_in(self._pipeline, known, readable)]
        last = {view.job_id: view for view in history}
        # In one order everywhere: else two who heard of the same jobs may wait for each other.
        ordered = [last[name] for name in sorted(last)]
        here = [one for one in ordered if one.job_id in places]
        return _Changes(
            history=history,
            new=[one for one in ordered if one.job_id not in places],
            stayed=[one for one in here if places[one.job_id] == one.queued_at],
            moved=[one for one in here if places[one.job_id] != one.queued_at],
        )

    async def _make_rows(self, connection: AsyncConnection, events: Sequence[StageEvent]) -> None:
        """New jobs get a row first, without a view: then there is one to lock, and of two
        processes the second sees what the first made."""
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
        await connection.execute(
            insert_into(connection, sql_views).on_conflict_do_nothing(index_elements=["job_id"]),
            [blank[job_id] for job_id in sorted(blank)],
        )

    async def position(self, topic: str) -> Position:
        async with self._database.transaction(reading=True) as connection:
            query = select(sql_positions).where(sql_positions.c.topic == topic)
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return Position()
        return Position(sequence=row.sequence, log=row.log or "", stored=row.stored or "")

    async def reached(self, topic: str, position: Position) -> None:
        values = {
            "sequence": position.sequence,
            "log": position.log or None,
            "stored": position.stored or None,
        }
        c = sql_positions.c
        # Others who follow the same log may be further; in another log, or in one that was put
        # back to an earlier time under its old name, nobody is.
        ahead = or_(c.sequence < position.sequence, c.log.is_distinct_from(values["log"]))
        where = ahead if position.sequence else None
        async with self._database.transaction() as connection:
            upsert = insert_into(connection, sql_positions).values(topic=topic, **values)
            await connection.execute(
                upsert.on_conflict_do_update(index_elements=["topic"], set_=values, where=where)
            )

    async def get(self, job_id: str) -> JobView | None:
        async with self._database.transaction(reading=True) as connection:
            query = select(sql_views.c.view).where(sql_views.c.job_id == job_id, self._ours)
            found = await connection.scalar(query)
        return self._view(job_id, found) if found else None

    async def count(self) -> int:
        async with self._database.transaction(reading=True) as connection:
            query = select(func.count()).select_from(sql_views).where(self._ours)
            return int(await connection.scalar(query) or 0)

    async def list(self, **wanted: Unpack[Wanted]) -> tuple[Sequence[JobView], str | None]:
        listing = Listing(**wanted)
        c = sql_views.c
        newest = select(c.job_id, c.view).order_by(c.queued_us.desc(), c.job_id.desc())
        query = newest.where(self._ours).limit(listing.most + 1)
        if listing.user_id is not None:
            query = query.where(c.user_id == listing.user_id)
        if listing.stage is not None:
            query = query.where(c.stage == listing.stage.value)
        if listing.media_type is not None:
            query = query.where(c.media_type == listing.media_type.value)
        if listing.before is not None:
            query = query.where(tuple_(c.queued_us, c.job_id) < listing.before)
        async with self._database.transaction(reading=True) as connection:
            rows = (await connection.execute(query)).all()
        page = [self._view(row.job_id, row.view) for row in rows[: listing.most]]
        return page, cursor_of(page[-1]) if len(rows) > listing.most else None

    def _view(self, job_id: str, data: bytes) -> JobView:
        try:
            view = msgspec.json.decode(data, type=JobView)
        except msgspec.DecodeError as error:
            raise self._unreadable(job_id, data, without_input(error)) from None
        if view.stage not in self._pipeline.event_types:
            raise self._unreadable(job_id, data, "")
        return view

    def _unreadable(self, job_id: str, data: bytes, why: str) -> FailedPreconditionError:
        with suppress(msgspec.DecodeError):
            stage = msgspec.json.decode(data, type=_Staged).stage
            if stage not in self._pipeline.event_types:
                return FailedPreconditionError(
                    f"Job {job_id} is at a stage that this process does not know, {stage}; run it "
                    f"with the pipeline that has this stage, instead of {self._pipeline.name!r}"
                )
        return FailedPreconditionError(
            f"The view of job {job_id} in {sql_views.name} is not one of this version: {why}. "
            f"Delete the row, and the topic's row in {sql_positions.name}: the events that the "
            "topic still has are taken in again at the next start"
        )


def _change(view: JobView) -> dict[str, Any]:
    return {
        "id": view.job_id,
        "new_stage": view.stage.value,
        "new_view": msgspec.json.encode(view),
    }


def _row(view: JobView) -> dict[str, Any]:
    queued, job_id = view.place
    return {
        "job_id": job_id,
        "user_id": view.user_id,
        "media_type": view.media_type.value,
        "stage": view.stage.value,
        "queued_us": queued,
        "view": msgspec.json.encode(view),
    }
