"""Versions of our tables: what a database has, what this Penstock needs, and how to get there.

Tables belong to parts, and each part has a line of revisions (`migrations/`). A part is created
when it is first used; one that is there in another version is an error that names the command to
run, and never changed behind anybody's back.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, MetaData, inspect, text

from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.transactional.database import Database

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

VERSION_TABLE = "penstock_schema"
_MIGRATIONS = Path(__file__).parent / "migrations"
Columns: TypeAlias = Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class Part:
    """`needs`: how many revisions this Penstock knows. `tables`: one of them shows that the part
    is there, even if it was made before there were versions."""

    name: str
    needs: int
    tables: tuple[str, ...]

    @property
    def head(self) -> str:
        return f"{self.name}_{self.needs}"


PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        Part("outbox", 3, ("penstock_outbox", "penstock_outbox_bundles")),
        Part("inbox", 1, ("penstock_inbox",)),
        Part("jobs", 3, ("penstock_jobs", "penstock_texts", "penstock_results")),
        Part("views", 2, ("penstock_job_views", "penstock_job_views_position")),
        Part("identity", 1, ("penstock_database",)),
    )
}


@dataclass(frozen=True, slots=True)
class PartStatus:
    """`has`: the revision a database is at; None when it has none, which is true of tables from
    before there were versions."""

    part: Part
    has: str | None
    exists: bool

    @property
    def current(self) -> bool:
        return self.has == self.part.head

    @property
    def newer(self) -> bool:
        """Made by a Penstock that knows more revisions than this one."""
        if self.has is None:
            return False
        number = self.has.rpartition("_")[2]
        return not number.isdigit() or int(number) > self.part.needs

    def __str__(self) -> str:
        if not self.exists:
            return "not there; made when first used"
        if self.current:
            return f"{self.has}, up to date"
        has = self.has or "no version"
        return f"{has}, needs {self.part.head}" if not self.newer else f"{has}, newer than this"


async def prepare(
    database: Database, name: str, metadata: MetaData, *, create: bool = True
) -> None:
    """See to it that the tables of a part are there and are what this Penstock needs.

    Creates them in a database that has none of them, unless it is only to look: then that is a
    `NotFoundError`. Safe to repeat, and when several processes start together.
    `FailedPreconditionError` when they are of another version, or damaged.
    """
    part = PARTS[name]
    async with database.transaction(reading=True) as connection:
        found = await connection.run_sync(_status_of, part)
        if found.current:
            lacking = await connection.run_sync(_lacking, metadata)
    if not found.exists and not create:
        raise NotFoundError(
            f"There is no {name} in {database.place}. It is made when it is first used, or by: "
            f"penstock db upgrade --part {name} --database ADDRESS"
        )
    if not found.exists:
        async with database.schema_transaction() as connection:
            if not (await connection.run_sync(_status_of, part)).exists:
                await connection.run_sync(_upgrade, [part])
        return
    _check(database, found)
    if lacking:
        raise FailedPreconditionError(
            f"The tables of the {name} in {database.place} say they are up to date, but lack "
            f"{', '.join(lacking)}; restore them from a backup, or move them away and start anew"
        )


async def upgrade(database: Database, names: Sequence[str] | None = None) -> list[PartStatus]:
    """Bring parts to what this Penstock needs, all in one transaction: those that are there, or
    those named, which are created if need be. Returns what they were before."""
    parts = _named(names)
    async with database.schema_transaction() as connection:
        before = [await connection.run_sync(_status_of, part) for part in parts]
        behind = [one for one in before if not one.current and (one.exists or names is not None)]
        for one in behind:
            if one.newer:
                _check(database, one)
        if behind:
            await connection.run_sync(_upgrade, [one.part for one in behind])
    return behind


async def status(database: Database) -> list[PartStatus]:
    async with database.transaction(reading=True) as connection:
        return [await connection.run_sync(_status_of, part) for part in PARTS.values()]


async def upgrade_sql(database: Database, names: Sequence[str] | None = None) -> str:
    """What `upgrade` would run, for those who may not run it themselves."""
    parts = _named(names)
    async with database.transaction(reading=True) as connection:
        found = [await connection.run_sync(_status_of, part) for part in parts]
        versions = await connection.run_sync(_versions)
        columns = await connection.run_sync(_columns)
    behind = [one.part for one in found if not one.current and (one.exists or names is not None)]
    return _sql(database.dialect, behind, versions, columns)


def _check(database: Database, found: PartStatus) -> None:
    what = f"The tables of the {found.part.name} in {database.place}"
    if found.newer:
        raise FailedPreconditionError(
            f"{what} are at {found.has}, which this Penstock does not know (it needs "
            f"{found.part.head}); use the newer Penstock that made them"
        )
    if not found.current:
        raise FailedPreconditionError(
            f"{what} are at {found.has or 'no version'}, and this Penstock needs "
            f"{found.part.head}; back it up, then run: penstock db upgrade --database ADDRESS"
        )


def _named(names: Sequence[str] | None) -> list[Part]:
    unknown = [name for name in names or () if name not in PARTS]
    if unknown:
        raise InvalidArgumentError(
            f"There is no part {', '.join(unknown)}; there are {', '.join(PARTS)}"
        )
    return [PARTS[name] for name in names] if names is not None else list(PARTS.values())


def _versions(connection: Connection) -> tuple[str, ...]:
    if not inspect(connection).has_table(VERSION_TABLE):
        return ()
    return tuple(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars())  # noqa: S608


def _status_of(connection: Connection, part: Part) -> PartStatus:
    look = inspect(connection)
    # Tables first: whoever makes them commits their version with them, perhaps just now.
    there = any(look.has_table(table) for table in part.tables)
    versions = [one for one in _versions(connection) if one.rpartition("_")[0] == part.name]
    has = versions[0] if versions else None
    return PartStatus(part, has, there or has is not None)


def _columns(connection: Connection) -> Columns:
    """Of those of our tables that are there."""
    look = inspect(connection)
    ours = [table for part in PARTS.values() for table in part.tables]
    return {
        table: {column["name"] for column in look.get_columns(table)}
        for table in ours
        if look.has_table(table)
    }


def _lacking(connection: Connection, metadata: MetaData) -> list[str]:
    """Tables and columns that should be there."""
    there = _columns(connection)
    found: list[str] = []
    for table in metadata.sorted_tables:
        if table.name not in there:
            found.append(table.name)
            continue
        missing = set(table.columns.keys()) - there[table.name]
        found += [f"{table.name}.{name}" for name in missing]
    return sorted(found)


def _scripts() -> ScriptDirectory:
    # Not before it is needed: most processes find their tables as they should be.
    from alembic.script import ScriptDirectory

    return ScriptDirectory(_MIGRATIONS, version_locations=[_MIGRATIONS])


def _upgrade(connection: Connection, parts: Sequence[Part]) -> None:
    _run(parts, _columns(connection), connection=connection)


def _sql(dialect: str, parts: Sequence[Part], versions: tuple[str, ...], columns: Columns) -> str:
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written, "starting_rev": versions or None}
    if parts:
        _run(parts, columns, dialect_name=dialect, opts=options)
    return written.getvalue()


def _run(
    parts: Sequence[Part], columns: Columns, *, opts: Mapping[str, Any] | None = None, **where: Any
) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    from penstock.transactional.migrations import BEFORE

    heads: Any = tuple(f"{part.name}@head" for part in parts)

    def steps(at: Any, _: object) -> Any:
        return _scripts()._upgrade_revs(heads, at)

    ours = {"version_table": VERSION_TABLE, "fn": steps, BEFORE: columns}
    context = MigrationContext.configure(**where, opts={**(opts or {}), **ours})
    with Operations.context(context):
        context.run_migrations()
