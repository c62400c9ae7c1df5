"""`penstock`: one group of commands a file, loaded when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

    from penstock.errors import PenstockError

# Groups by name, where they are, and the extra they need.
_GROUPS = {
    "run": ("penstock.cli.apps.run", "cli"),
    "asyncapi": ("penstock.cli.apps.asyncapi", "cli"),
    "dead": ("penstock.cli.brokers.dead", "cli"),
    "topics": ("penstock.cli.brokers.topics", "cli"),
    "subscriptions": ("penstock.cli.brokers.topics", "cli"),
    "provision": ("penstock.cli.jobs.provision", "cli,web,media,google"),
    "server": ("penstock.cli.brokers.server", "cli,local"),
    "db": ("penstock.cli.db", "cli,sql"),
    "bridge": ("penstock.cli.bridge.bridge", "cli,sql,nats"),
    "emulator": ("penstock.cli.brokers.emulator", "emulator,local"),
    "jobs": ("penstock.cli.jobs.jobs", "cli,web,media,local"),
    "worker": ("penstock.cli.jobs.worker", "cli,web,media,local"),
    "pipeline": ("penstock.cli.jobs.pipeline", "cli,web,media,local"),
}


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
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name in [wanted] if wanted in _GROUPS else _GROUPS:
        _add(app, name)
    try:
        app()
    except PenstockError as error:
        sys.exit(f"penstock: {_told(error)}")


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


def _commands() -> None:
    """Reliable messaging and job pipelines."""
    # There for one reason: a program with one command, because one was asked for, has no names.


def _add(app: typer.Typer, name: str) -> None:
    """A group, or a line that says what it needs."""
    import typer

    module, extra = _GROUPS[name]
    try:
        group = getattr(import_module(module), name)
    except ImportError as error:
        missing = error.name

        def explain() -> None:
            sys.exit(f"This needs {missing}: pip install 'penstock[{extra}]'")

        app.command(name, help="(not installed)")(explain)
        return
    if isinstance(group, typer.Typer):
        app.add_typer(group, name=name)
    else:
        app.command(name, no_args_is_help=name == "worker")(group)
