"""`penstock`: one group of commands a file, loaded when it is asked for.

What a group only needs once it runs is imported by its functions: help is shown without it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import typer

    from penstock.errors import PenstockError


class _Group(NamedTuple):
    """Where it is, the extras it needs, and its first line of help, to be shown without it."""

    module: str
    extras: str
    help: str


_GROUPS = {
    "run": _Group(
        "penstock.cli.apps.run", "cli",
        "Run an app until SIGINT or SIGTERM, which drain it; a second one ends it at once.",
    ),
    "asyncapi": _Group(
        "penstock.cli.apps.asyncapi", "cli",
        "Describe an app by AsyncAPI 3: its topics, what it receives and sends, and its shape.",
    ),
    "dead": _Group("penstock.cli.brokers.dead", "cli", "Messages that were given up."),
    "topics": _Group("penstock.cli.brokers.topics", "cli", "Topics of a broker."),
    "subscriptions": _Group("penstock.cli.brokers.topics", "cli", "Subscriptions of a broker."),
    "provision": _Group(
        "penstock.cli.jobs.provision", "cli,web,media,google",
        "Make the topics and subscriptions that jobs need, or make them what the settings say.",
    ),
    "server": _Group("penstock.cli.brokers.server", "cli,local", "The local server of a folder."),
    "db": _Group("penstock.cli.db", "cli,sql", "Versions of Penstock's tables."),
    "bridge": _Group(
        "penstock.cli.bridge.bridge", "cli,sql,nats",
        "A bridge between two apps. Settings come from PENSTOCK_BRIDGE_… variables or options.",
    ),
    "emulator": _Group(
        "penstock.cli.brokers.emulator", "emulator,local",
        "Serve Google Pub/Sub's protocol, for any client of it.",
    ),
    "jobs": _Group(
        "penstock.cli.jobs.jobs", "cli,web,media,local", "Media jobs, through the ingestion API."
    ),
    "worker": _Group(
        "penstock.cli.jobs.worker", "cli,web,media,local",
        "Run one stage of the jobs until interrupted.",
    ),
    "pipeline": _Group(
        "penstock.cli.jobs.pipeline", "cli,web,media,local", "The stages of the jobs, on Spark."
    ),
}  # fmt: skip
# By what each extra is known to be there.
_BROUGHT_BY = {
    "cli": "typer", "sql": "sqlalchemy", "web": "litestar", "media": "av", "nats": "nats",
    "local": "nats", "google": "grpc_status", "emulator": "grpc_reflection",
}  # fmt: skip
# What variables of ours begin with; what comes below is for those to judge who read it.
_VARIABLES = {
    "API", "API_TOKEN", "API_URL", "CONFIG", "DATABASE", "MEDIA", "PIPELINE", "STAGES", "TOPICS",
    "URL",
}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["emulator"]:
        # It reads its arguments itself, and must be up before what the others need is loaded.
        from penstock.cli.brokers.emulator import emulator

        emulator()
        return
    try:
        import typer
    except ImportError:
        sys.exit("The penstock command needs its extra: pip install 'penstock[cli,local]'")
    from penstock.errors import PenstockError

    # Their pretty tracebacks show local variables, and those may hold tokens.
    app = typer.Typer(
        help="Reliable messaging and job pipelines.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_commands)
    wanted = _wanted()
    if wanted in _GROUPS:
        _add(app, wanted)
    else:
        for name in _GROUPS:
            _add_line(app, name)
    try:
        if wanted in _GROUPS and "--help" not in sys.argv:
            _check_variables()
        app()
    except PenstockError as error:
        sys.exit(f"penstock: {_told(error)}")
    except ModuleNotFoundError as error:
        if wanted in _GROUPS and (error.name or "").partition(".")[0] in _BROUGHT_BY.values():
            sys.exit(_needs(wanted, error))
        raise


def _check_variables() -> None:
    """A variable that no command reads is a slip in one that should have counted."""
    prefix = "PENSTOCK_"
    strange = {
        name: text
        for name, text in os.environ.items()
        if name.startswith(prefix)
        and name.removeprefix(prefix).partition("__")[0].upper() not in _VARIABLES
    }
    if strange:
        from penstock.jobs.settings import JobSettings
        from penstock.jobs.spelling import check_spelling

        check_spelling(JobSettings, strange)


def _commands() -> None:
    """Reliable messaging and job pipelines."""
    # There for one reason: a program with one command, because one was asked for, has no names.


def _wanted() -> str:
    """The group that is asked for, or whose commands a shell completes."""
    words = sys.argv
    if "_PENSTOCK_COMPLETE" in os.environ:
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        words = typed.split()
    return words[1] if len(words) > 1 else ""


def _add_line(app: typer.Typer, name: str) -> None:
    """What it is for, in a list of all."""
    _, extras, text = _GROUPS[name]
    missing = [one for one in extras.split(",") if find_spec(_BROUGHT_BY[one]) is None]

    def never() -> None:
        raise AssertionError(f"{name} was asked for and not loaded")

    app.command(name, help=f"{text} (not installed)" if missing else text)(never)


def _add(app: typer.Typer, name: str) -> None:
    """A group, or a line that says what it needs."""
    import typer

    try:
        group = getattr(import_module(_GROUPS[name].module), name)
    except ImportError as error:
        explained = _needs(name, error)

        def explain() -> None:
            sys.exit(explained)

        app.command(name, help="(not installed)")(explain)
        return
    if isinstance(group, typer.Typer):
        app.add_typer(group, name=name)
    else:
        app.command(name, no_args_is_help=name == "worker")(group)


def _needs(name: str, error: ImportError) -> str:
    return f"This needs {error.name}: pip install 'penstock[{_GROUPS[name].extras}]'"


def _told(error: PenstockError) -> PenstockError:
    """An error whose advice is for programs, with advice for a terminal."""
    from penstock.errors import SubscriptionNotFoundError, TopicNotFoundError

    if isinstance(error, TopicNotFoundError) and error.args == TopicNotFoundError(error.topic).args:
        return TopicNotFoundError(
            error.topic,
            "`penstock topics list` lists those there are, "
            f"`penstock topics create {error.topic}` makes it",
        )
    if (
        isinstance(error, SubscriptionNotFoundError)
        and error.args == SubscriptionNotFoundError(error.subscription).args
    ):
        return SubscriptionNotFoundError(
            error.subscription,
            "`penstock subscriptions list` lists those there are, "
            f"`penstock subscriptions create {error.subscription} --topic TOPIC` makes it",
        )
    return error
