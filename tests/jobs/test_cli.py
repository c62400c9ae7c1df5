"""`penstock jobs` and `penstock worker`, as a person types them."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(150)
PENSTOCK = Path(sys.executable).parent / "penstock"
SAMPLES = Path(__file__).parents[2] / "examples" / "media"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


def penstock(*words, api=None, **environment):
    env = {**CLEAN, "COLUMNS": "120", **environment}
    if api:
        env["PENSTOCK_API_URL"] = api
    ran = subprocess.run(
        [PENSTOCK, *words], capture_output=True, text=True, timeout=90, check=False, env=env
    )
    return ran.returncode, ran.stdout + ran.stderr


@contextmanager
def running(*words, until=None, **environment):
    """A command that keeps running; yields what it said once it said `until`."""
    process = subprocess.Popen(
        [PENSTOCK, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**CLEAN, "PYTHONUNBUFFERED": "1", "COLUMNS": "120", **environment},
    )
    try:
        said = ""
        for line in process.stdout:
            said += line
            if until in line:
                break
        assert until in said
        yield said
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(40)
        process.stdout.close()
    assert code == 0


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    where = [
        *("--url", f"local://{folder}/broker", "--database", f"sqlite:///{folder}/jobs.db"),
        *("--media", str(folder / "media")),
    ]
    with running("jobs", "serve", *where, "--port", "0", until="Serving on") as said:
        address = re.search(r"http://\S+", said)[0]
        with (
            running("worker", "metadata", *where, until="Working on"),
            running("worker", "transcription", *where, until="Working on"),
        ):
            yield address


def test_files_are_submitted_and_followed_to_their_end(api):
    code, said = penstock(
        *("jobs", "submit", "--wait", str(SAMPLES / "weather.wav"), str(SAMPLES / "note.pdf")),
        api=api,
    )
    assert code == 0
    assert said.count("TranscriptComplete") == 2
    code, said = penstock("jobs", "status", api=api)
    assert code == 0 and "audio" in said and "document" in said
    job = re.search(r"job_[0-9a-f]{32}(?=\s+audio)", said)[0]
    code, said = penstock("jobs", "status", job, "--text", api=api)
    assert code == 0 and "sunny" in said
    code, said = penstock("jobs", "retry", job, api=api)
    assert code == 1 and "cannot be retried" in said
    code, said = penstock("jobs", "watch", job, api=api)
    assert code == 0 and "TranscriptComplete" in said


def test_a_job_that_fails_ends_with_one_and_its_reason(api, tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"not sound")
    code, said = penstock("jobs", "submit", "--wait", str(tmp_path / "empty.wav"), api=api)
    assert code == 1
    assert "Failed" in said


def test_the_same_key_gives_the_same_job(api):
    words = ("jobs", "submit", "--key", "k", "--type", "audio", "missing.wav")
    assert penstock(*words, api=api) == penstock(*words, api=api)


@pytest.mark.parametrize("word", ["status", "retry", "cancel", "watch"])
def test_a_job_that_is_not_there_is_an_error_that_says_so(api, word):
    code, said = penstock("jobs", word, "job_" + "0" * 32, api=api)
    assert code == 1 and "not found" in said and "Traceback" not in said
    code, said = penstock("jobs", word, "nonsense", api=api)
    assert code == 1 and "looks like job_" in said


def test_an_api_that_is_not_there_is_an_error_that_says_what_to_do():
    code, said = penstock("jobs", "status", api="http://127.0.0.1:9")
    assert code == 1
    assert "penstock jobs serve" in said and "Traceback" not in said


def test_a_broker_in_memory_is_refused_before_anything_starts(tmp_path):
    for words in (("jobs", "serve"), ("worker", "metadata")):
        code, said = penstock(*words, "--database", f"sqlite:///{tmp_path}/jobs.db")
        assert code == 1
        assert "cannot be shared with other processes" in said


def test_a_wrong_setting_is_named(tmp_path):
    code, said = penstock(
        "worker", "metadata", "--url", "nats://127.0.0.1:9", PENSTOCK_API__PORT="lots"
    )
    assert code == 1
    assert "api.port" in said and "Traceback" not in said


def test_a_server_that_stops_while_somebody_watches_ends_in_time(tmp_path):
    where = [
        *("--url", f"local://{tmp_path}/broker", "--database", f"sqlite:///{tmp_path}/jobs.db"),
        *("--port", "0"),
    ]
    with running("jobs", "serve", *where, until="Serving on") as said:
        address = re.search(r"http://\S+", said)[0]
        watcher = subprocess.Popen(
            [PENSTOCK, "jobs", "watch"],
            env={**CLEAN, "PENSTOCK_API_URL": address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1)
    watcher.wait(30)
