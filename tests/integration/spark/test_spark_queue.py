"""Subscriptions as streams, through a spool."""

import asyncio
import shutil
import threading

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from penstock import PubSub
from penstock.errors import FailedPreconditionError
from penstock.message import Record
from penstock.spark.options import SourceOptions
from penstock.spark.queue.spool import Spool, segment_path
from penstock.spark.queue.stream import QueueStreamReader
from penstock.spark.schema import arrow_schema, source_schema
from tests.support.nats_scenes import fill
from tests.support.servers import NatsServer
from tests.support.spark_scenes import PATIENCE, numbers, run_available


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def subscribed(url, topic):
    async def create():
        async with PubSub(url) as pubsub:
            handle = await pubsub.topic(topic).create()
            await handle.subscription(f"{topic}-sub", ack_deadline=10).create()

    asyncio.run(create())


def backlog(url, topic):
    async def ask():
        async with PubSub(url) as pubsub:
            admin = (await pubsub.broker()).admin
            return (await admin.describe_subscription(f"{topic}-sub")).backlog

    return asyncio.run(ask())


def queue(spark, url, topic, spool, **options):
    reader = spark.readStream.format("penstock").option("url", url).option("mode", "queue")
    reader = reader.option("subscription", f"{topic}-sub").option("spoolLocation", str(spool))
    return reader.options(**options).load()


def test_what_is_pulled_is_spooled_acked_and_read_once(spark, server, tmp_path):
    subscribed(server.url, "jobs")
    fill(server.url, "jobs", range(2500), attributes={"k": "v"}, ordering_key="o")
    frame = queue(spark, server.url, "jobs", tmp_path / "spool")
    out = run_available(frame, tmp_path)
    assert backlog(server.url, "jobs") == 0
    fill(server.url, "jobs", range(2500, 2600))
    out = run_available(frame, tmp_path)
    rows = spark.read.parquet(str(out))
    assert sorted(numbers(rows)) == list(range(2600))
    row = rows.where("message_id = 'jobs/7'").first()
    assert (row.topic, row.attributes, row.ordering_key) == ("jobs", {"k": "v"}, "o")
    # Everything is committed: no segment is left.
    assert list((tmp_path / "spool").glob("*.arrow")) == []


