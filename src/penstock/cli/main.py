"""`penstock`: one group of commands a file."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import typer
    except ImportError:
        sys.exit("The penstock command needs its extra: pip install 'penstock[cli,local]'")
    from penstock.cli.server import server
    from penstock.errors import PenstockError

    app = typer.Typer(help="Reliable messaging and job pipelines.", no_args_is_help=True)
    app.add_typer(server, name="server")
    try:
        app()
    except PenstockError as error:
        sys.exit(f"penstock: {error}")
