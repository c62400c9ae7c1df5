"""The read model in a database, where every API process sees the same and a restart forgets
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    func,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.jobs.model.job import JobEvent, JobStage, MediaType
from penstock.jobs.views.memory import MAX_PAGE, JobView, cursor_of, read_cursor, seen
from penstock.transactional import Database, insert_into
from penstock.transactional.schema import prepare

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
    """Rows of views. Enter it to create the tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __aenter__(self) -> Self:
        await prepare(self._database, "views", sql_metadata)
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
        await connection.execute(
            insert_into(connection, sql_views).on_conflict_do_nothing(index_elements=["job_id"]),
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
            upsert = insert_into(connection, sql_positions).values(topic=topic, sequence=sequence)
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
