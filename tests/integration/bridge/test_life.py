"""Starting, closing, and what runs in between, with an outbox and no server."""

import asyncio

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import scoped_session, sessionmaker

from penstock import errors
from penstock.config import TopicConfig
from penstock.testing import eventually
from penstock.testing.bridge import BridgeKit

pytestmark = pytest.mark.real_time


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/app.db"


def relays():
    return [task for task in asyncio.all_tasks() if "Relay._run" in repr(task)]


async def test_whoever_uses_it_first_at_the_same_time_starts_it_once(url):
    kit = BridgeKit(use_outbox=True, database_url=url)
    await kit.broker.open()
    said = ({"event_type": "a.b", "payload": {"id": n}} for n in range(5))
    await asyncio.gather(*(kit.bridge.publish(**one) for one in said))
    assert len(relays()) == 1
    await eventually(lambda: len(kit.published()) == 5, within=30)
    await kit.bridge.aclose()
    assert relays() == []
    await kit.broker.aclose()


async def test_closing_while_it_starts_leaves_nothing_running(url):
    for turns in range(30):
        kit = BridgeKit(use_outbox=True, database_url=url)
        await kit.broker.open()
        starting = asyncio.create_task(kit.bridge.startup())
        for _ in range(turns):
            await asyncio.sleep(0)
        await kit.bridge.aclose()
        await asyncio.wait({starting})
        assert starting.exception() is None or isinstance(
            starting.exception(), errors.ClosedError
        ), starting.exception()
        assert relays() == []
        await kit.broker.aclose()


async def test_events_wait_in_the_outbox_until_the_bridge_can_start(url):
    """A stream of the wrong kind is mended by an operator; the events are not to blame."""
    kit = BridgeKit(use_outbox=True, database_url=url, lazy_connect=True)
    await kit.broker.open()
    names = kit.names
    await kit.broker.admin.create_topic(
        TopicConfig(name=names.stream_name, subjects=names.subjects)
    )
    async with kit.bridge:
        await kit.bridge.publish(event_type="a.b", payload={"id": 1})

        async def refused():
            [row] = await kit.bridge.outbox.rows()
            return row if row.error_message else None

        async with asyncio.timeout(30):
            while (row := await refused()) is None:
                await asyncio.sleep(0.02)
        assert row.attempts == 0 and "work-queue" in row.error_message
        await kit.broker.admin.delete_topic(names.stream_name)
        await eventually(lambda: len(kit.published()) == 1, within=30)
    await kit.broker.aclose()


async def test_sessions_that_are_found_by_thread_or_task_take_events(url):
    # Without a relay, which may have the database when a session blocks the loop it runs on.
    async with BridgeKit(use_outbox=True, database_url=url, relay=False) as kit:
        engine = create_engine(url)
        session = scoped_session(sessionmaker(engine))
        for keep in (True, False):
            kit.bridge.enqueue(event_type="a.b", payload={"id": 1}, connection=session)
            await kit.bridge.publish(event_type="a.b", payload={"id": 2}, connection=session)
            session.commit() if keep else session.rollback()
        session.remove()
        engine.dispose()
        own = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        current = async_scoped_session(async_sessionmaker(own), asyncio.current_task)
        for keep in (True, False):
            await kit.bridge.publish(event_type="a.b", payload={"id": 3}, connection=current)
            await (current.commit() if keep else current.rollback())
        await current.remove()
        await own.dispose()
        assert len(await kit.bridge.outbox.rows()) == 3
    async with BridgeKit(use_outbox=True, database_url=url) as kit:
        await eventually(lambda: len(kit.published()) == 3, within=30)
        assert sorted(event.resource_id for event in kit.published()) == ["1", "2", "3"]


async def test_a_bridge_leaves_the_rows_of_others_in_its_database_alone(url):
    """They may be for another server, where this one's relay would find no such stream."""
    other = BridgeKit("api", "billing", use_outbox=True, database_url=url, stream_name="billing")
    async with BridgeKit(use_outbox=True, database_url=url) as kit:
        await other.broker.open()
        idle = BridgeKit(
            "api", "billing", use_outbox=True, database_url=url, stream_name="billing", relay=False
        )
        await idle.broker.open()
        async with idle.bridge:
            await idle.bridge.publish(event_type="a.b", payload={"id": 1})
            for n in range(5):
                await kit.bridge.publish(event_type="a.b", payload={"id": n})
                await eventually(lambda n=n: len(kit.published()) == n + 1, within=30)
            [row] = await idle.bridge.outbox.rows()
            assert (row.status, row.attempts, row.error_message) == ("pending", 0, None)
            async with asyncio.timeout(30):  # a row is marked after its message was stored
                while (await kit.bridge.health_check(skip_cache=True))["outbox"]["pending"]:
                    await asyncio.sleep(0.01)
        async with other.bridge:
            await eventually(lambda: len(other.published()) == 1, within=30)
        await idle.broker.aclose()
        await other.broker.aclose()


async def test_a_stream_that_is_gone_under_a_relay_is_made_again(url):
    async with BridgeKit(use_outbox=True, database_url=url) as kit:
        await kit.broker.admin.delete_topic(kit.names.stream_name)
        await kit.bridge.publish(event_type="a.b", payload={"id": 1})
        await eventually(lambda: len(kit.published()) == 1, within=30)
        assert await kit.bridge.problems() == []


async def test_each_commit_of_one_connection_wakes_the_relay(url):
    async with BridgeKit(use_outbox=True, database_url=url) as kit:
        signals, woken = kit.bridge.outbox.signals, 0

        def wake():
            nonlocal woken
            woken += 1

        signals._wake = wake
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with engine.connect() as connection:
            for n in range(5):
                for _ in range(2):
                    await kit.bridge.publish(event_type="a.b", payload={}, connection=connection)
                await connection.commit()
                assert woken == n + 1
            await connection.execute(text("SELECT 1"))
            await connection.commit()
            assert woken == 5
        await engine.dispose()


async def test_closing_publishes_what_the_relay_has_in_hand(url, monkeypatch):
    kit = BridgeKit(use_outbox=True, database_url=url)
    await kit.broker.open()
    await kit.bridge.startup()
    begun, go_on = asyncio.Event(), asyncio.Event()
    claim = kit.bridge.relay._claims.claim_in

    async def claimed(*arguments, **options):
        found = await claim(*arguments, **options)
        if found is not None:
            begun.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(kit.bridge.relay._claims, "claim_in", claimed)
    await kit.bridge.publish(event_type="a.b", payload={"id": 1})
    await begun.wait()
    closing = asyncio.create_task(kit.bridge.aclose())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert len(kit.published()) == 1
    await kit.broker.aclose()


async def test_a_database_without_the_table_is_told_and_what_to_do(database_url):
    kit = BridgeKit(use_outbox=True, database_url=database_url)
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    said = {"event_type": "a.b", "payload": {"secret": "hunter2"}}
    with pytest.raises(errors.FailedPreconditionError, match="db upgrade --part outbox") as told:
        await asyncio.to_thread(kit.bridge.enqueue, **said, connection=engine)
    assert "hunter2" not in str(told.value)
    engine.dispose()


async def test_a_consumer_that_needs_more_connections_than_there_are_is_told(url):
    kit = BridgeKit(use_inbox=True, database_url=url, database_connections=8)
    kit.bridge.consumer(print, concurrency=7)
    with pytest.raises(errors.InvalidArgumentError, match="database_connections=21"):
        kit.bridge.consumer(print, concurrency=16)
