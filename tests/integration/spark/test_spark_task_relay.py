"""What a task committed is sent by the task, or left to others."""

from contextlib import asynccontextmanager

import pytest

from penstock import PubSub
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.jobs import MediaType, load_settings
from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.service import JobService
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.telemetry import JobObserver
from penstock.spark.jobs.task_relay import TaskRelay
from penstock.transactional import Database

pytestmark = pytest.mark.real_time
SETTINGS = load_settings(environ={})


class Counting(MemoryBroker):
    """Counts what is published; away while it is told to be."""

    def __init__(self):
        super().__init__(Clock())
        self.published: list[int] = []
        self.away = False

    async def publish(self, topic, drafts):
        if self.away:
            raise UnavailableError("The broker is away")
        self.published.append(len(drafts))
        return await super().publish(topic, drafts)


@asynccontextmanager
async def scene(tmp_path):
    broker = Counting()
    async with (
        PubSub(broker=broker) as pubsub,
        PubSubClient(pubsub, SETTINGS),
        Database(f"sqlite:///{tmp_path}/jobs.db") as database,
    ):
        relay = TaskRelay(pubsub, database, JobObserver())
        async with ProcessingJobStore(database, SETTINGS, outbox=relay.outbox) as store:
            yield broker, store, relay


async def ask_for(store, count):
    for _ in range(count):
        await JobService(store).submit("ann", MediaType.AUDIO, "a.wav")


async def test_all_that_a_task_committed_goes_in_one_call_for_each_topic(tmp_path):
    async with scene(tmp_path) as (broker, store, relay):
        await ask_for(store, 30)
        await relay.send()
        assert broker.published == [30, 30]
        assert await store.outbox.pending() == 0


async def test_what_cannot_be_sent_now_stays_for_the_driver_and_does_not_fail_the_task(tmp_path):
    async with scene(tmp_path) as (broker, store, relay):
        await ask_for(store, 3)
        broker.away = True
        await relay.send()
        status = await store.outbox.status()
        assert (status.pending, status.claimed, status.dead) == (6, 0, 0)


async def test_a_database_in_trouble_does_not_fail_a_task_whose_work_is_committed(tmp_path, caplog):
    async with scene(tmp_path) as (_, store, relay):
        await ask_for(store, 1)

        async def trouble():
            raise UnavailableError("The database is away")

        relay.outbox.committed = trouble
        await relay.send()
        assert "left to the driver's relay: The database is away" in caplog.text


async def test_a_task_leaves_to_others_what_others_committed(tmp_path):
    async with scene(tmp_path) as (broker, store, relay):
        await ask_for(ProcessingJobStore(store.database, SETTINGS), 10)
        await ask_for(store, 1)
        await relay.send()
        assert broker.published == [1, 1]
        assert await store.outbox.pending() == 20
