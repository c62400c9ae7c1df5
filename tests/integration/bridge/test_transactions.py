"""Events in the caller's transaction, and effects in the inbox's: both databases, a real server."""

import asyncio
import sqlite3
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from penstock import ActionResult, Bridge, errors
from penstock.bridge.envelope import build
from penstock.message import Draft, Receipt
from penstock.testing import eventually
from penstock.transactional import Database
from penstock.transactional.inbox_table import inbox as inbox_rows

pytestmark = pytest.mark.real_time

own = MetaData()
users = Table("users", own, Column("id", Integer, primary_key=True), Column("name", Text))


class Base(DeclarativeBase):
    pass


class User(Base):
    """The caller's own model, of the same table."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@dataclass
class Scene:
    api: Bridge
    worker: Bridge
    url: str

    @property
    def engine_url(self):
        """For an engine of the caller's own, of the blocking kind."""
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    @property
    def async_url(self):
        return self.engine_url.replace("sqlite://", "sqlite+aiosqlite://")

    async def rows(self):
        async with Database(self.url) as database:
            async with database.transaction(reading=True) as connection:
                found = await connection.execute(select(users).order_by(users.c.id))
                return [tuple(row) for row in found]

    async def inbox(self):
        async with Database(self.url) as database:
            async with database.transaction(reading=True) as connection:
                c = inbox_rows.c
                found = await connection.execute(
                    select(c.event_id, c.status, c.processing_attempts)
                )
                return {row.event_id: (row.status, row.processing_attempts) for row in found}


@asynccontextmanager
async def bridges(nats_server, pair, url, **options):
    """Two apps with one database: what one says, the other writes down."""
    async with Database(url) as database:
        await database.create_tables(own)
    common = {"url": nats_server.url, "database_url": url, "stream_name": pair["stream_name"]}
    here, there = pair["app_name"], pair["destination_app"]
    api = Bridge(here, there, **common, use_outbox=True)
    worker = Bridge(there, here, **common, use_inbox=True, **options)
    async with api, worker:
        yield Scene(api, worker, url)


class Heard:
    def __init__(self):
        self.names = []

    async def __call__(self, event):
        self.names.append(event.payload["name"])


async def test_an_event_is_seen_if_and_only_if_its_transaction_commits(
    nats_server, pair, database_url
):
    heard = Heard()
    async with bridges(nats_server, pair, database_url) as scene, scene.worker.consumer(heard):
        engine = create_async_engine(scene.async_url)
        for name, keep in (("kept", True), ("dropped", False), ("last", True)):
            async with engine.connect() as connection:
                await connection.execute(insert(users).values(name=name))
                result = await scene.api.publish(
                    event_type="user.created", payload={"name": name}, connection=connection
                )
                assert result.queued and result.success
                await (connection.commit() if keep else connection.rollback())
        await eventually(lambda: len(heard.names) >= 2, within=60)
        await engine.dispose()
        assert heard.names == ["kept", "last"]
        assert [name for _, name in await scene.rows()] == ["kept", "last"]


async def test_every_kind_of_connection_session_and_engine_takes_events(
    nats_server, pair, database_url
):
    heard = Heard()

    def said(name):
        return {"event_type": "user.created", "payload": {"name": name}}

    async with bridges(nats_server, pair, database_url) as scene, scene.worker.consumer(heard):
        api = scene.api
        engine = create_async_engine(scene.async_url)
        async with engine.begin() as connection:
            await api.publish(**said("async connection"), connection=connection)
        async with AsyncSession(engine) as session, session.begin():
            session.add(User(name="async session"))
            await api.publish(**said("async session"), connection=session)
        await api.publish(**said("async engine"), connection=engine)
        await engine.dispose()

        def without_a_loop():
            blocking = create_engine(scene.engine_url)
            with blocking.begin() as connection:
                asyncio.run(api.publish(**said("connection"), connection=connection))
            with Session(blocking) as session, session.begin():
                session.add(User(name="session"))
                api.enqueue(**said("session"), connection=session)
            api.enqueue(**said("engine"), connection=blocking)
            blocking.dispose()

        await asyncio.to_thread(without_a_loop)
        await api.publish(**said("its own"))
        await eventually(lambda: len(heard.names) == 7, within=60)
        assert sorted(heard.names) == sorted(
            ["async connection", "async session", "async engine", "connection", "session",
             "engine", "its own"]
        )  # fmt: skip
        assert [name for _, name in await scene.rows()] == ["async session", "session"]


