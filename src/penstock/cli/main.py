"""`penstock`: one group of commands a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main() -> None:
    try:
        import typer
    except ImportError:
        sys.exit("The penstock command needs its extra: pip install 'penstock[cli,local]'")
    from penstock.cli.dead import dead
    from penstock.cli.server import server
    from penstock.errors import PenstockError

    # Their pretty tracebacks show local variables, and those may hold tokens.
    app = typer.Typer(
        help="Reliable messaging and job pipelines.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.add_typer(dead, name="dead")
    app.add_typer(server, name="server")
    _add_db(app)
    _add_jobs(app)
    try:
        app()
    except PenstockError as error:
        sys.exit(f"penstock: {error}")


def _add_db(app: typer.Typer) -> None:
    """What needs a database, or a line that says what is missing."""
    try:
        from penstock.cli.bridge import bridge
        from penstock.cli.db import db
    except ImportError as error:
        _explain(app, ("db", "bridge"), error, "cli,sql,nats")
        return
    app.add_typer(db, name="db")
    app.add_typer(bridge, name="bridge")


def _add_jobs(app: typer.Typer) -> None:
    """The groups that need more packages, or a line that says which."""
    try:
        from penstock.cli.jobs import jobs
        from penstock.cli.pipeline import pipeline
        from penstock.cli.worker import worker
    except ImportError as error:
        _explain(app, ("jobs", "worker", "pipeline"), error, "cli,web,media,local")
        return
    app.add_typer(jobs, name="jobs")
    app.add_typer(worker, name="worker")
    app.add_typer(pipeline, name="pipeline")


def _explain(app: typer.Typer, names: tuple[str, ...], error: ImportError, extras: str) -> None:
    missing = error.name

    def explain() -> None:
        sys.exit(f"This needs {missing}: pip install 'penstock[{extras}]'")

    for name in names:
        app.command(name, help="(not installed)")(explain)
