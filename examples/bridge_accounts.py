"""Accounts: a FastAPI app with models of its own that tells another app, the mailer, what happened.

The account and its event are committed together; so are what the mailer answers and its effect.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from penstock import Bridge, Event


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    welcomed: Mapped[bool] = mapped_column(default=False)


class NewAccount(BaseModel):
    email: str


class Accounts:
    """The app's parts, made when it starts."""

    def __init__(self, broker: str, database: str) -> None:
        self.engine = create_async_engine(database)
        self.bridge = Bridge(
            "accounts", "mailer", url=broker, database_url=database, use_outbox=True, use_inbox=True
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with self.bridge, self.bridge.consumer(self.heard):
            yield
        await self.engine.dispose()

    async def open(self, email: str) -> int:
        async with AsyncSession(self.engine) as session, session.begin():
            account = Account(email=email)
            session.add(account)
            await session.flush()
            # Published if and only if the account is committed.
            await self.bridge.publish(
                event_type="account.opened",
                payload={"id": account.id, "email": email},
                connection=session,
            )
            if email.endswith("@example.invalid"):
                raise ValueError(email)
            return account.id

    async def heard(self, event: Event, connection: AsyncConnection) -> None:
        """What the mailer says, in the transaction that remembers that it was heard."""
        change = update(Account).where(Account.id == event.payload["account"])
        await connection.execute(change.values(welcomed=True))

    async def welcomed(self, number: int) -> bool:
        async with AsyncSession(self.engine) as session:
            return (await session.get_one(Account, number)).welcomed


def make_web(accounts: Accounts) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with accounts.running():
            yield

    web = FastAPI(lifespan=lifespan)

    @web.post("/accounts", status_code=201)
    async def open_account(new: NewAccount) -> int:
        return await accounts.open(new.email)

    @web.get("/ready")
    async def ready() -> bool:
        return bool((await accounts.bridge.health_check())["ready"])

    return web


def web() -> FastAPI:
    """`uvicorn --factory bridge_accounts:web`"""
    return make_web(Accounts(os.environ["BROKER_URL"], os.environ["ACCOUNTS_DATABASE"]))


async def main(folder: str) -> None:
    """Both apps in one process, to show it; each has its own database."""
    from bridge_mailer import Mailer

    broker = f"local://{folder}/broker"
    accounts = Accounts(broker, f"sqlite+aiosqlite:///{folder}/accounts.db")
    mailer = Mailer(broker, f"sqlite+aiosqlite:///{folder}/mailer.db")
    asgi = make_web(accounts)
    client = AsyncClient(transport=ASGITransport(asgi), base_url="http://accounts")
    async with asgi.router.lifespan_context(asgi), mailer.running(), client:
        number = (await client.post("/accounts", json={"email": "ada@example.org"})).json()
        try:
            await client.post("/accounts", json={"email": "nobody@example.invalid"})
        except ValueError as error:
            print("rolled back:", error)
        while not await accounts.welcomed(number):
            await asyncio.sleep(0.02)
        print("welcomed: account", number)
        print("sent:", *await mailer.sent())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))

# prints:
# rolled back: nobody@example.invalid
# welcomed: account 1
# sent: ada@example.org