async def test_what_is_no_connection_of_sqlalchemy_is_refused(nats_server, pair, database_url):
    async with bridges(nats_server, pair, database_url) as scene:
        with pytest.raises(errors.InvalidArgumentError, match="must be SQLAlchemy's"):
            await scene.api.publish(
                event_type="a.b", payload={}, connection=sqlite3.connect(":memory:")
            )


async def test_a_commit_wakes_the_relay_at_once(nats_server, pair, database_url):
    """The relay's own poll is an hour away: only the commit can have told it."""
    heard = Heard()
    async with bridges(nats_server, pair, database_url) as scene, scene.worker.consumer(heard):
        scene.api.relay._poll = 3600
        await asyncio.sleep(1.2)  # Until it has begun to wait for that long.
        engine = create_async_engine(scene.async_url)
        async with engine.begin() as connection:
            await scene.api.publish(
                event_type="a.b", payload={"name": "async"}, connection=connection
            )
        await eventually(lambda: heard.names == ["async"], within=60)
        await engine.dispose()

        def in_a_thread():
            blocking = create_engine(scene.engine_url)
            with Session(blocking) as session, session.begin():
                scene.api.enqueue(event_type="a.b", payload={"name": "thread"}, connection=session)
            blocking.dispose()

        thread = threading.Thread(target=in_a_thread)
        thread.start()
        await eventually(lambda: heard.names == ["async", "thread"], within=60)
        thread.join()


async def test_every_commit_of_a_connection_wakes_the_relay(nats_server, pair, database_url):
    heard = Heard()
    async with bridges(nats_server, pair, database_url) as scene, scene.worker.consumer(heard):
        scene.api.relay._poll = 3600
        await asyncio.sleep(1.2)  # Until it has begun to wait for that long.
        engine = create_async_engine(scene.async_url)
        async with engine.connect() as connection:
            for name in "abc":
                event = {"event_type": "a.b", "payload": {"name": name}}
                await scene.api.publish(**event, connection=connection)
                await connection.commit()
                await eventually(lambda: heard.names[-1:] == [name], within=60)  # noqa: B023
        await engine.dispose()


async def test_a_commit_of_another_process_wakes_the_relay_on_postgresql(
    nats_server, pair, postgres
):
    heard = Heard()
    url = postgres.new_database()
    async with bridges(nats_server, pair, url) as scene, scene.worker.consumer(heard):
        scene.api.relay._poll = 3600
        await scene.api._running.signals.heard.wait()
        await asyncio.sleep(1.2)
        elsewhere = Bridge(
            pair["app_name"],
            pair["destination_app"],
            stream_name=pair["stream_name"],
            database_url=url,
            use_outbox=True,
            relay=False,
        )
        blocking = create_engine(scene.engine_url)
        event = {"event_type": "a.b", "payload": {"name": "x"}}
        await asyncio.to_thread(elsewhere.enqueue, **event, connection=blocking)
        blocking.dispose()
        await eventually(lambda: heard.names == ["x"], within=60)


def store(event, connection):
    """A plain handler that writes with SQLAlchemy's blocking connection."""
    connection.execute(insert(users).values(name=event.payload["name"]))


async def store_async(event, connection):
    await connection.execute(insert(users).values(name=event.payload["name"]))


def store_with_a_session(event, connection):
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        session.add(User(name=event.payload["name"]))
        session.commit()


@pytest.mark.parametrize("handler", [store, store_async, store_with_a_session])
async def test_an_event_delivered_twice_has_one_effect(nats_server, pair, database_url, handler):
    async with bridges(nats_server, pair, database_url) as scene, scene.worker.consumer(handler):
        broker = await scene.api.connection.broker()
        for n in range(2):
            # Past the broker's memory of ids: the same event under another message id.
            event = {"event_type": "a.b", "payload": {"name": "once"}, "event_id": "same"}
            draft = build(producer="x", **event).draft(scene.api.names.source_subject)
            again = Draft(draft.data, {}, None, f"copy-{n}", draft.subject)
            await broker.publish(pair["stream_name"], [again])
        await settled(scene.worker)
        assert [name for _, name in await scene.rows()] == ["once"]
        assert await scene.inbox() == {"same": ("processed", 1)}


