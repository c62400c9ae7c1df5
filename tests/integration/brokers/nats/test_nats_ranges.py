"""The range log of JetStream, on servers that really do what servers do."""

import os
import signal
import time

import pytest

from penstock.brokers.nats.local.folder import LocalServer
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.sync.connection import BlockingConnection
from penstock.columns import Columns
from penstock.connect import connect, open_ranges
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.message import Draft
from penstock.spark.ranges import PatientRanges
from tests.support.nats_scenes import api, fill, make
from tests.support.range_logs import WAYS, read_all_ranges
from tests.support.servers import NatsServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
def log(server):
    made = open_ranges(server.url)
    yield made
    made.close()


@pytest.fixture(params=WAYS)
def either_way(request, monkeypatch):
    read_all_ranges(monkeypatch, request.param)


def whole(batches):
    found = Columns()
    for batch in batches:
        found.extend(batch)
    return found


def small_batches(monkeypatch, **sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(f"penstock.brokers.nats.sync.passing_consumer.{name}", size)
        monkeypatch.setattr(f"penstock.brokers.nats.sync.direct.{name}", size)


@pytest.mark.usefixtures("either_way")
def test_every_kind_of_message_is_read_alike_and_no_consumer_is_left(server, log, monkeypatch):
    small_batches(monkeypatch, BATCH_BYTES=50_000)
    topic = "kinds"
    api(server.url, "STREAM.DELETE.kinds", may_fail=True)
    make(server.url, topic)
    fill(server.url, topic, [1, 2])
    fill(server.url, topic, [3], size=200_000)
    fill(server.url, topic, [4], attributes={"a b": "é"}, ordering_key="ann")
    with BlockingConnection(NatsOptions.of(server.url)) as connection:
        connection.ask("kinds.deep", b"", b"5")
    fill(server.url, topic, [6], size=20_000)
    fill(server.url, topic, range(7, 20), size=10_000)
    found = whole(log.read(topic, 2, 18))
    assert [int(data.rstrip(b"\0")) for data in found.data] == list(range(2, 19))
    assert found.sequences == list(range(2, 19))
    assert (found.attributes, found.keys) == ({2: {"a b": "é"}}, {2: "ann"})
    assert (found.subjects[3], found.ids[3]) == (b"kinds.deep", b"kinds-5")
    assert (found.subjects[4], found.ids[4]) == (b"kinds", b"kinds/6")
    assert found.published_us == sorted(found.published_us)
    assert len(found.data[1]) == 200_001
    assert api(server.url, "STREAM.INFO.kinds")["state"]["consumer_count"] == 0


def test_both_ways_of_reading_agree_on_every_column(server, log, monkeypatch):
    make(server.url, "routed", routed_attributes=("stage",))
    for n in range(30):
        fill(server.url, "routed", [n], attributes={"stage": "abc"[n % 3]})
    wanted = 'attributes.stage = "a" OR attributes.stage = "c"'
    found = []
    for way in WAYS:
        read_all_ranges(monkeypatch, way)
        found.append(whole(log.read("routed", 3, 28, wanted, headers=True)))
    for name in Columns.__slots__:
        assert getattr(found[0], name) == getattr(found[1], name), name
    kept = [n for n in range(30) if 3 <= n + 1 <= 28 and n % 3 != 1]
    assert found[0].sequences == [n + 1 for n in kept]
    assert found[0].subjects == [b"routed.%b" % b"abc"[n % 3 : n % 3 + 1] for n in kept]


def test_a_user_who_may_make_no_consumers_reads_directly(tmp_path, monkeypatch):
    denied = """
    authorization { users = [
      { user: admin, password: admin }
      { user: reader, password: reader,
        permissions: { publish: { deny: "$JS.API.CONSUMER.>" } } }
    ] }
    """
    read_all_ranges(monkeypatch, "through a consumer")
    with NatsServer(tmp_path, extra=denied) as server:
        admin = server.url.replace("nats://", "nats://admin:admin@")
        reader = server.url.replace("nats://", "nats://reader:reader@")
        make(admin, "orders")
        fill(admin, "orders", range(10))
        log = open_ranges(reader)
        assert whole(log.read("orders", 1, 10)).sequences == list(range(1, 11))
        log.close()


@pytest.mark.parametrize("kind", [{"tls": True}, {"credentials": True}], ids=str)
def test_a_range_is_read_with_tls_and_with_credentials(tmp_path, kind, monkeypatch):
    read_all_ranges(monkeypatch, "through a consumer")
    with NatsServer(tmp_path, **kind) as server:
        make(server.url, "orders")
        fill(server.url, "orders", range(10))
        log = open_ranges(server.url)
        assert whole(log.read("orders", 1, 10)).sequences == list(range(1, 11))
        log.close()


def test_a_wrong_password_is_said(tmp_path):
    guarded = 'authorization { token: "right" }'
    with NatsServer(tmp_path, extra=guarded) as server:
        good = server.url.replace("nats://", "nats://right@")
        make(good, "orders")
        fill(good, "orders", [1])
        right = open_ranges(good)
        assert right.extent("orders").last == 1
        right.close()
        with pytest.raises(UnauthenticatedError, match="refused these credentials"):
            open_ranges(server.url.replace("nats://", "nats://wrong@")).extent("orders")


def test_files_that_are_not_there_are_said(server):
    for option in ("credentials", "nkey", "tls_ca"):
        log = open_ranges(f"{server.url}?{option}=/nonexistent")
        with pytest.raises(InvalidArgumentError, match=r"nonexistent|cannot be used"):
            log.extent("orders")


def test_a_subject_that_may_not_be_used_is_said(tmp_path):
    denied = """
    authorization { users = [
      { user: reader, password: reader, permissions: { publish: { deny: "$JS.API.STREAM.>" } } }
    ] }
    """
    with NatsServer(tmp_path, extra=denied) as server:
        log = open_ranges(server.url.replace("nats://", "nats://reader:reader@"))
        for _ in range(2):
            with pytest.raises(PermissionDeniedError, match=r"STREAM\.INFO\.orders.*grant it"):
                log.extent("orders")
        log.close()


def test_a_stream_that_cannot_be_read_directly_is_read_through_a_consumer(server, log):
    api(server.url, "STREAM.CREATE.closed", {"name": "closed", "subjects": ["closed"]})
    began = time.time_ns() // 1000
    fill(server.url, "closed", range(3))
    assert (log.extent("closed").first, log.extent("closed").last) == (1, 3)
    for last in (3, 3000):
        found = [n for columns in log.read("closed", 1, last) for n in columns.sequences]
        assert found == [1, 2, 3]
    assert [n for columns in log.read("closed", 2, 2) for n in columns.sequences] == [2]
    assert log.first_since("closed", began) == 1
    assert log.first_since("closed", time.time_ns() // 1000) is None


def test_a_work_queue_that_cannot_be_read_directly_is_said(server, log):
    config = {"name": "queue", "subjects": ["queue"], "retention": "workqueue"}
    api(server.url, "STREAM.CREATE.queue", config)
    fill(server.url, "queue", range(3))
    for last in (3, 3000):
        with pytest.raises(FailedPreconditionError, match="set allow_direct"):
            list(log.read("queue", 1, last))


@pytest.mark.real_time
async def test_the_log_reads_it_all_the_same(server):
    config = {"name": "shut", "subjects": ["shut"], "retention": "workqueue"}
    api(server.url, "STREAM.CREATE.shut", config)
    broker = await connect(server.url)
    try:
        await broker.publish("shut", [Draft.of(b"x", subject="shut")] * 3)
        found = [record async for batch in broker.log.read("shut", 1, 3) for record in batch]
    finally:
        await broker.aclose()
    assert [record.sequence for record in found] == [1, 2, 3]


def test_a_consumer_that_is_gone_is_an_outage_and_reading_goes_on(server, log, monkeypatch):
    small_batches(monkeypatch, BATCH=10)
    read_all_ranges(monkeypatch, "through a consumer")
    make(server.url, "gone")
    fill(server.url, "gone", range(35))

    def reading_without_its_consumer(log):
        reading = log.read("gone", 1, 35)
        yield next(reading)
        [name] = api(server.url, "CONSUMER.NAMES.gone")["consumers"]
        api(server.url, f"CONSUMER.DELETE.gone.{name}")
        yield from reading

    with pytest.raises(UnavailableError, match="'gone' is gone"):
        list(reading_without_its_consumer(log))
    found = whole(reading_without_its_consumer(PatientRanges(log, 10.0)))
    assert found.sequences == list(range(1, 36))


@pytest.mark.usefixtures("either_way")
def test_a_connection_lost_between_batches_is_an_outage_and_reading_goes_on(tmp_path, monkeypatch):
    small_batches(monkeypatch, BATCH=10)
    with NatsServer(tmp_path) as server:
        make(server.url, "orders")
        fill(server.url, "orders", range(35))
        log = open_ranges(server.url)
        reading = log.read("orders", 1, 35)
        first = next(reading)
        server.kill()
        server.start()
        with pytest.raises(UnavailableError):
            next(reading)
        rest = whole(log.read("orders", first.sequences[-1] + 1, 35))
        assert first.sequences + rest.sequences == list(range(1, 36))
        log.close()


def test_an_extent_tells_what_kind_of_topic_it_is(server, log):
    make(server.url, "sized")
    fill(server.url, "sized", range(10), size=5000)
    sized = log.extent("sized")
    assert sized.identity == api(server.url, "STREAM.INFO.sized")["created"]
    assert 5000 < sized.mean_bytes < 5500
    for kind in ({"retention": "workqueue"}, {"max_msgs_per_subject": 1}):
        config = {"name": "special", "subjects": ["special"], "allow_direct": True, **kind}
        api(server.url, "STREAM.CREATE.special", config)
        extent = log.extent("special")
        assert (extent.is_queue, extent.is_compacted) == (
            "retention" in kind,
            "max_msgs_per_subject" in kind,
        )
        assert extent.mean_bytes == 0
        api(server.url, "STREAM.DELETE.special")


def test_a_topic_of_marks_is_made_with_the_first_of_them(server, log):
    assert log.mark("made-marks", "one") is None
    version = log.set_mark("made-marks", "one", b"1", replaces=0)
    config = api(server.url, "STREAM.INFO.made-marks")["config"]
    assert (config["max_msgs_per_subject"], config["allow_direct"]) == (1, True)
    for n in range(20):
        version = log.set_mark("made-marks", "one", b"%d" % n, replaces=version)
    assert api(server.url, "STREAM.INFO.made-marks")["state"]["messages"] == 1
    with pytest.raises(InvalidArgumentError, match="not one NATS takes"):
        log.set_mark("made-marks", "a *", b"", replaces=0)


def test_the_range_log_of_a_folder_starts_its_server_and_lets_go_of_it(tmp_path):
    url = f"local://{tmp_path}"
    log = open_ranges(url)
    with pytest.raises(InvalidArgumentError, match="create its topics first"):
        log.extent("orders")
    make(url, "orders")
    fill(url, "orders", range(5))
    assert LocalServer(tmp_path).state() is None
    assert log.extent("orders").last == 5
    running = LocalServer(tmp_path).state()
    os.kill(running.pid, signal.SIGKILL)
    with pytest.raises(UnavailableError):
        log.extent("orders")
    assert log.extent("orders").last == 5, "it was started again"
    assert LocalServer(tmp_path).state().pid != running.pid
    log.close()
    assert LocalServer(tmp_path).state() is None
