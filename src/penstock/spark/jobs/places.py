"""Where the jobs are, for processes on other machines and in other folders."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from penstock.connect import scheme_of
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.identity import identity_of
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.views.sql import SqlJobViews
from penstock.transactional import Database


def absolute_place(place: str) -> str:
    """A folder or an address; a folder, and one in `local://DIR`, as seen from here."""
    scheme, separator, folder = place.partition("://")
    if not separator:
        return str(Path(place).expanduser().absolute())
    if scheme == "local" and folder:
        return f"local://{Path(folder).expanduser().absolute()}"
    return place


def absolute(settings: JobSettings) -> JobSettings:
    """The same settings, meaning the same in whatever folder they are read."""
    media = settings.media
    if media.root is not None:
        media = replace(media, root=absolute_place(media.root))
    return replace(
        settings,
        url=absolute_place(settings.url),
        database=_absolute_database(settings.database),
        media=media,
    )


def _absolute_database(address: str) -> str:
    file = sqlite_file(address)
    if file is None or file.is_absolute():
        return address
    return make_url(address).set(database=str(file.absolute())).render_as_string()


def sqlite_file(address: str) -> Path | None:
    """The file of a SQLite database; None for other databases. Refused: one in memory."""
    if not address.startswith("sqlite"):
        return None
    try:
        name = make_url(address).database
    except ArgumentError:
        name = None
    if name in (None, "", ":memory:"):
        raise InvalidArgumentError(
            "Spark runs in processes of its own, which cannot see a database in memory; use "
            "sqlite:///path or postgresql://user@host/database"
        )
    return Path(str(name))


def check_reach(settings: JobSettings, master: str) -> None:
    """Raise when tasks may run where the database, or the broker, is another one."""
    if master.startswith("local"):
        return
    if scheme_of(settings.url) == "local":
        raise InvalidArgumentError(
            f"local:// is a server of this machine, and the tasks of {master} run on others; set "
            "url to nats://host of a server that all of them reach"
        )
    if sqlite_file(settings.database) is not None:
        raise InvalidArgumentError(
            f"SQLite is a file of this machine, and the tasks of {master} run on others; set "
            "database to postgresql://user@host/database"
        )


def check_file(settings: JobSettings) -> None:
    """For tasks: opening a SQLite file that is not there would make an empty one."""
    file = sqlite_file(settings.database)
    if file is not None and not file.is_file():
        raise FailedPreconditionError(
            f"There is no database {file} where this task runs; on more than one machine use "
            "postgresql://user@host/database"
        )


async def reach_database(settings: JobSettings) -> None:
    """Raise when the database cannot be used: nobody is there, the password is wrong, or a file has
    no folder."""
    async with Database(settings.database):
        pass


async def prepare_database(settings: JobSettings) -> str:
    """Make every table before tasks come, so that none of them has to, and return the database's
    identity."""
    async with Database(settings.database) as database:
        async with ProcessingJobStore(database, settings):
            pass
        async with SqlJobViews(database, pipeline=settings.pipeline):
            pass
        return await identity_of(database)
