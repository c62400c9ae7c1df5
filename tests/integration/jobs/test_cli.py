"""`penstock jobs` and `penstock worker`, as a person types them."""

import http.server
import json
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from penstock.cli.exit_codes import NOT_ALL, NOT_THERE, UNAVAILABLE, WRONG_USE
from penstock.cli.jobs.asking import kind_of
from penstock.jobs import MediaType
from tests.support.processes import PENSTOCK, command, command_here, settings

pytestmark = pytest.mark.timeout(600)
SAMPLES = Path(__file__).parents[3] / "examples" / "media"


def penstock(*words, api=None, run=command_here, **environment):
    where = {"PENSTOCK_API_URL": api} if api else {}
    ended = run(*words, **where, **environment)
    return ended.code, ended.said


@contextmanager
def running(*words, until=None, **environment):
    """A command that keeps running; yields what it said once it said `until`."""
    process = subprocess.Popen(
        [PENSTOCK, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=settings(PYTHONUNBUFFERED="1", **environment),
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
def system(tmp_path_factory):
    """An API and workers that run: `api` and `metrics` say where."""
    folder = tmp_path_factory.mktemp("jobs")
    where = [
        *("--url", f"local://{folder}/broker", "--database", f"sqlite:///{folder}/jobs.db"),
        *("--media", str(folder / "media")),
    ]
    with running("jobs", "serve", *where, "--port", "0", until="Serving on") as said:
        address = re.search(r"http://\S+", said)[0]
        with (
            running(
                *("worker", "metadata", *where, "--metrics-port", "0"), until="Working on"
            ) as worker_said,
            running("worker", "transcription", *where, until="Working on"),
        ):
            metrics = re.search(r"http://\S+/metrics", worker_said)[0]
            yield SimpleNamespace(api=address, metrics=metrics)


@pytest.fixture(scope="module")
def api(system):
    return system.api


def test_files_are_submitted_and_followed_to_their_end(api):
    code, said = penstock(
        *("jobs", "submit", "--wait", str(SAMPLES / "weather.wav"), str(SAMPLES / "note.pdf")),
        api=api,
        run=command,
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


def test_a_bad_one_among_several_is_named_and_the_others_are_sent(api, tmp_path):
    good, odd = tmp_path / "good [1].txt", tmp_path / "picture.xyz"
    for file in (good, odd):
        file.write_text("hello")
    words = ("jobs", "submit", "nowhere.mp3", str(good), str(odd), str(SAMPLES / "note.md"))
    ended = command_here(*words, PENSTOCK_API_URL=api)
    assert ended.code == NOT_ALL
    ids = re.findall(r"^(job_[0-9a-f]{32})  (.*)$", ended.out, re.M)
    assert [name for _, name in ids] == ["good [1].txt", "note.md"]
    first, second = ended.err.splitlines()
    assert first.startswith("penstock: nowhere.mp3 was not sent: There is no file")
    assert "picture.xyz was not sent" in second and "flac" in second
    lines = command_here(*words, "--json", PENSTOCK_API_URL=api).out.splitlines()
    told = [json.loads(line) for line in lines]
    assert [one["media"] for one in told] == list(words[2:])
    assert ["jobId" in one for one in told] == [False, True, False, True]


def test_which_did_not_complete_and_what_to_do_is_said_at_the_end(api, tmp_path):
    (tmp_path / "broken.wav").write_bytes(b"not sound")
    (tmp_path / "good.txt").write_text("hello")
    words = ("jobs", "submit", "--wait", str(tmp_path / "good.txt"), str(tmp_path / "broken.wav"))
    ended = command_here(*words, "nowhere.mp3", PENSTOCK_API_URL=api)
    assert ended.code == NOT_ALL
    _, _, summary = ended.out.partition("2 of 3 did not complete:")
    assert re.search(r"broken\.wav  job_\w+\n    Failed, \w+: .* Convert it", summary)
    assert re.search(r"nowhere\.mp3 *\n    not sent: There is no file", summary)
    assert "good.txt" not in summary
    ended = command_here(*words, "--json", PENSTOCK_API_URL=api)
    good, broken = [json.loads(line) for line in ended.out.splitlines()]
    assert good["stage"] == "TranscriptComplete" and broken["stage"] == "Failed"
    assert "Convert it" in broken["advice"]
    shown = command_here("jobs", "status", broken["jobId"], PENSTOCK_API_URL=api).out
    assert f"broken.wav: {broken['advice']}" in " ".join(shown.split())
    [job] = command_here("jobs", "status", broken["jobId"], "--json", PENSTOCK_API_URL=api)[1:2]
    assert json.loads(job)["reason"] == broken["reason"]


def test_the_same_key_gives_the_same_job(api, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    for words in (
        ("--key", "remote", "--remote", "--type", "audio", "missing.wav"),
        ("--key", "file", str(tmp_path / "a.txt")),
    ):
        first = penstock("jobs", "submit", *words, api=api)
        assert first[0] == 0
        assert penstock("jobs", "submit", *words, api=api) == first


def test_the_api_and_workers_serve_what_they_counted(system):
    code, said = penstock("jobs", "submit", "--wait", "--remote", "nowhere.wav", api=system.api)
    assert code == 1 and "not_found" in said
    worker = httpx.get(system.metrics, trust_env=False).text
    handled = "penstock_jobs_process_duration_seconds_count"
    assert re.search(rf'{handled}{{outcome="\w+",stage="metadata"}} [1-9]', worker)
    served = httpx.get(f"{system.api}/metrics", trust_env=False).text
    sent = "penstock_jobs_publish_duration_seconds_count"
    assert re.search(rf'{sent}{{messaging_destination_name="job-events",.*}} [1-9]', served)


@pytest.mark.parametrize("word", ["status", "retry", "cancel", "watch"])
def test_a_job_that_is_not_there_is_an_error_that_says_so(api, word):
    code, said = penstock("jobs", word, "job_" + "0" * 32, api=api)
    assert code == NOT_THERE and "not found" in said and "Traceback" not in said
    code, said = penstock("jobs", word, "nonsense", api=api)
    assert code == WRONG_USE and "looks like job_" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("status", "--stage", "Dnoe"), "Queued, MetadataReady, TranscriptComplete, Failed, Canc"),
        (("submit", "--type", "film", __file__), "audio, video, youtube, document, not film"),
    ],
)
def test_a_word_that_the_api_does_not_know_is_answered_with_those_it_does(api, words, told):
    code, said = penstock("jobs", *words, api=api)
    assert code == WRONG_USE and told in said


def test_a_file_that_is_named_like_another_media_type_is_a_mistake_that_says_what_to_do(api):
    words = ("submit", "--wait", "--type", "document", str(SAMPLES / "weather.wav"))
    code, said = penstock("jobs", *words, api=api)
    assert code == WRONG_USE and "ask for it as audio" in said


def test_an_api_that_is_not_there_is_an_error_that_says_what_to_do():
    code, said = penstock("jobs", "status", api="http://127.0.0.1:9")
    assert code == UNAVAILABLE
    assert "penstock jobs serve" in said and "Traceback" not in said


def test_a_broker_in_memory_is_refused_before_anything_starts(tmp_path):
    for words in (("jobs", "serve"), ("worker", "metadata")):
        code, said = penstock(*words, "--database", f"sqlite:///{tmp_path}/jobs.db")
        assert code == WRONG_USE
        assert "cannot be shared with other processes" in said


def test_a_wrong_setting_is_named(tmp_path):
    code, said = penstock(
        "worker", "metadata", "--url", "nats://127.0.0.1:9", PENSTOCK_API__PORT="lots"
    )
    assert code == WRONG_USE
    assert "api.port" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (["jobs", "status", "--api", "http://[::1"], {}, "--api must be an address"),
        (["jobs", "status", "--api", "http://127.0.0.1:99999"], {}, "--api must be an address"),
        (["jobs", "status", "--api", "foo"], {}, "--api must be an address"),
        (["jobs", "status", "--token", "gr\u00fc\u00df"], {}, "ASCII"),
        (["jobs", "submit", "--key", "gr\u00fc\u00df", "https://x/a.wav"], {}, "ASCII"),
        (["jobs", "submit", "nowhere.wav"], {}, "no file nowhere.wav"),
        (["jobs", "submit", "x" * 300], {}, "no file"),
        (["jobs", "submit", "--type", "audio", "dQw4w9WgXcQ"], {}, "--remote"),
        (["jobs", "submit", "--type", "youtube", "nonsense"], {}, "not a YouTube video"),
        (
            ["worker", "metadata"],
            {"PENSTOCK_API": "x", "PENSTOCK_API__PORT": "1"},
            "PENSTOCK_API__PORT",
        ),
        (["worker", "metadata"], {"PENSTOCK_MEDIA__ROOT": ""}, "media.root"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(words, environment, told):
    code, said = penstock(*words, **environment)
    assert code == WRONG_USE
    assert told in said and said.count("\n") == 1


def test_settings_that_are_not_utf8_are_one_line(tmp_path):
    (tmp_path / "penstock.toml").write_bytes(b'url = "\xff"')
    code, said = penstock("worker", "metadata", "--config", str(tmp_path / "penstock.toml"))
    assert code == WRONG_USE
    assert "UTF-8" in said and said.count("\n") == 1


def test_a_port_for_metrics_that_is_taken_is_an_error_that_says_so(system, tmp_path):
    port = re.search(r":(\d+)/", system.metrics)[1]
    where = ("--url", f"local://{tmp_path}/broker", "--database", f"sqlite:///{tmp_path}/jobs.db")
    code, said = penstock("worker", "metadata", *where, "--metrics-port", port, run=command)
    assert code == UNAVAILABLE and "choose another port" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("media", "kind"),
    [
        ("dQw4w9WgXcQ", MediaType.YOUTUBE),
        ("https://youtu.be/dQw4w9WgXcQ", MediaType.YOUTUBE),
        ("https://media.example/talk.mp4?x=1", MediaType.VIDEO),
        (str(SAMPLES / "note.pdf"), MediaType.DOCUMENT),
        (str(SAMPLES / "weather.wav"), MediaType.AUDIO),
    ],
)
def test_what_is_sent_is_known_by_its_name(media, kind):
    assert kind_of(media, None, remote=False) is kind


class Impostor(http.server.BaseHTTPRequestHandler):
    """Answers like an API whose streams end at once; or like something else altogether."""

    stage = "Queued"
    completes_after = None
    streams = 0
    body = None
    is_wiped = False

    def do_GET(self):
        kind = type(self)
        if kind.body is not None:
            self._answer(kind.body, "text/html")
        elif self.path == "/events":
            kind.streams += 1
            if kind.streams == kind.completes_after:
                kind.stage = "TranscriptComplete"
            news = b"event: job\r\ndata: %b\r\n\r\n" % self._job() if kind.streams == 1 else b""
            self._answer(b": watching\r\n\r\n" + news, "text/event-stream")
        elif kind.is_wiped and kind.streams > 1:
            self._answer(b'{"detail": "There is no such job"}', status=404)
        else:
            self._answer(self._job())

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(type(self).body or self._job())

    def _job(self):
        job = {"jobId": "job_" + "a" * 32, "mediaType": "audio", "stage": type(self).stage}
        return json.dumps(job | {"updatedAt": "2024-01-01T00:00:00Z"}).encode()

    def _answer(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def impostor(**attributes):
    """One that is told how to behave; yields its address."""
    handler = type("Told", (Impostor,), attributes)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


WAIT = ("jobs", "submit", "--wait", "--patience", "1", "--remote", "x.wav")


def test_a_stream_that_ends_before_the_job_is_no_success():
    with impostor() as address:
        code, said = penstock(*WAIT, api=address)
    assert code == UNAVAILABLE
    assert "before the jobs do" in said and "Traceback" not in said


def test_a_stream_that_ends_is_taken_up_again():
    with impostor(completes_after=3) as address:
        code, said = penstock(*WAIT, api=address)
    assert code == 0 and "TranscriptComplete" in said


def test_who_watches_for_a_script_writes_a_line_for_each_change_and_nothing_else():
    with impostor(completes_after=3) as address:
        ended = command_here("jobs", "watch", "job_" + "a" * 32, "--json", PENSTOCK_API_URL=address)
    told = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0 and [one["stage"] for one in told] == ["Queued", "TranscriptComplete"]


def test_who_watches_all_jobs_hears_what_became_of_those_under_way_while_the_api_was_away():
    with impostor(completes_after=2) as address:
        words = ("jobs", "watch", "--json", "--patience", "1")
        ended = command_here(*words, PENSTOCK_API_URL=address)
    told = [json.loads(line)["stage"] for line in ended.out.splitlines()]
    assert told == ["Queued", "TranscriptComplete"]


def test_who_watches_all_jobs_goes_on_though_one_of_them_is_gone():
    with impostor(is_wiped=True) as address:
        words = ("jobs", "watch", "--json", "--patience", "1")
        ended = command_here(*words, PENSTOCK_API_URL=address)
    assert "keeps ending" in ended.err


@pytest.mark.parametrize("body", [b"<html>", b'{"jobs": [1]}'])
@pytest.mark.parametrize("words", [("jobs", "status"), WAIT, ("jobs", "watch")])
def test_an_answer_of_something_else_is_an_error_that_says_so(words, body):
    with impostor(body=body) as address:
        code, said = penstock(*words, api=address)
    assert code == 1 and "is not this API" in said
    assert "Traceback" not in said


def test_waiting_goes_on_when_the_api_comes_back(tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    serve = [
        *("jobs", "serve", "--media", str(tmp_path), "--url", f"local://{tmp_path}/broker"),
        *("--database", f"sqlite:///{tmp_path}/jobs.db"),
    ]
    with running(*serve, "--port", "0", until="Serving on") as said:
        address = re.search(r"http://\S+", said)[0]
        waiting = subprocess.Popen(
            [PENSTOCK, "jobs", "submit", "--wait", "--remote", "note.txt"],
            env=settings(PENSTOCK_API_URL=address),
            stdout=subprocess.DEVNULL,
        )
        ends = time.monotonic() + 300
        while not httpx.get(f"{address}/jobs", trust_env=False).json()["jobs"]:
            assert time.monotonic() < ends
            time.sleep(0.1)
    assert waiting.poll() is None
    port = address.rpartition(":")[2]
    with running(*serve, "--workers", "--port", port, until="Serving on"):
        assert waiting.wait(60) == 0


def test_a_server_that_stops_while_somebody_watches_ends_in_time(tmp_path):
    where = [
        *("--url", f"local://{tmp_path}/broker", "--database", f"sqlite:///{tmp_path}/jobs.db"),
        *("--port", "0"),
    ]
    with running("jobs", "serve", *where, until="Serving on") as said:
        address = re.search(r"http://\S+", said)[0]
        watcher = subprocess.Popen(
            [PENSTOCK, "jobs", "watch", "--patience", "2"],
            env=settings(PENSTOCK_API_URL=address),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1)
    assert watcher.wait(30) == UNAVAILABLE
