"""Handlers that write through the models of their app."""

from contextlib import suppress

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from penstock.testing.bridge import BridgeKit
from penstock.transactional import Database

pytestmark = pytest.mark.real_time


class Base(DeclarativeBase):
    pass


class Person(Base):
    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


async def test_a_session_on_the_given_connection_commits_with_the_mark_or_not_at_all(database_url):
    tries = []

    async def handle(event, connection):
        async with AsyncSession(bind=connection) as session:
            session.add(Person(name=event.payload["name"]))
            await session.commit()
        tries.append(event.payload["name"])
        if tries.count("bob") == 1 and event.payload["name"] == "bob":
            raise OSError("not now")

    settings = {"database_url": database_url, "use_inbox": True, "backoff": (0.01,)}
    async with Database(database_url) as database:
        await database.create_tables(Base.metadata)
        async with BridgeKit(**settings) as kit, kit.bridge.consumer(handle):
            for name in ("ada", "bob", "eve"):
                await kit.tell(event_type="person.met", payload={"name": name})
            await kit.processed(within=60)
        async with database.transaction(reading=True) as connection:
            found = (await connection.execute(select(Person.name))).scalars().all()
    assert sorted(found) == ["ada", "bob", "eve"]
    assert sorted(tries) == ["ada", "bob", "bob", "eve"]


@pytest.mark.parametrize("misuse", ["commit", "rollback", "close"])
@pytest.mark.parametrize("swallowing", [False, True])
async def test_a_handler_that_ends_the_transaction_is_given_up_and_takes_nobody_along(
    database_url, misuse, swallowing
):
    """It is shared with the events beside it, and marks those that are not handled yet."""

    async def handle(event, connection):
        await connection.execute(insert(Person).values(name=event.payload["name"]))
        if event.payload["name"] == "mallory":
            with suppress(ValueError if swallowing else KeyError):
                await getattr(connection, misuse)()

    names = ["ada", "bob", "mallory", "eve", "dan"]
    settings = {"database_url": database_url, "use_inbox": True}
    async with Database(database_url) as database:
        await database.create_tables(Base.metadata)
        async with BridgeKit(**settings) as kit:
            consumer = kit.bridge.consumer(handle)
            # All in one transaction, which small groups would be only by chance.
            consumer._make_lanes()
            consumer._lanes[0]._together = 5
            for name in names:
                await kit.tell(event_type="person.met", payload={"name": name})
            async with consumer:
                await kit.processed(within=60)
            [letter] = await kit.dead_letters()
        async with database.transaction(reading=True) as connection:
            found = (await connection.execute(select(Person.name))).scalars().all()
    assert sorted(found) == sorted({*names} - {"mallory"})
    assert letter.reason == "unrecoverable" and "leave commit" in (letter.error or "")


async def test_copies_of_an_event_in_one_transaction_have_one_effect(database_url):
    tries = []

    async def handle(event, connection):
        tries.append(event.event_id)
        await connection.execute(insert(Person).values(name=event.event_id))
        if tries == ["fails"]:
            raise OSError("not now")

    settings = {"database_url": database_url, "use_inbox": True, "backoff": (0.01,)}
    async with Database(database_url) as database:
        await database.create_tables(Base.metadata)
        async with BridgeKit(**settings) as kit:
            consumer = kit.bridge.consumer(handle)
            consumer._make_lanes()
            consumer._lanes[0]._together = 4
            for event_id in ("fails", "fails", "same", "same"):
                # Under no id that the broker would know them by.
                await kit.tell_raw(b'{"event_id": "%s", "event_type": "a.b"}' % event_id.encode())
            async with consumer:
                await kit.processed(within=60)
            assert await kit.dead_letters() == []
        async with database.transaction(reading=True) as connection:
            found = (await connection.execute(select(Person.name))).scalars().all()
    assert sorted(found) == ["fails", "same"]
    assert sorted(tries) == ["fails", "fails", "same"]
