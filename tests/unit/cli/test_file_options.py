"""Whatever a command reads from a variable may be in a file, as containers are given secrets."""

import pytest

from penstock.cli.exit_codes import UNAVAILABLE, WRONG_USE
from tests.support.processes import command_here

URL, DATABASE = "PENSTOCK_URL_FILE", "PENSTOCK_DATABASE_FILE"
API, TOKEN = "PENSTOCK_API_URL_FILE", "PENSTOCK_API_TOKEN_FILE"
APPS = ("--app", "api", "--destination", "worker")


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        (URL, ("topics", "list")),
        (URL, ("topics", "tail", "orders")),
        (URL, ("subscriptions", "show", "billing", "--topic", "orders")),
        (URL, ("dead", "list", "orders-dead")),
        (URL, ("dead", "show", "orders-dead", "1")),
        (URL, ("run", "shop:app")),
        (URL, ("provision",)),
        (URL, ("worker", "metadata")),
        (URL, ("jobs", "serve")),
        (DATABASE, ("db", "status")),
        (DATABASE, ("worker", "metadata")),
        (API, ("jobs", "status")),
        (TOKEN, ("jobs", "submit", "https://media.example/a.wav")),
        ("PENSTOCK_BRIDGE_URL_FILE", ("bridge", "validate", *APPS)),
        ("PENSTOCK_BRIDGE_DATABASE_URL_FILE", ("bridge", "relay", *APPS)),
    ],
)
def test_every_command_looks_into_the_file_of_its_variable(variable, words, tmp_path):
    ended = command_here(*words, **{variable: str(tmp_path / "missing")})
    assert ended.code == WRONG_USE
    assert variable in ended.err and "No such file" in ended.err and ended.err.count("\n") == 1


def test_what_is_in_the_file_is_used(tmp_path):
    (tmp_path / "url").write_text("memory://\n")
    ended = command_here("topics", "list", **{URL: str(tmp_path / "url")})
    assert ended.code == WRONG_USE and "cannot be shared with other processes" in ended.err
    (tmp_path / "api").write_text("http://127.0.0.1:9\n")
    ended = command_here("jobs", "status", **{API: str(tmp_path / "api")})
    assert ended.code == UNAVAILABLE and "127.0.0.1:9" in ended.err


def test_what_is_typed_goes_before_the_file_and_two_sources_are_one_too_many(tmp_path):
    given = {URL: str(tmp_path / "missing")}
    ended = command_here("topics", "list", "--url", "memory://", **given)
    assert "cannot be shared" in ended.err
    ended = command_here("topics", "list", PENSTOCK_URL="nats://127.0.0.1:9", **given)
    assert ended.code == WRONG_USE and "are both set" in ended.err
