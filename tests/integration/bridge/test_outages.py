"""A database that cannot be used for a while is no fault of the events that come meanwhile."""

import logging

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, event, insert, select, text

from penstock import errors
from penstock.bridge import processing
from penstock.bridge.outcomes import UNANSWERED_AT_MOST
from penstock.message import Verb
from penstock.testing import eventually
from penstock.testing.bridge import BridgeKit
from penstock.transactional import Arrival, Database, schema

pytestmark = pytest.mark.real_time

own = MetaData()
effects = Table("effects", own, Column("id", Integer, primary_key=True), Column("said", Text))
_LONG = "x" * 50_000


class Heard:
    """A handler of either kind that remembers which delivery it saw."""

    def __init__(self):
        self.deliveries = []

    async def alone(self, event):
        self.deliveries.append(event.deliveries)

    async def writing(self, event, connection):
        await connection.execute(insert(effects).values(said=_LONG))
        self.deliveries.append(event.deliveries)


@pytest.fixture(params=["alone", "writing"])
def kind(request):
    return request.param


def kit(url, **settings):
    """Given up at once, if a failure should be counted."""
    return BridgeKit(use_inbox=True, database_url=url, max_deliver=1, **settings)


async def make_tables(url):
    async with Database(url) as database:
        await database.create_tables(own)


async def test_a_database_out_of_reach_costs_an_event_no_delivery(database_url, kind, monkeypatch):
    await make_tables(database_url)
    heard = Heard()
    async with kit(database_url) as scene:
        inbox, tried = scene.bridge.inbox, 0

        def failing(real):
            async def call(*arguments):
                nonlocal tried
                tried += 1
                if tried <= 3:
                    raise errors.UnavailableError("away")
                return await real(*arguments)

            return call

        for name in ("take", "mark"):
            monkeypatch.setattr(inbox, name, failing(getattr(inbox, name)))
        async with scene.bridge.consumer(getattr(heard, kind)):
            await scene.tell(event_type="a.b", payload={})
            await scene.processed(within=60)
        assert tried == 4 and heard.deliveries == [1]
        assert await scene.dead_letters() == []


async def test_tables_that_are_gone_give_no_event_up(database_url, kind, caplog):
    await make_tables(database_url)
    heard = Heard()
    async with kit(database_url) as scene, Database(database_url) as database:
        async with database.transaction() as connection:
            await connection.execute(text("DROP TABLE penstock_inbox"))
            await connection.execute(
                text("DELETE FROM penstock_schema WHERE version_num LIKE 'inbox%'")
            )
        with caplog.at_level(logging.WARNING):
            async with scene.bridge.consumer(getattr(heard, kind)):
                await scene.tell(event_type="a.b", payload={"secret": "hunter2"})
                await eventually(lambda: caplog.text.count("cannot be used") >= 4, within=60)
                await schema.upgrade(database, ["inbox"])
                await scene.processed(within=60)
        assert heard.deliveries == [1]
        assert "penstock db status" in caplog.text and "hunter2" not in caplog.text
        assert await scene.dead_letters() == []


async def test_a_full_disk_gives_no_event_up(tmp_path, kind, caplog):
    url = f"sqlite:///{tmp_path}/app.db"
    await make_tables(url)
    heard, full = Heard(), True
    async with kit(url) as scene:
        engine = scene.bridge.inbox.database._engine().sync_engine

        @event.listens_for(engine, "begin")
        def bound(connection):
            most = connection.exec_driver_sql("PRAGMA page_count").scalar() if full else 10**6
            connection.exec_driver_sql(f"PRAGMA max_page_count = {most}")

        async with scene.bridge.consumer(getattr(heard, kind)):
            await scene.tell(event_type="a.b", payload={"long": _LONG})
            await eventually(lambda: "cannot be used" in caplog.text, within=60)
            full = False
            await scene.processed(within=60)
        assert heard.deliveries[-1] == 1
        assert await scene.dead_letters() == []


async def test_a_database_that_only_reads_for_a_while_gives_no_event_up(postgres, kind, caplog):
    """As the old primary does after a failover."""
    url = postgres.new_database()
    await make_tables(url)
    heard = Heard()
    name = url.rpartition("/")[2]
    async with kit(url) as scene, Database(postgres.url()) as server:

        async def only_read(setting):
            async with server.transaction() as connection:
                await connection.execute(
                    text(f"ALTER DATABASE {name} SET default_transaction_read_only = {setting}")
                )
                await connection.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                         "WHERE datname = :name"), {"name": name},
                )  # fmt: skip

        await only_read("on")
        async with scene.bridge.consumer(getattr(heard, kind)):
            await scene.tell(event_type="a.b", payload={})
            await eventually(lambda: "cannot be used" in caplog.text, within=60)
            await only_read("off")
            await scene.processed(within=60)
        assert heard.deliveries == [1]
        assert await scene.dead_letters() == []


async def test_a_mark_that_could_not_be_written_does_not_repeat_the_handler(
    database_url, monkeypatch
):
    heard = Heard()
    async with kit(database_url) as scene:
        inbox, tried = scene.bridge.inbox, 0
        real = inbox.finish

        async def finish(ids):
            nonlocal tried
            tried += 1
            if tried <= 2:
                raise errors.UnavailableError("away")
            await real(ids)

        monkeypatch.setattr(inbox, "finish", finish)
        async with scene.bridge.consumer(heard.alone):
            await scene.tell(event_type="a.b", payload={})
            await scene.processed(within=60)
        assert (tried, heard.deliveries) == (3, [1])
        assert (await inbox.status()).processed == 1


async def test_what_a_killed_process_had_taken_is_not_given_up_while_it_is_taken(
    database_url, monkeypatch
):
    """It is looked at seldom enough: each look is a delivery, and those are counted."""
    asked = []
    async with kit(database_url, ack_wait=30) as scene:
        settle = scene.broker.settle

        async def settled(subscription, settlements):
            asked.extend(settlements)
            return await settle(subscription, settlements)

        monkeypatch.setattr(scene.broker, "settle", settled)
        told = await scene.tell(event_type="a.b", payload={})
        await scene.bridge.inbox.take(Arrival(event_id=told.event_id), 120)
        async with scene.bridge.consumer(Heard().alone):
            await eventually(lambda: asked, within=60)
    [look] = [one for one in asked if one.verb is Verb.NACK][:1]
    assert processing._LEASES * 30 / look.seconds < UNANSWERED_AT_MOST


async def test_an_event_that_the_database_cannot_take_is_given_up_alone(database_url, monkeypatch):
    """What it says is about that event, and the others go on."""
    heard = Heard()
    async with kit(database_url) as scene:
        inbox = scene.bridge.inbox
        real = inbox.take

        async def take(arrival, lease):
            if arrival.event_id == "odd":
                async with inbox.database.transaction() as connection:
                    await connection.execute(select(text("not_a_column")))
            return await real(arrival, lease)

        monkeypatch.setattr(inbox, "take", take)
        async with scene.bridge.consumer(heard.alone):
            await scene.tell(event_type="a.b", payload={}, event_id="odd")
            await scene.tell(event_type="a.b", payload={})
            await scene.processed(within=60)
        assert heard.deliveries == [1]
        assert [letter.reason for letter in await scene.dead_letters()] == ["max_deliver_exceeded"]