async def settled(bridge, within=120):
    """Until the broker has nothing left for this app."""
    broker = await bridge.connection.broker()
    async with asyncio.timeout(within):
        while (await broker.admin.describe_subscription(bridge.names.durable)).backlog:
            await asyncio.sleep(0.02)


async def test_an_effect_that_failed_leaves_nothing_and_is_tried_again(
    nats_server, pair, database_url
):
    tries = []

    async def handler(event, connection):
        await store_async(event, connection)
        tries.append(event.deliveries)
        if len(tries) == 1:
            raise RuntimeError("after writing")
        return ActionResult("nak", delay=0.1) if len(tries) == 2 else None

    options = {"backoff": [0.1]}
    async with bridges(nats_server, pair, database_url, **options) as scene:
        async with scene.worker.consumer(handler):
            result = await scene.api.publish(event_type="a.b", payload={"name": "n"})
            await eventually(lambda: len(tries) == 3, within=60)
            await settled(scene.worker)
        assert tries == [1, 2, 3]
        assert [name for _, name in await scene.rows()] == ["n"]
        assert await scene.inbox() == {result.event_id: ("processed", 3)}


async def test_one_bad_event_of_a_batch_takes_none_of_the_others_along(
    nats_server, pair, database_url
):
    async def handler(event, connection):
        await store_async(event, connection)
        if event.payload["name"] == "7":
            raise ValueError("bad")

    async with bridges(nats_server, pair, database_url) as scene:
        for n in range(20):
            await scene.api.publish(event_type="a.b", payload={"name": str(n)})
        async with scene.worker.consumer(handler, batch_size=20):
            await outbox_empty(scene.api)
            await settled(scene.worker)
        names = sorted(int(name) for _, name in await scene.rows())
        assert names == [n for n in range(20) if n != 7]
        statuses = sorted(status for status, _ in (await scene.inbox()).values())
        assert statuses == ["failed"] + ["processed"] * 19
        assert await dead_letters(scene.worker) == ["unrecoverable"]


async def outbox_empty(bridge):
    async with asyncio.timeout(120):
        while await bridge.outbox.outbox.pending():
            await asyncio.sleep(0.02)


async def dead_letters(bridge):
    pubsub = await bridge.connection.pubsub()
    letters = pubsub.dead_letters(bridge.names.dlq_stream)
    return [letter.reason async for letter in letters.read()]


async def test_an_event_that_breaks_the_commit_is_found_and_the_others_are_done(
    nats_server, pair, database_url
):
    """A constraint that is checked at the end fails the whole transaction, whoever broke it."""
    if database_url.startswith("sqlite"):
        deferred = "FOREIGN KEY (parent) REFERENCES links (id) DEFERRABLE INITIALLY DEFERRED"
    else:
        deferred = (
            "CONSTRAINT to_parent FOREIGN KEY (parent) REFERENCES links (id) "
            "DEFERRABLE INITIALLY DEFERRED"
        )
    from sqlalchemy import text

    async def handler(event, connection):
        name = int(event.payload["name"])
        parent = 999 if name == 3 else None
        await connection.execute(
            text("INSERT INTO links (id, parent) VALUES (:id, :parent)"),
            {"id": name, "parent": parent},
        )

    def hopeless(error):
        from penstock.bridge import Recovery

        found = isinstance(error, IntegrityError)
        return Recovery.UNRECOVERABLE if found else Recovery.RECOVERABLE

    async with bridges(nats_server, pair, database_url) as scene:
        async with Database(database_url) as database:
            async with database.transaction() as connection:
                await connection.execute(
                    text(f"CREATE TABLE links (id INTEGER PRIMARY KEY, parent INTEGER, {deferred})")
                )
            for n in range(10):
                await scene.api.publish(event_type="a.b", payload={"name": str(n)})
            await outbox_empty(scene.api)
            async with scene.worker.consumer(handler, batch_size=10, classifier=hopeless):
                await settled(scene.worker)
            async with database.transaction(reading=True) as connection:
                found = (await connection.execute(text("SELECT id FROM links"))).scalars().all()
        assert sorted(found) == [n for n in range(10) if n != 3]
        assert await dead_letters(scene.worker) == ["unrecoverable"]