def test_a_batch_that_failed_is_read_again_from_the_same_segments(spark, server, tmp_path):
    subscribed(server.url, "replayed")
    fill(server.url, "replayed", range(50))
    frame = queue(spark, server.url, "replayed", tmp_path / "spool")
    batches = []

    def fail_once(rows, number):
        batches.append(sorted(numbers(rows)))
        assert len(batches) > 1, "the first attempt fails"

    def run():
        query = (
            frame.writeStream.foreachBatch(fail_once)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(PATIENCE)

    with pytest.raises(StreamingQueryException, match="the first attempt fails"):
        run()
    assert backlog(server.url, "replayed") == 0, "acked: the broker will not send them again"
    fill(server.url, "replayed", range(50, 60))
    run()
    assert batches[0] == batches[1] == list(range(50))
    assert batches[2:] == [list(range(50, 60))]


def test_a_checkpoint_that_went_back_in_time_is_noticed(spark, server, tmp_path):
    subscribed(server.url, "older")
    frame = queue(spark, server.url, "older", tmp_path / "spool")
    fill(server.url, "older", range(5))
    run_available(frame, tmp_path)
    shutil.copytree(tmp_path / "out-checkpoint", tmp_path / "copy")
    for n in (5, 6):
        fill(server.url, "older", [n])
        run_available(frame, tmp_path)
    shutil.rmtree(tmp_path / "out-checkpoint")
    (tmp_path / "copy").rename(tmp_path / "out-checkpoint")
    with pytest.raises(StreamingQueryException, match="went back in time"):
        run_available(frame, tmp_path)


def test_a_spool_that_was_lost_is_noticed(spark, server, tmp_path):
    subscribed(server.url, "lost")
    fill(server.url, "lost", range(5))
    frame = queue(spark, server.url, "lost", tmp_path / "spool")
    run_available(frame, tmp_path)
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(StreamingQueryException, match="is new"):
        run_available(frame, tmp_path)


def test_a_subscription_that_is_not_there_is_said_by_load(spark, server, tmp_path):
    with pytest.raises(AnalysisException, match="Subscription not found: 'nothing-sub'"):
        queue(spark, server.url, "nothing", tmp_path)


def record(n):
    return Record(n, f"id-{n}", b"%d" % n, {}, None, "jobs", 0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spool"


def opened(folder):
    return Spool(folder, arrow_schema(source_schema(headers=False)))


def test_a_message_that_comes_again_is_not_spooled_again(folder):
    spool = opened(folder)
    assert spool.seal([record(1), record(2), record(1)], "jobs") == 2
    assert spool.seal([record(2), record(3)], "jobs") == 1
    assert spool.seal([record(3)], "jobs") == 0
    assert (spool.first, spool.next, spool.rows) == (1, 3, {1: 2, 2: 1})
    spool.close()


def test_an_id_that_is_used_again_is_another_message_also_after_a_restart(folder):
    def reports(*seconds):
        return [Record(n, "report", b"%d" % n, {}, None, "jobs", n * 10**9) for n in seconds]

    spool = opened(folder)
    assert spool.seal(reports(1, 601), "jobs") == 2
    assert spool.seal(reports(1, 1201), "jobs") == 1
    spool.forget(2)
    spool.close()
    again = opened(folder)
    assert again.seal(reports(1, 601, 1201, 1801), "jobs") == 1
    again.close()


def test_a_segment_that_is_sealed_while_others_are_deleted_waits_its_turn(folder):
    """One thread pulls and seals, another answers Spark."""
    spool = opened(folder)
    spool.seal([record(1)], "jobs")
    sealing = threading.Thread(target=lambda: spool.seal([record(2)], "jobs"))

    class Rows(dict):
        def __iter__(self):
            for number in super().__iter__():
                sealing.start()
                sealing.join(0.3)
                yield number

    spool.rows = Rows(spool.rows)
    spool.forget(2)
    sealing.join()
    assert dict(spool.rows.items()) == {2: 1}
    spool.close()


def test_ids_and_numbers_outlive_the_process_and_the_segments(folder):
    spool = opened(folder)
    spool.seal([record(1)], "jobs")
    spool.seal([record(2)], "jobs")
    spool.forget(2)
    spool.close()
    again = opened(folder)
    assert (again.first, again.next) == (2, 3)
    assert again.seal([record(1), record(2)], "jobs") == 0
    again.forget(3)
    again.close()
    last = opened(folder)
    assert (last.first, last.next, last.has_history) == (3, 3, True)
    assert last.seal([record(1), record(2)], "jobs") == 0
    last.close()


def test_what_was_not_finished_never_was(folder):
    spool = opened(folder)
    spool.seal([record(1)], "jobs")
    spool.close()
    segment_path(folder, 2).with_suffix(".new").write_bytes(b"half")
    again = opened(folder)
    assert (again.next, list(folder.glob("*.new"))) == (2, [])
    again.close()


def test_a_checkpoint_of_topics_is_none_of_a_queue(folder):
    given = {"url": "nats://nowhere", "mode": "queue", "subscription": "billing"}
    options = SourceOptions.of({**given, "spoolLocation": str(folder)})
    reader = QueueStreamReader(options, source_schema(headers=False))
    with pytest.raises(FailedPreconditionError, match="read orders as a log"):
        reader.partitions({"orders": 1}, {"orders": 5})
    reader.stop()


def test_two_queries_do_not_share_a_spool(folder, monkeypatch):
    monkeypatch.setattr("penstock.spark.queue.spool._LOCK_WITHIN", 0.1)
    spool = opened(folder)
    with pytest.raises(Exception, match="Another query spools"):
        opened(folder)
    spool.close()
