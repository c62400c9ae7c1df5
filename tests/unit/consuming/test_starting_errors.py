"""What is wrong with an app is said when it starts: which function, where, and what to write."""

import functools
from typing import Annotated

import pytest

from penstock import App, Attribute, Message, Reject, Router
from penstock.errors import InvalidArgumentError
from tests.support.shop import Invoice, Order


class Database:
    pass


class Cursor:
    pass


def refusal(app):
    with pytest.raises(InvalidArgumentError, match=r"^The app cannot start: ") as caught:
        app.bindings()
    return str(caught.value)


def refusal_of(handler, **options):
    app = App()
    app.subscriber("orders", "billing", **options)(handler)
    said = refusal(app)
    name = getattr(handler, "__name__", "")
    assert name in said and "test_starting_errors.py:" in said
    return said


def test_a_body_that_nothing_can_decode():
    def handle(body: Database) -> None: ...

    said = refusal_of(handle)
    assert "The body Database of" in said
    assert "write bytes, str, dict, a msgspec Struct" in said
    assert "app.provide(Database" in said


def test_a_parameter_without_annotation():
    def handle(order) -> None: ...

    assert "Parameter 'order' of" in refusal_of(handle)
    assert "`order: bytes`" in refusal_of(handle)


def test_a_dependency_without_a_provider():
    def handle(order: Order, database: Database) -> None: ...

    said = refusal_of(handle)
    assert "'database: Database'" in said
    assert "('order' is the body)" in said
    assert "write `app.provide(Database, …)`" in said


def test_an_annotation_that_cannot_be_found():
    def handle(order: "Missing") -> None: ...  # noqa: F821

    assert "'Missing' is not defined" in refusal_of(handle)


def test_parameters_that_say_nothing():
    def handle(*bodies: Order) -> None: ...

    assert "takes *bodies" in refusal_of(handle)


def test_a_batch_with_a_single_message_beside_it():
    def one(orders: list[Order], message: Message) -> None: ...
    def two(orders: list[Order], key: Annotated[str, Attribute("k")]) -> None: ...

    for handler in (one, two):
        assert "messages: list[Message]" in refusal_of(handler)


def test_two_handlers_for_one_subscription_name_both():
    app = App()

    @app.subscriber("orders", "billing")
    def first(order: Order) -> None: ...

    @app.subscriber("orders", "billing")
    def second(order: Order) -> None: ...

    said = refusal(app)
    assert "Subscription 'billing' has two handlers" in said
    assert "first" in said and "second" in said
    assert "another subscription" in said


def test_a_function_that_publishes_and_takes_nothing():
    router = Router()

    @router.publishes("invoices")
    def bill(order: Order) -> Invoice: ...

    app = App()
    app.include(router)
    assert "bill" in refusal(app) and "@app.subscriber" in refusal(app)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"filtr": "x"}, "there is no option filtr"),
        ({"retry_policy": None}, "there is no option retry_policy"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_wait": -1}, "batch_wait must be"),
        ({"dead_letters": "x"}, "Dead-letter topic name 'x' is not allowed"),
    ],
)
def test_options_that_cannot_be(options, said):
    def handle(order: Order) -> None: ...

    assert said in refusal_of(handle, **options)


def test_names_that_cannot_be_with_the_prefix_they_got():
    router = Router()

    @router.subscriber("orders", "billing")
    @router.publishes("in")
    def bill(order: Order) -> Invoice: ...

    app = App()
    app.include(router, prefix="1-")
    assert "'1-orders' is not allowed" in refusal(app)


def test_an_async_function_is_not_blocking():
    async def handle(order: Order) -> None: ...

    assert "blocking=True is for plain functions" in refusal_of(handle, blocking=True)


def test_everything_that_is_wrong_is_said_at_once():
    app = App()

    @app.subscriber("orders", "one")
    def first(order) -> None: ...

    @app.subscriber("orders", "two")
    def second(order: Database) -> None: ...

    said = refusal(app)
    assert "first" in said and "second" in said


def test_a_provider_that_does_not_say_what_it_provides():
    app = App()
    with pytest.raises(InvalidArgumentError, match=r"connect .*does not say what it provides"):

        @app.provider
        def connect(): ...


def test_providers_in_a_ring():
    app = App()

    @app.provider
    def database(cursor: Cursor) -> Database: ...
    @app.provider
    def cursor(database: Database) -> Cursor: ...
    @app.subscriber("orders", "billing")
    def handle(order: Order, database: Database) -> None: ...

    assert "Database → Cursor → Database" in refusal(app)


def test_a_provider_that_nobody_can_call():
    app = App()

    @app.provider
    def database(cursor: Cursor) -> Database: ...
    @app.subscriber("orders", "billing")
    def handle(order: Order, database: Database) -> None: ...

    assert "'cursor: Cursor'" in refusal(app)


@pytest.mark.parametrize("wants", [Message, Cursor])
def test_what_is_made_once_cannot_ask_for_what_there_is_for_a_message(wants):
    app = App()

    @app.provider
    def cursor() -> Cursor: ...
    @app.provider(once=True)
    def database(needed: wants) -> Database: ...
    @app.subscriber("orders", "billing")
    def handle(order: Order, database: Database) -> None: ...

    assert "is called once" in refusal(app)


async def plain_arguments(call): ...


async def swallows(call, next):
    return None


def not_async(call, next):
    return next(call)


async def fine(call, next):
    async def inner():
        return await next(call)

    return await inner()


