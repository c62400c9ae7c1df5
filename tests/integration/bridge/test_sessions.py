"""Handlers that write through the models of their app."""

import pytest
from sqlalchemy import select
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
