"""The emulator on a broker that keeps what it is told: killed, and started again."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry

from tests.support.google_clients import Google

NEVER = Retry(predicate=lambda _: False)


class Process:
    """`penstock emulator --broker local://DIR`, on one port whatever happens to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.google: Google | None = None

    def command(self, **options: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
        return subprocess.Popen(
            [
                *command,
                "emulator",
                *("--broker", f"local://{self._folder}", "--project", "project-one"),
                *("--port", str(self._port)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def start(self) -> Google:
        self._process = self.command()
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline().split()[-1])
        self.google = Google(f"127.0.0.1:{self._port}", "project-one")
        grpc.channel_ready_future(self.google.channel).result(10)
        return self.google

    def kill(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait(10)
        self._process.stdout.close()
        if self.google is not None:
            self.google.channel.close()
            self.google = None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.google.close()
            self._process.terminate()
            self._process.wait(10)
            self._process.stdout.close()


@pytest.fixture
def emulator(tmp_path):
    process = Process(tmp_path / "data")
    yield process
    process.close()


def drain(google, sub: str, quiet: float) -> list[str]:
    """Everything that is there, acked; until nothing has come for a while."""
    seen: list[str] = []
    until = time.monotonic() + quiet
    while time.monotonic() < until:
        received = google.pull(sub)
        if received:
            seen += [one.message.data.decode() for one in received]
            google.ack(sub, *received)
            until = time.monotonic() + quiet
        else:
            time.sleep(0.05)
    return seen


def test_what_was_made_is_there_again(emulator):
    google = emulator.start()
    topic, dead = google.topic(labels={"team": "blue"}), google.topic()
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 7}
    options = {"labels": {"a": "b"}, "filter": "attributes:x", "ack_deadline_seconds": 33}
    sub = google.subscription(topic, dead_letter_policy=policy, **options)
    schema = google.schemas.create_schema(
        request={
            "parent": "projects/project-one",
            "schema": {"type_": "AVRO", "definition": '{"type": "string"}'},
            "schema_id": "kept",
        }
    )
    before = google.publisher.get_topic(request={"topic": topic})
    before_sub = google.subscriber.get_subscription(request={"subscription": sub})
    emulator.kill()
    google = emulator.start()
    assert google.publisher.get_topic(request={"topic": topic}) == before
    assert google.subscriber.get_subscription(request={"subscription": sub}) == before_sub
    assert google.schemas.get_schema(request={"name": schema.name}) == schema
    project = {"project": "projects/project-one"}
    assert {t.name for t in google.publisher.list_topics(request=project)} == {topic, dead}


def test_nothing_acked_comes_back_and_nothing_unacked_is_lost(emulator):
    google = emulator.start()
    topic, sub = google.pair()
    stored: set[str] = set()
    acked: set[str] = set()

    def pulled(count: int = 100) -> list:
        received = google.pull(sub, count)
        assert acked.isdisjoint(one.message.data.decode() for one in received)
        return received

    for life in range(3):
        for n in range(50):
            google.publish(topic, f"{life}-{n}")
            stored.add(f"{life}-{n}")
        received = pulled(20)
        assert received
        google.ack(sub, *received[::2])
        emulator.kill()
        google = emulator.start()
        google.ack(sub, received[1])  # an ack id of before still counts
        acked |= {one.message.data.decode() for one in (*received[::2], received[1])}
        again = pulled()
        if again:
            google.nack(sub, *again)
    # What was lent when it died comes back when its deadline has passed.
    last = drain(google, sub, quiet=12)
    assert acked.isdisjoint(last)
    assert acked | set(last) == stored


def test_a_key_goes_on_from_where_it_was(emulator):
    google = emulator.start()
    topic, sub = google.pair(enable_message_ordering=True)
    google.publish(topic, *"abcdef", ordering_key="key")
    for expected in (b"a", b"b"):
        [received] = google.pull_until(sub, 1)
        assert received.message.data == expected
        google.ack(sub, received)
    [lent] = google.pull_until(sub, 1)
    assert lent.message.data == b"c"
    emulator.kill()
    google = emulator.start()
    assert "".join(drain(google, sub, quiet=13)) == "cdef"


def test_lists_and_updates_do_not_mind_what_others_do_meanwhile(emulator):
    google = emulator.start()
    topic = google.topic()
    project = {"project": "projects/project-one"}
    done = threading.Event()

    def make_and_delete() -> None:
        while not done.is_set():
            brief, sub = google.pair()
            google.subscriber.delete_subscription(request={"subscription": sub})
            google.publisher.delete_topic(request={"topic": brief})

    def update(field: str, value: object) -> None:
        request = {"topic": {"name": topic, field: value}, "update_mask": {"paths": [field]}}
        google.publisher.update_topic(request=request, retry=NEVER)

    with ThreadPoolExecutor(4) as pool:
        busy = pool.submit(make_and_delete)
        for turn in range(30):
            assert topic in {t.name for t in google.publisher.list_topics(request=project)}
            list(google.subscriber.list_subscriptions(request=project))
            labels = pool.submit(update, "labels", {"turn": str(turn)})
            update("message_retention_duration", {"seconds": 600 + turn})
            labels.result(10)
            found = google.publisher.get_topic(request={"topic": topic})
            assert found.labels == {"turn": str(turn)}
            assert found.message_retention_duration.seconds == 600 + turn
        done.set()
        busy.result(10)


def test_a_folder_has_one_emulator_at_a_time(emulator, tmp_path):
    emulator.start()
    other = Process(tmp_path / "data")
    refused = other.command(stderr=subprocess.PIPE)
    _, said = refused.communicate(timeout=20)
    assert refused.returncode == 1
    assert "Another emulator has" in said


def test_what_is_durable_is_not_reset(emulator):
    google = emulator.start()
    topic = google.topic()
    answer = httpx.post(f"http://{google.address}/reset")
    assert (answer.status_code, "by name" in answer.text) == (400, True)
    assert google.publisher.get_topic(request={"topic": topic}).name == topic


def test_what_jetstream_does_not_have_is_said(emulator):
    google = emulator.start()
    _, sub = google.pair()
    request = {"subscription": sub}
    error = google.refusal(google.publisher.detach_subscription, request=request, retry=NEVER)
    assert isinstance(error, exceptions.MethodNotImplemented)


def test_a_snapshot_outlives_the_emulator(emulator):
    google = emulator.start()
    topic, sub = google.pair()
    google.publish(topic, "a", "b")
    snapshot = google.path("snapshots")
    google.subscriber.create_snapshot(request={"name": snapshot, "subscription": sub})
    google.ack(sub, *google.pull_until(sub, 2))
    emulator.kill()
    google = emulator.start()
    assert google.subscriber.get_snapshot(request={"snapshot": snapshot}).topic == topic
    google.subscriber.seek(request={"subscription": sub, "snapshot": snapshot})
    again = google.pull_until(sub, 2)
    assert sorted(one.message.data for one in again) == [b"a", b"b"]
