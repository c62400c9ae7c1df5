"""Parameters that several commands share."""

from contextlib import nullcontext

import typer
from typer.testing import CliRunner

from penstock.cli.sharing import with_options


def colour(red: bool = False):
    return nullcontext("red" if red else "grey")


def size(width: int = 1, height: int = 1):
    return nullcontext(width * height)


def test_a_command_may_share_the_parameters_of_several():
    told = []

    @with_options(size)
    @with_options(colour)
    def paint(colour, size, coats: int = 1):
        told.append((colour, size, coats))

    app = typer.Typer()
    app.command()(paint)
    done = CliRunner().invoke(app, ["--red", "--width", "3", "--height", "2", "--coats", "4"])
    assert done.exit_code == 0, done.output
    assert told == [("red", 6, 4)]
