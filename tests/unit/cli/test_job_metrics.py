"""What a worker or a pipeline says of itself: its numbers, that it lives, that it is ready."""

import asyncio
import json
import logging
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from penstock.cli.jobs.metrics import keeping_ready, serving_metrics, serving_metrics_beside
from penstock.cli.jobs.process import log_to_terminal
from penstock.errors import UnavailableError

pytestmark = pytest.mark.real_time


def get(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - ours
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def address_in(said):
    return said[said.index("http://") : said.index("/metrics")]


async def test_they_are_served_on_the_address_that_was_chosen(capsys):
    async with serving_metrics("127.0.0.2", 0) as readiness:
        where = address_in(capsys.readouterr().out)
        assert where.startswith("http://127.0.0.2:")
        assert "python_info" in (await asyncio.to_thread(get, f"{where}/metrics"))[1]
        assert await asyncio.to_thread(get, f"{where}/live") == (200, "alive\n")
        starting = (503, "not ready: it is starting\n")
        assert await asyncio.to_thread(get, f"{where}/ready") == starting
        readiness.lacks = None
        assert await asyncio.to_thread(get, f"{where}/ready") == (200, "ready\n")


async def test_without_a_port_nothing_is_served(capsys):
    async with serving_metrics("127.0.0.1", None):
        assert capsys.readouterr().out == ""


def test_beside_spark_they_are_served_from_a_thread_that_ends(capsys):
    with serving_metrics_beside("127.0.0.1", 0) as readiness:
        where = address_in(capsys.readouterr().out)
        readiness.lacks = None
        assert get(f"{where}/ready") == (200, "ready\n")
        port = int(where.rpartition(":")[2])
        with (
            pytest.raises(UnavailableError, match="choose another port"),
            serving_metrics_beside("127.0.0.1", port),
        ):
            pass
    with pytest.raises(urllib.error.URLError):
        get(f"{where}/live")


class Part:
    """A broker or a database, which answers or does not."""

    trouble = UnavailableError

    def __init__(self):
        self.away = False

    async def ping(self):
        if self.away:
            raise self.trouble("gone from db.internal")

    async def broker(self):
        return self


@pytest.mark.parametrize("trouble", [UnavailableError, RuntimeError], ids=["told", "unforeseen"])
async def test_ready_is_who_reaches_broker_and_database(monkeypatch, caplog, trouble):
    monkeypatch.setattr("penstock.cli.jobs.metrics._LOOK_EVERY", 0.01)
    monkeypatch.setattr(Part, "trouble", trouble)
    caplog.set_level("INFO")
    system = SimpleNamespace(database=Part(), pubsub=Part())

    async def becomes(status):
        async with asyncio.timeout(10):
            while readiness.page()[0] != status:
                await asyncio.sleep(0.01)

    async with serving_metrics("127.0.0.1", None) as readiness:
        async with keeping_ready(system, readiness):
            for part in (system.database, system.pubsub):
                await becomes(200)
                part.away = True
                await becomes(503)
                assert "db.internal" not in readiness.page()[1]
                part.away = False
            await becomes(200)
        assert readiness.page() == (503, "not ready: it is stopping\n")
    told = [r.levelname for r in caplog.records if "not ready" in r.getMessage()]
    assert told == ["WARNING", "INFO"] * 2


def test_logs_are_lines_of_json_when_asked_for(capsys):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers.clear()
    try:
        log_to_terminal(as_json=True)
        logging.getLogger("penstock.jobs").info("handled", extra={"jobId": "job_1"})
        line = json.loads(capsys.readouterr().err.splitlines()[-1])
    finally:
        root.handlers[:], root.level = before
    assert (line["level"], line["message"], line["jobId"]) == ("INFO", "handled", "job_1")
