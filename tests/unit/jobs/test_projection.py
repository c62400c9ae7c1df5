"""What feeds the read model goes on, whatever comes and whatever a broker cannot do."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec import structs

from penstock import Draft, PubSub
from penstock.brokers.memory import MemoryBroker
from penstock.brokers.memory.topic import RetainedLog
from penstock.errors import FailedPreconditionError, UnavailableError
from penstock.jobs import JobSettings, JobViews, Projection, PubSubClient, encode_event
from penstock.jobs.messaging.keeping import keeping, missing
from penstock.jobs.views.projection import Lag
from penstock.jobs.views.view import Position
from penstock.message import Record
from penstock.testing import VirtualClock, eventually
from tests.support.fakes import ModestBroker
from tests.support.job_samples import EVENTS

EVENT = EVENTS["JobQueued"]


class UncountingBroker(ModestBroker):
    """Has no log, counts neither attempts nor backlog, and knows no delays."""

    capabilities = replace(
        MemoryBroker.capabilities,
        replay=False,
        delivery_attempts=False,
        backlog=False,
        delayed_nack=False,
    )
    delivered = 0

    async def pull(self, subscription, **most):
        deliveries = await super().pull(subscription, **most)
        self.delivered += len(deliveries)
        return deliveries


@asynccontextmanager
async def projected(broker, views):
    async with (
        PubSub(broker=broker, clock=VirtualClock()) as pubsub,
        PubSubClient(pubsub, JobSettings()) as client,
        Projection(client, views) as projection,
    ):
        yield projection


async def test_without_a_log_or_counted_attempts_what_is_no_event_is_a_dead_letter_at_once():
    broker, views = UncountingBroker(VirtualClock()), JobViews()
    async with projected(broker, views) as projection:
        await broker.publish("job-events", [Draft.of(b"garbage"), encode_event(EVENT)])
        await asyncio.sleep(60)
        assert broker.delivered == 2
        assert (await broker.admin.describe_topic("job-events-dead")).published == 1
        assert (await views.get(EVENT.job_id)).stage is EVENT.stage
        assert await projection.lag() == Lag(events=None, seconds=None)


async def test_an_event_comes_again_after_a_while_when_the_read_model_is_in_trouble():
    broker, views = UncountingBroker(VirtualClock()), JobViews()
    apply, trouble = views.apply, [UnavailableError("away")] * 5

    async def fails_at_first(events):
        if trouble:
            raise trouble.pop()
        return await apply(events)

    views.apply = fails_at_first
    began = asyncio.get_running_loop().time()
    async with projected(broker, views):
        await broker.publish("job-events", [encode_event(EVENT)])
        while await views.get(EVENT.job_id) is None:
            await asyncio.sleep(0.1)
    assert broker.delivered == 6
    assert asyncio.get_running_loop().time() - began >= 5


@pytest.mark.parametrize("error", [UnavailableError("away"), RuntimeError("a mistake of ours")])
async def test_whatever_happens_to_it_once_the_log_is_followed(error, caplog):
    broker, views = MemoryBroker(VirtualClock()), JobViews()
    apply, trouble = views.apply, [error]

    async def fails_once(events):
        if trouble:
            raise trouble.pop()
        return await apply(events)

    async with projected(broker, views):
        views.apply = fails_once
        await broker.publish("job-events", [encode_event(EVENT)])
        await eventually(lambda: not trouble)
        while await views.get(EVENT.job_id) is None:
            await asyncio.sleep(0.1)
    assert "cannot follow topic 'job-events'" in caplog.text


async def test_a_view_that_cannot_be_read_does_not_stop_those_who_watch_others():
    """As views in a database have it, when another pipeline took a job further."""
    broker, views = MemoryBroker(VirtualClock()), JobViews()
    other = structs.replace(EVENT, job_id="job_" + "9" * 32)
    apply, get = views.apply, views.get

    async def unreadable(job_id):
        if job_id == EVENT.job_id:
            raise FailedPreconditionError("Job is at a stage that this process does not know")
        return await get(job_id)

    views.apply = lambda events: apply([event for event in events if event != EVENT])
    views.get = unreadable
    async with projected(broker, views) as projection:
        watcher = projection.watch()
        await broker.publish("job-events", [encode_event(EVENT), encode_event(other)])
        async for view in watcher:
            assert view.job_id == other.job_id
            break


class Restorable(MemoryBroker):
    """Its event log can be put back to an earlier time, as a backup is restored: it keeps its
    identity, ends earlier, and goes on from there."""

    def restore(self, last, *events, at_ns=0):
        state = self._registry.topic("job-events")
        kept = state.retained.between(1, last)
        state.retained = RetainedLog()
        grown = [
            Record(last + n, f"other-{n}", draft.data, draft.attributes, None, "job-events", at_ns)
            for n, draft in enumerate(map(encode_event, events), 1)
        ]
        state.retained.extend([*kept, *grown])
        state.last_sequence = last + len(grown)


def event_of(number):
    return structs.replace(EVENT, job_id=f"job_{number:032x}")


async def until_known(views, *numbers):
    async with asyncio.timeout(60):
        for number in numbers:
            while await views.get(event_of(number).job_id) is None:
                await asyncio.sleep(0.1)


async def test_a_topic_that_was_made_again_is_followed_from_its_beginning(caplog):
    broker, views = MemoryBroker(VirtualClock()), JobViews()
    async with projected(broker, views) as projection:
        await broker.publish("job-events", [encode_event(event_of(n)) for n in (1, 2, 3)])
        await until_known(views, 1, 2, 3)
        config = (await broker.admin.describe_topic("job-events")).config
        await broker.admin.delete_topic("job-events")
        await broker.admin.create_topic(config)
        # As many as there were, and more: by its length it looks like the old one.
        await broker.publish("job-events", [encode_event(event_of(n)) for n in (4, 5, 6, 7)])
        assert (await projection.lag()).events != 0
        await until_known(views, 4, 5, 6, 7)
        assert await projection.lag() == Lag(events=0, seconds=0.0)
    assert "made again or restored; it is followed from its beginning" in caplog.text


async def test_a_log_that_was_restored_while_it_is_followed_is_read_again():
    broker, views = Restorable(VirtualClock()), JobViews()
    async with projected(broker, views) as projection:
        await broker.publish("job-events", [encode_event(event_of(n)) for n in (1, 2, 3)])
        await until_known(views, 1, 2, 3)
        broker.restore(1, event_of(4))
        lag = await projection.lag()
        assert lag.events is None and "another one" in lag.trouble
        await until_known(views, 4)


async def test_what_was_reached_in_a_log_is_taken_back_when_it_was_restored():
    """Else each start would find itself in another log than the one it remembers."""
    broker, views = Restorable(VirtualClock()), JobViews()
    reached = []

    async def keep(_, position):
        reached.append(position.sequence)

    views.reached = keep
    async with projected(broker, views):
        await broker.publish("job-events", [encode_event(event_of(n)) for n in (1, 2, 3)])
        await until_known(views, 1, 2, 3)
        broker.restore(1, event_of(4))
        await until_known(views, 4)
        while reached[-1] != 2:
            await asyncio.sleep(0.1)
    assert reached[-3:] == [3, 0, 2]


async def test_a_log_that_was_restored_and_grew_while_nobody_followed_is_read_again():
    broker, views = Restorable(VirtualClock()), JobViews()
    position = Position()

    async def kept(_):
        return position

    async def keep(_, reached):
        nonlocal position
        position = reached

    views.position, views.reached = kept, keep
    async with PubSub(broker=broker, clock=VirtualClock()) as pubsub:
        async with PubSubClient(pubsub, JobSettings()) as client:
            async with Projection(client, views):
                await broker.publish("job-events", [encode_event(event_of(n)) for n in (1, 2, 3)])
                await until_known(views, 1, 2, 3)
            assert position.sequence == 3
            broker.restore(1, *map(event_of, (4, 5, 6)), at_ns=7)
            async with Projection(client, views):
                await until_known(views, 4, 5, 6)


async def test_a_topic_that_is_gone_is_made_again_and_nobody_is_told_that_nothing_is_behind(caplog):
    broker, views = MemoryBroker(VirtualClock()), JobViews()
    caplog.set_level("INFO")
    async with projected(broker, views) as projection:
        await broker.publish("job-events", [encode_event(event_of(1))])
        await until_known(views, 1)
        watcher = projection.watch()
        await broker.admin.delete_topic("job-events")
        lag = await projection.lag()
        assert lag.events is None and lag.trouble == "Topic 'job-events' is missing"
        async with asyncio.timeout(60):
            while "job-events" not in await broker.admin.list_topics():
                await asyncio.sleep(0.1)
        await broker.publish("job-events", [encode_event(event_of(2))])
        await until_known(views, 2)
        # Who watched was told to look at everything again.
        assert await anext(aiter(watcher)) is None
    assert caplog.text.count("cannot follow topic") == 2  # it began, and it is over


async def test_an_outage_is_told_once_and_once_when_it_is_over(caplog):
    broker, views = MemoryBroker(VirtualClock()), JobViews()
    caplog.set_level("INFO")
    apply, trouble = views.apply, [UnavailableError("away")] * 20

    async def fails_for_long(events):
        if trouble:
            raise trouble.pop()
        return await apply(events)

    async with projected(broker, views):
        views.apply = fails_for_long
        await broker.publish("job-events", [encode_event(EVENT)])
        while await views.get(EVENT.job_id) is None:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
    told = [r for r in caplog.records if "cannot follow" in r.getMessage()]
    assert [r.levelname for r in told] == ["WARNING", "INFO"]
    assert "Back again after 20 attempts" in told[1].getMessage()


async def test_whatever_is_missing_of_what_jobs_need_is_named_and_made_again(caplog):
    broker = MemoryBroker(VirtualClock())
    async with (
        PubSub(broker=broker, clock=VirtualClock()) as pubsub,
        PubSubClient(pubsub, JobSettings()) as client,
        keeping(client),
    ):
        assert await missing(client) == []
        await broker.admin.delete_topic("job-processing")
        await broker.admin.delete_subscription("job-metadata")
        assert await missing(client) == ["topic 'job-processing'"]
        await asyncio.sleep(11)
        assert await missing(client) == []
        await broker.admin.delete_subscription("job-transcription")
        assert await missing(client) == ["subscription 'job-transcription'"]
        await asyncio.sleep(11)
        assert await missing(client) == []
    assert "Missing: topic 'job-processing'" in caplog.text


class LookedAt(MemoryBroker):
    """Counts looks at what its topics hold."""

    def __init__(self, clock):
        super().__init__(clock)
        self.looks = 0
        self._extent, self.log.extent = self.log.extent, self._counted

    async def _counted(self, topic):
        self.looks += 1
        return await self._extent(topic)


async def looks_within(broker, seconds):
    before = broker.looks
    await asyncio.sleep(seconds)
    return broker.looks - before


async def test_where_nothing_happens_and_nobody_watches_it_looks_once_a_second():
    broker = LookedAt(VirtualClock())
    async with projected(broker, JobViews()) as projection:
        await asyncio.sleep(10)
        assert await looks_within(broker, 60) <= 60
        watcher = projection.watch()
        assert await looks_within(broker, 1) >= 8
        watcher.end()


async def test_after_a_quiet_time_news_are_taken_in_as_soon_as_they_were_told_of():
    broker, views = LookedAt(VirtualClock()), JobViews()
    async with projected(broker, views) as projection:
        await asyncio.sleep(10.05)
        projection.wake()
        await broker.publish("job-events", [encode_event(EVENT)])
        await asyncio.sleep(0.15)
        assert await views.get(EVENT.job_id) is not None
        # And what follows, for a while, whoever says it.
        assert await looks_within(broker, 1) >= 4


async def test_what_another_process_says_after_a_quiet_time_is_taken_in_within_a_second():
    broker, views = LookedAt(VirtualClock()), JobViews()
    async with projected(broker, views):
        await asyncio.sleep(10)
        await broker.publish("job-events", [encode_event(EVENT)])
        await asyncio.sleep(1.05)
        assert await views.get(EVENT.job_id) is not None


async def test_a_broker_that_does_not_answer_keeps_nobody_waiting_who_asks_how_it_is():
    broker, views = MemoryBroker(VirtualClock()), JobViews()

    async def hangs(_):
        await asyncio.Event().wait()

    async with projected(broker, views) as projection:
        broker.log.extent = hangs
        loop = asyncio.get_running_loop()
        began = loop.time()
        lag = await projection.lag()
        assert lag.events is None and "cannot be followed" in lag.trouble
        assert loop.time() - began < 5
