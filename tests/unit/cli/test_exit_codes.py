"""What a command ends with tells a script what to do next."""

import re
from pathlib import Path

import pytest

from penstock import errors
from penstock.cli import exit_codes
from penstock.cli.exit_codes import code_of
from penstock.media import MediaError
from tests.support.processes import command_here

DOCUMENT = Path(__file__).parents[3] / "docs" / "commands.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgumentError("x"), 2),
        (errors.FilterError("x", "y", 1), 2),
        (errors.UnavailableError("x"), 3),
        (errors.DeadlineExceededError("x"), 3),
        (errors.TopicNotFoundError("x"), 4),
        (errors.PermissionDeniedError("x"), 5),
        (errors.UnauthenticatedError("x"), 5),
        (errors.FailedPreconditionError("x"), 1),
        (errors.DataLossError("x"), 1),
        (MediaError("network", permanent=False), 3),
    ],
)
def test_errors_of_a_kind_end_alike(error, code):
    assert code_of(error) == code


def test_the_documented_codes_are_those_there_are():
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT.read_text(), re.M)}
    ours = {code for name, code in vars(exit_codes).items() if name.isupper()}
    assert table == ours | {0, 130}


def test_an_error_is_one_line_on_standard_error():
    ended = command_here("topics", "list", "--url", "carrier-pigeon://x")
    assert (ended.code, ended.out) == (exit_codes.WRONG_USE, "")
    assert ended.err.startswith("penstock: No broker for carrier-pigeon://")
    assert ended.err.count("\n") == 1
