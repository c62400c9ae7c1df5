"""Help loads what it shows, and no more."""

import subprocess
import sys

import pytest
import typer

from penstock.cli.groups import GROUPS
from penstock.cli.jobs.options import MEDIA_REFERENCE
from penstock.cli.main import _VARIABLES, _add, main
from penstock.jobs.pipeline import media
from penstock.jobs.settings import JobSettings
from penstock.jobs.spelling import NOT_SETTINGS
from penstock.transactional import schema
from tests.support.processes import command_here

# Databases, HTTP, brokers, metrics, readers of media: what running needs, and help does not.
HEAVY = {
    "aiosqlite", "alembic", "av", "faster_whisper", "google", "grpc", "httpx", "litestar", "nats",
    "opentelemetry", "prometheus_client", "psycopg", "pyspark", "sqlalchemy", "uvicorn",
}  # fmt: skip
# As many as were loaded when this was written, and some for new versions of what shows help.
MOST = 640

COUNT = """
import sys
from penstock.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sys.modules)
"""


@pytest.mark.parametrize("words", [[], ["bridge"], ["db"], ["jobs"], ["provision"], ["worker"]])
def test_help_loads_nothing_that_only_running_needs(words):
    ran = subprocess.run(
        [sys.executable, "-c", COUNT, *words, "--help"], capture_output=True, text=True, check=True
    )
    *_, loaded = ran.stdout.splitlines()
    modules = set(loaded.split())
    assert "Usage" in ran.stdout and "typer" in modules
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    assert len(modules) < MOST, len(modules)


def test_apps_and_bridges_are_loaded_by_those_who_use_them():
    code = "import sys, penstock; {use}; print(*sys.modules)"

    def loaded(use):
        words = [sys.executable, "-c", code.format(use=use)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    both = {"penstock.bridge", "penstock.consuming"}
    assert not both & set(loaded("penstock.PubSub"))
    assert both <= set(loaded("penstock.App, penstock.Bridge"))


@pytest.mark.parametrize("name", [name for name in GROUPS if name != "emulator"])
def test_a_group_is_listed_with_its_own_first_line(name):
    app = typer.Typer()
    _add(app, name)
    if app.registered_groups:
        text = app.registered_groups[0].typer_instance.info.help
    else:
        text = app.registered_commands[0].callback.__doc__.partition("\n\n")[0]
    assert " ".join(text.split()) == GROUPS[name].help


def test_what_help_says_of_things_that_it_does_not_load_is_so(monkeypatch, capsys):
    assert MEDIA_REFERENCE == media.MEDIA_REFERENCE
    monkeypatch.setattr("sys.argv", ["penstock", "db", "upgrade", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main()
    assert f"Of {', '.join(schema.PARTS)} (repeat" in capsys.readouterr().out


def test_what_is_missing_when_a_command_runs_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    for name in [name for name in sys.modules if name.startswith("penstock.transactional")]:
        monkeypatch.delitem(sys.modules, name)
    words = ["penstock", "db", "status", "--database", f"sqlite:///{tmp_path}/x.db"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(
        SystemExit, match=r"This needs sqlalchemy.*: pip install 'penstock\[cli,sql\]'"
    ):
        main()


def test_a_misspelt_variable_is_an_error_whatever_is_asked_for():
    for words in (("jobs", "status"), ("topics", "list"), ("bridge", "health")):
        ended = command_here(*words, PENSTOCK_ULR="local://data")
        assert ended.code and "PENSTOCK_ULR (did you mean PENSTOCK_URL?)" in ended.err
    assert command_here("topics", "--help", PENSTOCK_ULR="x").code == 0
    assert {name.upper() for name in JobSettings.__struct_fields__} | NOT_SETTINGS == _VARIABLES


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.main._add", interrupt)
    monkeypatch.setattr("sys.argv", ["penstock", "jobs", "status"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


CLOSED = """
import os, sys
os.closerange(0, 3)
from penstock.cli.main import main
sys.argv = ["penstock", "--version"]
try:
    main()
except SystemExit:
    pass
nothing = os.stat(os.devnull).st_rdev
os._exit(int(any(os.fstat(number).st_rdev != nothing for number in range(3))))
"""


def test_errors_keep_their_number_where_standard_files_are_closed():
    code = "from penstock.cli.main import main; main()"
    words = ["jobs", "status", "--api", "http://127.0.0.1:9"]
    shell = ["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-c", code, *words]
    assert subprocess.run(shell, timeout=60, check=False).returncode == 3


def test_nothing_takes_the_place_of_standard_files_that_are_closed():
    assert subprocess.run([sys.executable, "-c", CLOSED], timeout=60, check=False).returncode == 0
