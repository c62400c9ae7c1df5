"""Jobs as messages, without a store: what a program sends, and handlers of its own receive."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock import Draft, PubSub
from penstock.brokers.memory import MemoryBroker
from penstock.errors import ClosedError, UnavailableError
from penstock.jobs import (
    Done,
    JobStage,
    PubSubClient,
    Reject,
    Retry,
    decode_event,
    decode_job,
    load_settings,
)
from penstock.jobs.messaging.listening import Listener
from penstock.testing import VirtualClock, eventually
from tests.support.job_samples import EVENTS, JOBS

JOB = JOBS["audio"]


@asynccontextmanager
async def connected(**settings):
    async with PubSub() as pubsub:
        async with PubSubClient(pubsub, load_settings(environ={}, **settings)) as client:
            yield client


async def stored(client, topic):
    log = (await client.pubsub.broker()).log
    extent = await log.extent(topic)
    return [r async for batch in log.read(topic, extent.first, extent.last) for r in batch]


async def test_req_1_2_jobs_and_events_are_sent_to_their_topics():
    async with connected() as client:
        await client.publisher.publish_job(JOB)
        await client.publisher.publish_event(EVENTS["JobQueued"])
        [job] = await stored(client, "job-processing")
        [event] = await stored(client, "job-events")
    assert decode_job(job.data, job.attributes) == JOB
    assert decode_event(event.data, event.attributes) == EVENTS["JobQueued"]
    with pytest.raises(ClosedError, match="while its client is entered"):
        await client.publisher.publish_job(JOB)


async def test_a_process_that_sends_nothing_directly_runs_no_publisher():
    async with connected():
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert others == set()


@pytest.mark.parametrize(
    ("outcomes", "calls", "dead"),
    [
        ([Done()], 1, []),
        ([Retry("busy", after=2.0), Retry("busy"), Done()], 3, []),
        ([Reject("malformed")], 1, ["malformed"]),
        ([(RuntimeError("a mistake"),), Done()], 2, []),
        ([(Retry("busy"),), (Reject("raised"),)], 2, ["raised"]),
    ],
)
async def test_req_1_1_a_handler_of_ones_own_says_what_becomes_of_each_job(outcomes, calls, dead):
    """What is in a tuple is raised."""
    left, seen = list(outcomes), []

    async def handle(job, attempt):
        seen.append((job, attempt))
        outcome = left.pop(0)
        if isinstance(outcome, tuple):
            raise outcome[0]
        return outcome

    async with connected() as client:
        settings = client.settings.stages.of(client.settings.pipeline.stages[1])
        assert JOB.stage is JobStage.METADATA_READY
        async with client.subscriber(settings, decode_job, handle, name="mine"):
            await client.publisher.publish_job(JOB)
            await eventually(lambda: not left)
            await asyncio.sleep(300)
        letters = client.pubsub.dead_letters("job-processing-dead")
        assert [letter.reason async for letter in letters.read()] == dead
        assert (await client.pubsub.subscription(settings.subscription).describe()).backlog == 0
    assert seen == [(JOB, attempt) for attempt in range(1, calls + 1)]


@pytest.mark.parametrize(("invalid", "attempt"), [("dead-letter", 1), ("retry", 3)])
async def test_req_1_5_what_is_no_job_is_buried_or_tried_again_as_configured(invalid, attempt):
    stages = {"metadata": {"invalid": invalid, "max_attempts": 3}}
    async with connected(stages=stages) as client:
        settings = client.settings.stages.of(client.settings.pipeline.stages[0])
        async with client.subscriber(settings, decode_job, None, name="mine"):
            broker = await client.pubsub.broker()
            await broker.publish("job-processing", [Draft.of(b"{", {"stage": "Queued"})])
            await asyncio.sleep(300)
        [letter] = [one async for one in client.pubsub.dead_letters("job-processing-dead").read()]
        assert (letter.reason, letter.attempt) == ("unknown-media-type", attempt)
        assert (letter.data, letter.origin.subscription) == (b"{", "job-metadata")


async def test_a_subscription_that_cannot_be_received_from_is_told_once(caplog):
    """However often it is tried, and once more when it has worked for a while."""
    caplog.set_level("INFO")
    broker = MemoryBroker(VirtualClock())
    pull, away = broker.pull, [True]

    async def pulls(*args, **most):
        if away[0]:
            raise UnavailableError("away")
        return await pull(*args, **most)

    broker.pull = pulls

    async def handle(message):
        message.ack()

    async with PubSub(broker=broker, clock=VirtualClock()) as pubsub:
        topic = pubsub.topic("work")
        await topic.create()
        subscription = topic.subscription("stage")
        await subscription.create()
        async with Listener(subscription, handle, name="stage metadata"):
            await asyncio.sleep(120)
            away[0] = False
            await asyncio.sleep(120)
    told = [r.levelname for r in caplog.records if "cannot receive from 'stage'" in r.getMessage()]
    assert told == ["WARNING", "INFO"]
