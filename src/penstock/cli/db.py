"""`penstock db`: the versions of our tables in a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.brokers.broker import AsJson, print_json
from penstock.cli.exit_codes import NOT_ALL
from penstock.cli.file_options import or_in_file
from penstock.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from penstock.transactional import Database

db = typer.Typer(help="Versions of Penstock's tables.", no_args_is_help=True)
T = TypeVar("T")

Address = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="PENSTOCK_DATABASE",
        show_envvar=True,
        callback=or_in_file,
        help="The database, such as sqlite:///app.db or postgresql://user@host/name.",
    ),
]
Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        help="Of outbox, inbox, jobs, views, identity (repeat it for several); by default those "
        "that are there.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All parts, also those not used yet.")]


@db.command()
def status(database: Address = None, json: AsJson = False) -> None:
    """Say which versions a database has; ends with 1 when one of them is not what is needed."""
    from penstock.transactional import schema

    found = on_database(database, schema.status, create=False)
    for one in found:
        if json:
            versions = {"has": one.has, "needs": one.part.head}
            print_json({"part": one.part.name, "exists": one.exists, **versions})
        else:
            typer.echo(f"{one.part.name:<8} {one}")
    if any(one.exists and not one.current for one in found):
        raise typer.Exit(NOT_ALL)


@db.command()
def upgrade(database: Address = None, part: Parts = None, every: All = False) -> None:
    """Bring the tables to what this Penstock needs, in one transaction. Make a backup first."""
    from penstock.transactional import schema

    names = _names(part, every)
    changed = on_database(database, lambda opened: schema.upgrade(opened, names))
    for one in changed:
        was = one.has or ("no version" if one.exists else "not there")
        typer.echo(f"{one.part.name:<8} {one.part.head} (was: {was})")
    if not changed:
        typer.echo("Nothing to do.")


@db.command()
def sql(database: Address = None, part: Parts = None, every: All = False) -> None:
    """Write what `upgrade` would run, for those who may not run it."""
    from penstock.transactional import schema

    names = _names(part, every)
    written = on_database(database, lambda opened: schema.upgrade_sql(opened, names), create=False)
    typer.echo(written, nl=False)


def on_database(
    address: str | None, work: Callable[[Database], Awaitable[T]], *, create: bool = True
) -> T:
    """Run `work` on the database at an address. `create`: a SQLite file may be made for it."""
    if not address:
        raise InvalidArgumentError(
            "Which database? Give --database, or set PENSTOCK_DATABASE, or PENSTOCK_DATABASE_FILE "
            "to a file it is in, which keep a password out of sight"
        )

    from penstock.transactional import Database

    async def run(url: str) -> T:
        async with Database(url, create=create) as opened:
            if opened.dialect == "sqlite" and opened.place.endswith("in memory"):
                raise FailedPreconditionError("A database in memory is this command's own")
            return await work(opened)

    return asyncio.run(run(address))


def _names(part: list[str] | None, every: bool) -> list[str] | None:
    from penstock.transactional.schema import PARTS

    return list(PARTS) if every else part or None
