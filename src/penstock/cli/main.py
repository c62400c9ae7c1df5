"""`penstock`: one group of commands a file, loaded when it is asked for.

What a group only needs once it runs is imported by its functions: help is shown without it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from shlex import quote
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.cli.groups import GROUPS, is_brought, missing, needs

if TYPE_CHECKING:
    import typer

    from penstock.errors import PenstockError

# What variables of ours begin with; what comes below is for those to judge who read it.
_VARIABLES = {
    "API", "API_TOKEN", "API_TOKEN_FILE", "API_URL", "API_URL_FILE", "CONFIG", "DATABASE",
    "LOG_JSON", "MEDIA", "PIPELINE", "STAGES", "TOPICS", "URL",
}  # fmt: skip


def main() -> None:
    _open_standard_files()
    if sys.argv[1:2] == ["emulator"]:
        # It reads its arguments itself, and must be up before what the others need is loaded.
        from penstock.cli.brokers.emulator import emulator

        emulator()
        return
    from penstock.cli.exit_codes import code_of
    from penstock.cli.plain_text import one_line
    from penstock.errors import PenstockError

    wanted = _wanted()
    try:
        app = _app()
    except ImportError:
        sys.exit("penstock: The command needs its extra: pip install 'penstock[cli]'")
    try:
        if wanted in GROUPS:
            _add(app, wanted)
            if "--help" not in sys.argv:
                _check_variables()
        else:
            for name in GROUPS:
                _add_line(app, name)
        app()
    except PenstockError as error:
        sys.stderr.write(f"penstock: {one_line(str(_told(error)))}\n")
        sys.exit(code_of(error))
    except KeyboardInterrupt:
        sys.exit(130)  # While it was loaded: whatever runs hears Ctrl-C itself.
    except ModuleNotFoundError as error:
        if wanted in GROUPS and is_brought(GROUPS[wanted], error.name or ""):
            sys.exit(needs(GROUPS[wanted], error))
        raise


def _open_standard_files() -> None:
    """Where whoever starts us has closed them. What is opened next would take their places: it is
    written into by what writes to standard error, and libuv ends a process that closes one."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    # Python has no files for them then, and who tells of an error would fail.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _app() -> typer.Typer:
    import typer

    # Their pretty tracebacks show local variables, and those may hold tokens.
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"penstock {__version__}")
            raise typer.Exit

    def commands(
        _: bool = typer.Option(
            False, "--version", help="Say which Penstock this is.", callback=show_version,
            is_eager=True,
        ),
    ) -> None:  # fmt: skip
        """Reliable messaging and job pipelines."""
        # There for one more reason: a program with one command, because one was asked for, has no
        # names.

    app.callback()(commands)
    return app


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


def _wanted() -> str:
    """The group that is asked for, or whose commands a shell completes."""
    words = sys.argv
    if "_PENSTOCK_COMPLETE" in os.environ:
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        words = typed.split()
    return words[1] if len(words) > 1 else ""


def _add_line(app: typer.Typer, name: str) -> None:
    """What it is for, in a list of all."""
    lacks = missing(GROUPS[name])

    def never() -> None:
        raise AssertionError(f"{name} was asked for and not loaded")

    text = GROUPS[name].help
    app.command(name, help=f"{text} (needs the extra {', '.join(lacks)})" if lacks else text)(never)


def _add(app: typer.Typer, name: str) -> None:
    import typer

    group = getattr(import_module(GROUPS[name].module), name)
    if isinstance(group, typer.Typer):
        app.add_typer(group, name=name)
    else:
        app.command(name, no_args_is_help=name == "worker")(group)


def _told(error: PenstockError) -> PenstockError:
    """An error whose advice is for programs, with advice for a terminal."""
    from penstock.errors import SubscriptionNotFoundError, TopicNotFoundError

    if isinstance(error, TopicNotFoundError) and error.args == TopicNotFoundError(error.topic).args:
        return TopicNotFoundError(
            error.topic,
            "`penstock topics list` lists those there are, "
            f"`penstock topics create {quote(error.topic)}` makes it",
        )
    if (
        isinstance(error, SubscriptionNotFoundError)
        and error.args == SubscriptionNotFoundError(error.subscription).args
    ):
        return SubscriptionNotFoundError(
            error.subscription,
            "`penstock subscriptions list` lists those there are, "
            f"`penstock subscriptions create {quote(error.subscription)} --topic TOPIC` makes it",
        )
    return error
