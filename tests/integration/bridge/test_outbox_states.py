"""The states of an event in the outbox, each reached as events reach it."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy import create_engine

from penstock import Capabilities, PubSub, errors
from penstock.bridge.envelope import build
from penstock.bridge.outbox import STATES, EventOutbox
from penstock.message import PublishFault, Receipt
from penstock.transactional import Database, Relay

pytestmark = pytest.mark.real_time
_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Answering:
    """A broker that answers as it is told; None: never."""

    capabilities = Capabilities()

    def __init__(self, answer):
        self.answer = answer
        self.got = []
        self.asked = asyncio.Event()

    async def publish(self, topic, drafts):
        self.asked.set()
        self.got += drafts
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer] * len(drafts)

    async def aclose(self):
        pass


@asynccontextmanager
async def an_event(url):
    async with Database(url) as database:
        events = EventOutbox(database, "orders")
        await events.outbox.create()
        event = build(producer="api", event_type="user.created", payload={"id": 7}, event_id="e")
        await events.add(None, event.draft("api.sync.worker"))
        yield events


async def relayed(events, answer):
    relay = Relay(events.database, PubSub(broker=Answering(answer)), max_attempts=1)
    await relay.step()


async def status(events):
    [row] = await events.rows(limit=5)
    for state in STATES:
        assert bool(await events.rows(state, limit=5)) is (state == row.status)
    assert (row.event_id, row.event_type, row.resource_id) == ("e", "user.created", "7")
    return row


async def test_an_event_is_pending_until_a_relay_takes_it(database_url):
    async with an_event(database_url) as events:
        assert (await status(events)).status == "pending"


async def test_an_event_in_the_hands_of_a_relay_is_publishing_and_pending_when_it_dies(
    database_url,
):
    async with an_event(database_url) as events:
        broker = Answering(None)
        relay = Relay(events.database, PubSub(broker=broker), lease=3.0)
        stepping = asyncio.create_task(relay.step())
        await broker.asked.wait()
        assert (await status(events)).status == "publishing"
        stepping.cancel()
        with suppress(asyncio.CancelledError):
            await stepping
        async with asyncio.timeout(30):
            while (await status(events)).status != "pending":
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Receipt("e", 1), "sent"),
        (PublishFault(errors.InvalidArgumentError("too large")), "failed"),
        (RuntimeError("nobody expected it"), "exception"),
    ],
)
async def test_what_the_broker_answered_is_the_state_of_the_event(database_url, answer, expected):
    async with an_event(database_url) as events:
        await relayed(events, answer)
        row = await status(events)
        assert row.status == expected
        assert (row.published_at is not None) is (expected == "sent")
        assert (row.error_message is not None) is (expected != "sent")


@pytest.mark.parametrize("blocking", [False, True])
async def test_publishing_a_failed_event_again_by_its_id_publishes_it(database_url, blocking):
    """The recovery that the specification shows, with what is said now."""
    async with an_event(database_url) as events:
        await relayed(events, PublishFault(errors.InvalidArgumentError("too large")))
        assert (await status(events)).status == "failed"
        event = build(
            producer="api", event_type="user.created", payload={"id": 7, "n": 2}, event_id="e"
        )
        draft = event.draft("api.sync.worker", traceparent=_TRACE)
        if blocking:
            engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
            await asyncio.to_thread(events.add_blocking, engine, draft, revive=True)
            engine.dispose()
        else:
            await events.add(None, draft, revive=True)
        row = await status(events)
        assert (row.status, row.attempts, row.error_message) == ("pending", 0, None)
        broker = Answering(Receipt("1", sequence=1))
        await Relay(events.database, PubSub(broker=broker)).step()
        assert (await status(events)).status == "sent"
        assert broker.got == [draft]


async def test_an_event_that_was_sent_or_waits_is_not_changed_by_another_of_its_id(database_url):
    async with an_event(database_url) as events:
        other = build(producer="api", event_type="user.created", payload={"id": 8}, event_id="e")
        await events.add(None, other.draft("api.sync.worker"), revive=True)
        assert (await status(events)).status == "pending"
        await relayed(events, Receipt("1", sequence=1))
        await events.add(None, other.draft("api.sync.worker"), revive=True)
        assert (await status(events)).status == "sent"