@pytest.mark.parametrize(
    ("middleware", "said"),
    [
        (not_async, r"not_async \(.*test_starting_errors.py:\d+\) is not async; write `async def"),
        (plain_arguments, r"plain_arguments .* takes 1 arguments; .*`\(call, next\)`"),
        (swallows, r"swallows .* never uses 'next'.*`return await next\(call\)`"),
        ("timeout", "must be an async function, not a str"),
        (functools.partial(fine, 1), "takes 1 arguments"),
    ],
)
def test_a_middleware_that_could_not_work(middleware, said):
    app = App()
    app.subscriber("orders", "billing")(lambda: None)
    app.use(middleware)
    with pytest.raises(InvalidArgumentError, match=said):
        app.bindings()


def test_a_middleware_that_works_is_taken_in_every_form():
    class Loud:
        async def __call__(self, call, next):
            return await next(call)

        async def method(self, call, next):
            return await next(call)

    async def with_extra(extra, call, next):
        return await next(call)

    app = App()
    app.subscriber("orders", "billing")(lambda: None)
    app.use(fine, Loud(), Loud().method, functools.partial(with_extra, 1))
    app.bindings()


def test_a_lifespan_must_yield():
    app = App()
    with pytest.raises(InvalidArgumentError, match=r"span .*one `yield`"):

        @app.lifespan
        async def span(): ...


def test_an_app_is_ensured_or_checked():
    with pytest.raises(InvalidArgumentError, match="'ensure' or 'check'"):
        App(provision="maybe")


def test_a_router_cannot_include_itself():
    app = App()
    with pytest.raises(InvalidArgumentError, match="include itself"):
        app.include(app)


def test_bodies_are_json_or_msgpack():
    with pytest.raises(InvalidArgumentError, match="application/msgpack"):
        App().publishes("x", content_type="application/xml")


def test_a_handler_with_a_yield_would_never_run():
    async def handle(order: Order):
        yield order

    def plain(order: Order):
        yield order

    for handler in (handle, plain):
        assert "has a `yield` in it" in refusal_of(handler)


def test_dead_letters_that_come_back_would_go_round_for_ever():
    def handle(order: Order) -> None: ...

    assert "round for ever" in refusal_of(handle, dead_letters="orders")
    app = App()
    app.subscriber("orders", "billing", dead_letters="odd")(handle)
    app.subscriber("odd", "looking", dead_letters="orders")(functools.partial(handle))
    assert refusal(app).count("round for ever") == 2
    app = App()
    app.subscriber("orders", "billing", dead_letters="odd")(handle)
    app.subscriber("odd", "looking", dead_letters="odder")(functools.partial(handle))
    assert app.bindings()


@pytest.mark.parametrize(
    "options",
    [
        {"ack_deadline": "soon"},
        {"ack_deadline": 1e9},
        {"filter": "tenant=1"},
        {"retry": 5},
        {"middleware": [3]},
        {"threads": -1},
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_function(options):
    def handle(order: Order) -> None: ...

    refusal_of(handle, **options)


def test_sizes_of_batches_are_for_handlers_of_several():
    def handle(order: Order) -> None: ...

    def several(orders: list[Order]) -> None: ...

    assert "write `list[…]` around its body" in refusal_of(handle, batch_size=5)
    app = App()
    app.subscriber("orders", "billing", batch_wait=1)(several)
    assert app.bindings()


@pytest.mark.parametrize("returns", [None, Reject | None])
def test_what_is_published_must_be_something(returns):
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def handle(order: Order) -> returns: ...

    said = refusal(app)
    assert "handle" in said and "test_starting_errors.py:" in said
    assert "says that this is None; write what it returns" in said


def test_an_address_that_is_none():
    with pytest.raises(InvalidArgumentError, match="not NoneType; is it a variable that is not"):
        App(None)


def test_a_decorator_without_its_topic():
    app = App()

    def handle(order: Order) -> Invoice: ...

    with pytest.raises(InvalidArgumentError, match=r"handle .*write `@app.publishes\(\"topic\"\)`"):
        app.publishes(handle)


def test_a_class_is_no_handler():
    app = App()

    class Handler:
        def __init__(self, order: Order) -> None: ...

    app.subscriber("orders", "billing")(Handler)
    assert "Handler is a class, and making one handles nothing" in refusal(app)


@pytest.mark.parametrize(
    ("names", "options"),
    [((5, "billing"), {}), (("orders", None), {}), (("orders", "billing"), {"dead_letters": True})],
)
def test_names_that_are_none(names, options):
    router = Router()

    def handle(order: Order) -> None: ...

    with pytest.raises(InvalidArgumentError, match=r"handle \(.*\): a \w+ is no name of a topic"):
        router.subscriber(*names, **options)(handle)
    with pytest.raises(InvalidArgumentError, match="dead_letters is a topic"):
        App(dead_letters=3)


def test_one_middleware_needs_no_list():
    async def loud(call, next):
        return await next(call)

    def quiet(call, next): ...

    app = App()
    app.subscriber("orders", "billing", middleware=loud)(lambda: None)
    [binding] = app.bindings()
    assert binding.subscriber.middleware == (loud,)
    assert "Middleware" in refusal_of(lambda: None, middleware=quiet)


def test_what_is_published_must_be_something_that_can_be():
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def handle(order: Order) -> Database: ...

    assert "returns, Database, cannot be the body of a message" in refusal(app)
