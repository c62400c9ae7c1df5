"""The mailer: a worker with a table of its own. It hears of accounts, and says what it sent.

BROKER_URL=nats://… MAILER_DATABASE=postgresql+psycopg://… python bridge_mailer.py
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import Column, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock import Bridge, Event
from penstock.transactional import Database

metadata = MetaData()
letters = Table("letters", metadata, Column("to", String, primary_key=True))


class Mailer:
    def __init__(self, broker: str, database: str) -> None:
        self.database = Database(database)
        self.bridge = Bridge(
            "mailer", "accounts", url=broker, database_url=database, use_outbox=True, use_inbox=True
        )
        self.consumer = self.bridge.consumer(self.welcome)

    async def welcome(self, event: Event, connection: AsyncConnection) -> None:
        """The letter, what is said of it, and that the event was heard: all in one transaction."""
        await connection.execute(insert(letters), {"to": event.payload["email"]})
        await self.bridge.publish(
            event_type="letter.sent",
            payload={"account": event.payload["id"]},
            connection=connection,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.database:
            await self.database.create_tables(metadata)
            async with self.bridge, self.consumer:
                yield

    async def sent(self) -> list[str]:
        async with self.database.transaction(reading=True) as connection:
            return list((await connection.execute(select(letters.c.to))).scalars())


async def main() -> None:
    mailer = Mailer(os.environ["BROKER_URL"], os.environ["MAILER_DATABASE"])
    async with mailer.running():
        await mailer.consumer.run()  # until SIGINT or SIGTERM


if __name__ == "__main__":
    asyncio.run(main())
