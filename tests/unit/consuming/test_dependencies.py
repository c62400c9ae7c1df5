"""Dependencies by type: what is made when, shared by whom, cleaned up when."""

from collections.abc import AsyncIterator, Iterator

import pytest

from penstock import App, Message, Router
from penstock.testing import TestApp
from tests.support.shop import Order


class Settings:
    pass


class Database:
    def __init__(self, settings=None):
        self.settings = settings


class Session:
    def __init__(self, database=None, tenant=""):
        self.database, self.tenant = database, tenant


async def test_values_are_given_by_type_wherever_they_stand():
    app, settings, seen = App(), Settings(), []
    app.provide(Settings, settings)

    @app.subscriber("orders", "billing")
    def handle(settings: Settings, order: Order, *, again: Settings) -> None:
        seen.append((settings, order, again))

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert seen == [(settings, Order(1), settings)]
        assert shop.calls(handle) == [Order(1)]


async def test_what_is_made_once_lives_as_long_as_the_app_and_is_shared():
    app, happened, seen = App(), [], []
    app.provide(Settings, Settings())

    @app.provider(once=True)
    async def database(settings: Settings) -> AsyncIterator[Database]:
        happened.append("open")
        yield Database(settings)
        happened.append("closed")

    @app.subscriber("orders", "one")
    async def first(order: Order, database: Database) -> None:
        seen.append(database)

    @app.subscriber("orders", "two")
    def second(order: Order, database: Database) -> None:
        seen.append(database)

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        await shop.publish("orders", Order(2))
        assert happened == ["open"]
        assert len(seen) == 4 and len(set(seen)) == 1
        assert isinstance(seen[0].settings, Settings)
    assert happened == ["open", "closed"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_is_made_for_a_message_is_made_once_for_it_and_cleaned_up_after_it(asynchronous):
    app, happened, seen = App(), [], []
    app.provide(Database, Database())

    if asynchronous:

        @app.provider
        async def session(database: Database, message: Message) -> AsyncIterator[Session]:
            session = Session(database, message.attributes["tenant"])
            happened.append("begin")
            try:
                yield session
            except ValueError:
                happened.append("rollback")
                raise
            else:
                happened.append("commit")
    else:

        @app.provider
        def session(database: Database, message: Message) -> Iterator[Session]:
            session = Session(database, message.attributes["tenant"])
            happened.append("begin")
            try:
                yield session
            except ValueError:
                happened.append("rollback")
                raise
            else:
                happened.append("commit")

    @app.provider
    def name(session: Session) -> Settings:
        return session

    @app.subscriber("orders", "billing", max_attempts=1)
    async def handle(order: Order, session: Session, same: Settings) -> None:
        seen.append(session.tenant)
        assert same is session
        if order.id == 2:
            raise ValueError

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1), attributes={"tenant": "a"})
        assert happened == ["begin", "commit"]
        await shop.publish("orders", Order(2), attributes={"tenant": "b"})
        assert happened == ["begin", "commit", "begin", "rollback"]
        assert seen == ["a", "b"]
        await shop.publish("orders", b"unreadable")
        assert len(happened) == 4, "nothing is opened for what cannot be read"


async def test_plain_and_async_functions_provide_too():
    app, seen = App(), []

    @app.provider
    async def settings() -> Settings:
        return Settings()

    @app.provider
    def database(settings: Settings) -> Database:
        return Database(settings)

    @app.subscriber("orders", "billing")
    def handle(order: Order, database: Database) -> None:
        seen.append(database)

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        await shop.publish("orders", Order(2))
        assert len(set(seen)) == 2
        assert all(isinstance(one.settings, Settings) for one in seen)


async def test_tests_provide_something_else():
    app, seen, fake = App(), [], Database()

    @app.provider(once=True)
    def database() -> Database:
        raise AssertionError("not in a test")

    @app.provider
    def session(database: Database) -> Session:
        return Session(database)

    @app.subscriber("orders", "billing")
    def handle(order: Order, session: Session) -> None:
        seen.append(session.database)

    async with TestApp(app, provide={Database: fake}) as shop:
        await shop.publish("orders", Order(1))
        assert seen == [fake]


async def test_an_app_provides_for_its_routers_and_wins_over_them():
    router, app, seen = Router(), App(), []
    ours, theirs = Settings(), Settings()
    router.provide(Settings, theirs)
    router.provide(Database, Database())

    @router.subscriber("orders", "billing")
    def handle(order: Order, settings: Settings, database: Database) -> None:
        seen.append(settings)

    app.include(router)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
    app.provide(Settings, ours)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
    assert seen == [theirs, ours]


async def test_a_parameter_with_a_default_needs_no_provider():
    app, seen = App(), []

    @app.subscriber("orders", "billing")
    def handle(order: Order, limit: int = 7, *, message: Message) -> None:
        seen.append((limit, message.data))

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert seen == [(7, b'{"id":1,"customer":"ann"}')]


async def test_batches_get_dependencies_too():
    app, seen = App(), []
    app.provide(Settings, Settings())

    @app.provider
    async def session(settings: Settings) -> AsyncIterator[Session]:
        seen.append("begin")
        yield Session(settings)
        seen.append("commit")

    @app.subscriber("orders", "billing")
    async def handle(orders: list[Order], session: Session) -> None:
        seen.append((orders, type(session.database)))

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert seen == ["begin", ([Order(1)], Settings), "commit"]