async def test_a_handler_without_a_connection_is_called_once_for_a_processed_event(
    nats_server, pair, database_url
):
    heard = Heard()
    async with bridges(nats_server, pair, database_url) as scene:
        async with scene.worker.consumer(heard):
            result = await scene.api.publish(event_type="a.b", payload={"name": "x"})
            await eventually(lambda: heard.names == ["x"], within=60)
            await settled(scene.worker)
            # The same event once more, past the outbox and the broker's memory of ids.
            said = {"event_type": "a.b", "payload": {"name": "x"}, "event_id": result.event_id}
            again = build(producer="x", **said).draft(scene.api.names.source_subject)
            broker = await scene.api.connection.broker()
            copy = Draft(again.data, {}, None, "copy", again.subject)
            [receipt] = await broker.publish(pair["stream_name"], [copy])
            assert isinstance(receipt, Receipt) and not receipt.duplicate
            await settled(scene.worker)
        assert heard.names == ["x"]
        assert await scene.inbox() == {result.event_id: ("processed", 1)}


async def test_malformed_messages_pass_the_inbox_by(nats_server, pair, database_url):
    async with bridges(nats_server, pair, database_url) as scene:
        broker = await scene.api.connection.broker()
        subject = scene.api.names.source_subject
        await broker.publish(pair["stream_name"], [Draft(b"{", subject=subject)])
        async with scene.worker.consumer(store):
            await settled(scene.worker)
        assert await dead_letters(scene.worker) == ["malformed_json"]
        assert await scene.inbox() == {}


async def test_an_inbox_out_of_reach_brings_events_back_and_gives_none_up(
    nats_server, pair, postgres
):
    """However long it takes: an outage of the database is no fault of the events."""
    url = postgres.new_database()
    options = {"max_deliver": 2, "backoff": [0.05]}
    async with bridges(nats_server, pair, url, **options) as scene:
        inbox = scene.worker.inbox
        real, failing = inbox.mark, True

        async def mark(connection, arrivals):
            if failing:
                raise errors.UnavailableError("away")
            return await real(connection, arrivals)

        inbox.mark = mark
        async with scene.worker.consumer(store):
            await scene.api.publish(event_type="a.b", payload={"name": "x"})
            await outbox_empty(scene.api)
            await asyncio.sleep(2)
            failing = False
            await settled(scene.worker)
        assert [name for _, name in await scene.rows()] == ["x"]
        assert await dead_letters(scene.worker) == []


async def test_health_tells_of_outbox_and_inbox(nats_server, pair, database_url):
    async with bridges(nats_server, pair, database_url) as scene:
        await scene.api.publish(event_type="a.b", payload={"name": "x"})
        await outbox_empty(scene.api)
        health = await scene.api.health_check()
        assert health["healthy"], health["errors"]
        assert health["outbox"]["pending"] == 0 and health["outbox"]["failed"] == 0
        assert health["jetstream"]["storage_bytes"] > 0
        async with scene.worker.consumer(store):
            await settled(scene.worker)
            health = await scene.worker.health_check()
        assert health["inbox"]["processed"] == 1 and health["consumer"]["lag"] == 0


async def test_a_database_of_another_version_is_named_at_the_start(nats_server, pair, database_url):
    from sqlalchemy import text

    async with bridges(nats_server, pair, database_url):
        pass
    async with Database(database_url) as database:
        async with database.transaction() as connection:
            await connection.execute(
                text("UPDATE penstock_schema SET version_num = 'outbox_1' "
                     "WHERE version_num = 'outbox_3'")
            )  # fmt: skip
    with pytest.raises(errors.FailedPreconditionError, match="penstock db upgrade"):
        async with bridges(nats_server, pair, database_url):
            pass
