"""Middleware: the order it runs in, what it may decide, and each that comes with the package."""

import asyncio
import logging

import pytest

from penstock import App, Backoff, Message, Reject, Retry, RetryPolicy, Router
from penstock.consuming import middleware as around
from penstock.consuming.middleware.circuit_breaker import Circuit, State
from penstock.consuming.middleware.rate_limit import Pace
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.testing import TestApp, run_virtual
from tests.support.shop import Invoice, Order

SOON = RetryPolicy(minimum_backoff=1, maximum_backoff=1)


def an_app(handler, *middleware, **options):
    app = App(retry=SOON)
    app.use(*middleware)
    app.subscriber("orders", "billing", **options)(handler)
    return app


def now():
    return asyncio.get_running_loop().time()


async def take(order: Order) -> None:
    pass


# Of any kind.


async def test_middleware_runs_in_the_order_it_is_written_and_the_apps_is_outermost():
    happened = []

    def told(name):
        async def tell(call, next):
            happened.append(f"{name}>")
            result = await next(call)
            happened.append(f"<{name}")
            return result

        return tell

    router, app = Router(), App()
    router.use(told("router"))

    @router.subscriber("orders", "billing", middleware=[told("own")])
    def handle(order: Order) -> None:
        happened.append("handler")

    app.include(router)
    app.use(told("first"))
    app.use(told("second"))
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
    assert happened == [
        "first>", "second>", "router>", "own>", "handler", "<own", "<router", "<second", "<first",
    ]  # fmt: skip


async def test_a_middleware_sees_the_call_and_what_came_of_it():
    seen = []

    async def look(call: around.Call, next: around.Next) -> object:
        result = await next(call)
        seen.append((call.topic, call.subscription, call.handler, call.message.data, result))
        return result

    app = App()
    app.use(look)

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def bill(order: Order) -> Invoice:
        return Invoice(order.id)

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        name = f"{test_a_middleware_sees_the_call_and_what_came_of_it.__name__}.<locals>.bill"
        assert seen == [("orders", "billing", name, b'{"id":1,"customer":"ann"}', Invoice(1))]
        assert shop.published("invoices") == [Invoice(1)]


async def test_a_middleware_may_decide_without_the_handler():
    async def closed(call, next):
        return await next(call) if call.message.attributes else Reject("closed")

    async with TestApp(an_app(take, closed)) as shop:
        await shop.publish("orders", Order(1))
        await shop.publish("orders", Order(2), attributes={"k": "v"})
        assert shop.calls(take) == [Order(2)]
        assert [letter.reason for letter in shop.dead()] == ["closed"]


async def test_a_middleware_that_forgets_to_return_loses_no_decision():
    async def forgetful(call, next):
        await next(call)

    async with TestApp(an_app(lambda: Reject("no"), forgetful)) as shop:
        await shop.publish("orders", Order(1))
        assert [letter.reason for letter in shop.dead()] == ["no"]


async def test_a_middleware_that_swallows_an_error_acks_and_is_told_of(caplog):
    async def swallow(call, next):
        try:
            return await next(call)
        except Exception:
            return None

    def fail(order: Order) -> None:
        raise ValueError

    def fail_all(orders: list[Order]) -> None:
        raise ValueError

    for handler in (fail, fail_all):
        async with TestApp(an_app(handler, swallow)) as shop:
            await shop.publish("orders", Order(1))
            assert len(shop.calls(handler)) == 1 and not shop.dead()
        assert "caught ValueError and returned: the message is acked" in caplog.text
        caplog.clear()


async def test_what_a_middleware_raises_is_as_if_the_handler_had():
    async def broken(call, next):
        await next(call)
        raise KeyError("k")

    async with TestApp(an_app(take, broken, max_attempts=2)) as shop:
        await shop.publish("orders", Order(1))
        assert [letter.error for letter in shop.dead()] == ["KeyError: 'k'"]
        assert len(shop.calls(take)) == 2


def test_a_middleware_that_was_not_called_is_told_so():
    app = an_app(take, around.timeout)
    with pytest.raises(InvalidArgumentError, match=r"call it: `timeout\(…\)`"):
        app.bindings()


# Timeout.


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_comes_back():
    began, cancelled = [], []

    async def slow(order: Order) -> None:
        began.append(now())
        try:
            await asyncio.sleep(500)
        except asyncio.CancelledError:
            cancelled.append(now())
            raise

    async with TestApp(an_app(slow, around.timeout(30), max_attempts=2)) as shop:
        await shop.publish("orders", Order(1))
        assert [round(b - a) for a, b in zip(began, cancelled, strict=True)] == [30, 30]
        assert "took longer than 30 s" in shop.dead()[0].error


async def test_a_timeout_of_the_handlers_own_stays_what_it_is():
    async def handle(order: Order) -> None:
        raise TimeoutError("the database")

    async with TestApp(an_app(handle, around.timeout(30), max_attempts=1)) as shop:
        await shop.publish("orders", Order(1))
        assert shop.dead()[0].error == "TimeoutError: the database"


# Retry.


async def test_passing_errors_are_tried_again_here_and_others_are_not():
    tries = []

    async def handle(order: Order, message: Message) -> None:
        tries.append(message.delivery_attempt)
        if order.id == 1 and len(tries) < 3:
            raise ConnectionError
        if order.id == 2:
            raise ValueError
        if order.id == 3:
            raise Reject("no")

    app = an_app(handle, around.retry(attempts=3), max_attempts=2)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert tries == [1, 1, 1] and not shop.dead()
        tries.clear()
        await shop.publish("orders", Order(2))
        assert tries == [1, 2]
        tries.clear()
        await shop.publish("orders", Order(3))
        assert tries == [1]


async def test_retries_here_come_to_an_end_and_wait_as_told():
    times = []

    async def handle(order: Order) -> None:
        times.append(now())
        raise UnavailableError("down")

    class Fixed(Backoff):
        def delay(self, failures, chance=None):
            return 7.0

    backoff = Fixed(initial=7, maximum=7)
    app = an_app(handle, around.retry(attempts=3, backoff=backoff), max_attempts=1)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert [round(time - times[0]) for time in times] == [0, 7, 14]
        assert shop.dead()[0].error == "UnavailableError: down"


@pytest.mark.parametrize("on", [ValueError, (ValueError, KeyError), lambda e: "x" in str(e)])
async def test_what_is_worth_trying_again_can_be_said_in_three_ways(on):
    async def handle(order: Order) -> None:
        raise ValueError("x")

    app = an_app(handle, around.retry(attempts=4, on=on), max_attempts=1)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert len(shop.calls(handle)) == 4


@pytest.mark.parametrize("on", ["ValueError", 5, ("ValueError",)])
def test_errors_that_are_none_are_refused(on):
    with pytest.raises(InvalidArgumentError, match="exception class"):
        around.retry(on=on)


# Rate limit.


def test_a_pace_lets_a_burst_go_and_then_one_at_a_time():
    pace = Pace(per_second=2, burst=3)
    assert [pace.take(0.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert pace.take(100.0) == 0
    assert [pace.take(100.0) for _ in range(3)] == [0, 0, 0.5]


def test_a_batch_takes_as_many_turns_as_it_has_messages():
    pace = Pace(per_second=1, burst=1)
    assert pace.take(0.0, 10) == 0
    assert pace.take(0.0) == 10


async def test_messages_wait_for_their_turn():
    times = []

    async def handle(order: Order) -> None:
        times.append(now())

    async with TestApp(an_app(handle, around.rate_limit(0.5))) as shop:
        for n in range(4):
            await shop.publish("orders", Order(n), wait=False)
        await shop.idle()
        assert [round(time - times[0]) for time in times] == [0, 2, 4, 6]


async def test_a_rate_is_kept_by_messages_that_time_out_in_the_line():
    handled = []

    async def handle(order: Order) -> None:
        handled.append(order)

    app = an_app(handle, around.timeout(10), around.rate_limit(1), max_attempts=None)
    async with TestApp(app) as shop:
        for n in range(100):
            await shop.publish("orders", Order(n), wait=False)
        await asyncio.sleep(60)
        assert len(handled) >= 50


def test_a_rate_limit_outlives_its_event_loop():
    app = an_app(take, around.rate_limit(0.01))

    async def run() -> None:
        async with TestApp(app) as shop:
            for n in range(3):
                await shop.publish("orders", Order(n), wait=False)
            await shop.idle()

    for _ in range(2):
        run_virtual(run())


@pytest.mark.parametrize("rate", [0, -1, "1", True])
def test_a_rate_is_a_number_above_zero(rate):
    with pytest.raises(InvalidArgumentError, match="per_second"):
        around.rate_limit(rate)


# Circuit breaker.


def test_a_circuit_opens_after_failures_in_a_row_rests_and_lets_one_try():
    circuit = Circuit(failures=2, rest=10)
    circuit.failed(0)
    circuit.succeeded()
    circuit.failed(0)
    assert circuit.wait(0) == 0
    circuit.failed(1)
    assert (circuit.state, circuit.wait(3)) == (State.OPEN, 8)
    assert circuit.wait(11) == 0
    assert circuit.wait(11) == float("inf")
    circuit.failed(12)
    assert circuit.wait(12) == 10
    assert circuit.wait(22) == 0
    circuit.succeeded()
    assert circuit.state is State.CLOSED


def test_whoever_tried_and_was_cancelled_lets_the_next_one_try():
    circuit = Circuit(failures=1, rest=10)
    circuit.failed(0)
    assert circuit.wait(10) == 0
    circuit.gave_up(11)
    assert circuit.wait(11) == 0
    assert circuit.state is State.TRYING


async def test_while_a_circuit_is_open_nothing_is_called_and_no_attempt_is_used_up():
    down, calls = True, []

    async def handle(order: Order, message: Message) -> None:
        calls.append((round(now()), message.delivery_attempt))
        if down:
            raise ConnectionError("down")

    breaker = around.circuit_breaker(failures=3, rest=60)
    app = an_app(handle, breaker, concurrency=4, max_attempts=3)
    async with TestApp(app) as shop:
        for n in range(20):
            await shop.publish("orders", Order(n), wait=False)
        await asyncio.sleep(50)
        assert len(calls) == 3
        down = False
        await shop.idle()
        assert not shop.dead()
        times = [time for time, _ in calls]
        assert times[3] - times[2] == 60
        assert sum(attempt == 1 for _, attempt in calls) == 20


async def test_decisions_of_the_handler_do_not_open_a_circuit():
    breaker = around.circuit_breaker(failures=1, rest=600)
    async with TestApp(an_app(lambda: Reject("no"), breaker)) as shop:
        began = now()
        for _ in range(5):
            await shop.publish("orders", b"")
        assert len(shop.dead()) == 5
        assert now() - began < 60


@pytest.mark.parametrize("batches", [False, True])
async def test_a_body_that_cannot_be_decoded_closes_no_circuit(batches):
    times = []

    async def each(order: Order) -> None:
        times.append(now())
        raise ConnectionError

    async def every(orders: list[Order]) -> None:
        await each(orders[0])

    options = {"batch_size": 1, "batch_wait": 0.01} if batches else {}
    app = an_app(
        every if batches else each,
        around.circuit_breaker(failures=2, rest=60),
        concurrency=1,
        max_attempts=None,
        **options,
    )
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1), wait=False)
        for _ in range(4):
            await asyncio.sleep(59)
            await shop.publish("orders", b"not an order", wait=False)
        await asyncio.sleep(59)
        assert len(times) <= 2 + 5
        await app.stop(timeout=0)


def test_a_circuit_outlives_its_event_loop():
    async def fail(order: Order) -> None:
        calls.append(order)
        raise ConnectionError

    calls: list[Order] = []
    breaker = around.circuit_breaker(failures=1, rest=10)
    app = an_app(fail, breaker, concurrency=3, max_attempts=2)

    async def run() -> None:
        async with TestApp(app) as shop:
            for n in range(3):
                await shop.publish("orders", Order(n), wait=False)
            await shop.idle()
            assert [letter.reason for letter in shop.dead()] == ["gave-up"] * 3

    for _ in range(2):
        run_virtual(run())
    assert len(calls) == 12


async def test_closing_ends_those_who_wait_for_a_circuit():
    async def handle(order: Order) -> None:
        raise ConnectionError

    app = an_app(handle, around.circuit_breaker(failures=1, rest=600), max_attempts=None)
    async with TestApp(app) as shop:
        for n in range(3):
            await shop.publish("orders", Order(n), wait=False)
        await asyncio.sleep(30)
        report = await app.stop(timeout=5)
        assert len(report.unfinished) == 3


# Dead letters.


async def test_hopeless_errors_are_not_tried_again():
    def handle(order: Order) -> None:
        raise ValueError("no price") if order.id == 1 else KeyError("later")

    app = an_app(handle, around.dead_letters(ValueError), max_attempts=3)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        [letter] = shop.dead()
        assert (letter.reason, letter.attempt, letter.error) == (
            "ValueError",
            1,
            "ValueError: no price",
        )
        await shop.publish("orders", Order(2))
        assert shop.dead()[1].attempt == 3


async def test_hopeless_errors_may_be_given_a_reason():
    def handle(order: Order) -> None:
        raise ValueError

    app = an_app(handle, around.dead_letters((ValueError,), reason="no-price"))
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert [letter.reason for letter in shop.dead()] == ["no-price"]


# Deduplication.


async def test_what_was_handled_is_not_handled_again():
    async with TestApp(an_app(take, around.deduplicate(key=by_key))) as shop:
        for n, key in enumerate("aab"):
            await shop.publish("orders", Order(n), attributes={"key": key})
        assert shop.calls(take) == [Order(0), Order(2)]


def by_key(message: Message) -> str:
    return message.attributes["key"]


async def test_what_failed_is_handled_again():
    tries = []

    async def handle(order: Order) -> None:
        tries.append(order)
        if len(tries) == 1:
            raise ValueError

    async with TestApp(an_app(handle, around.deduplicate())) as shop:
        await shop.publish("orders", Order(1))
        assert len(tries) == 2 and not shop.dead()


async def test_a_replay_of_what_was_handled_is_a_duplicate():
    async with TestApp(an_app(take, around.deduplicate())) as shop:
        first = await shop.publish("orders", Order(1))
        await shop.publish("orders", Order(1), attributes={"replay-of": first})
        assert len(shop.calls(take)) == 1


async def test_a_copy_that_comes_while_another_is_handled_waits_for_it():
    running = 0

    async def slow(order: Order) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(12)
        running -= 1

    async with TestApp(an_app(slow, around.deduplicate(key=by_key))) as shop:
        for n in range(3):
            await shop.publish("orders", Order(n), attributes={"key": "a"}, wait=False)
        await shop.idle()
        assert shop.calls(slow) == [Order(0)]
        assert not shop.dead()


async def test_waiting_for_a_copy_uses_up_no_attempt():
    async def slow(order: Order) -> None:
        await asyncio.sleep(100)
        if order.id == 0:
            raise Reject("no")

    app = an_app(slow, around.deduplicate(key=by_key), max_attempts=2)
    async with TestApp(app) as shop:
        for n in range(3):
            await shop.publish("orders", Order(n), attributes={"key": "a"}, wait=False)
        await shop.idle()
        assert shop.calls(slow) == [Order(0), Order(1)]
        assert [letter.reason for letter in shop.dead()] == ["no"]


async def test_a_message_is_not_handled_twice_by_a_store_that_is_slow():
    class Slow(around.SeenHere):
        async def seen(self, key: str) -> bool:
            known = await super().seen(key)
            asked.append(key)
            await asyncio.sleep(len(asked))
            return known

    asked: list[str] = []
    async with TestApp(an_app(take, around.deduplicate(Slow(), key=by_key))) as shop:
        for n in range(3):
            await shop.publish("orders", Order(n), attributes={"key": "a"}, wait=False)
        await shop.idle()
        assert shop.calls(take) == [Order(0)]


async def test_batches_that_hold_each_others_keys_do_not_wait_for_ever():
    async def handle(orders: list[Order]) -> None:
        await asyncio.sleep(1)

    app = an_app(
        handle, around.deduplicate(key=by_key), concurrency=4, batch_size=2, batch_wait=0.1
    )
    async with TestApp(app) as shop:
        for n, key in enumerate("abbaabba"):
            await shop.publish("orders", Order(n), attributes={"key": key}, wait=False)
        await shop.idle(within=60)
        assert sum(len(orders) for orders in shop.calls(handle)) == 2


async def test_copies_in_one_batch_share_the_fate_of_the_first():
    async def handle(orders: list[Order]) -> None:
        if len(shop.calls(handle)) == 1:
            raise ValueError("not yet")

    async with TestApp(an_app(handle, around.deduplicate(key=by_key))) as shop:
        for n in range(2):
            await shop.publish("orders", Order(n), attributes={"key": "a"}, wait=False)
        await shop.idle()
        assert len(shop.calls(handle)) == 2 and not shop.dead()


async def test_a_batch_is_handled_without_its_duplicates():
    async def handle(orders: list[Order]) -> list[Retry | None]:
        return [Retry("busy") if order.id == 1 and not again else None for order in orders]

    again = False
    async with TestApp(an_app(handle, around.deduplicate(key=by_key))) as shop:
        await shop.publish("orders", Order(0), attributes={"key": "a"}, wait=False)
        await shop.publish("orders", Order(1), attributes={"key": "b"}, wait=False)
        await shop.publish("orders", Order(2), attributes={"key": "a"}, wait=False)
        await asyncio.sleep(0.5)
        again = True
        await shop.idle()
        assert shop.calls(handle) == [[Order(0), Order(1)], [Order(1)]]


async def test_keys_are_remembered_for_a_window_and_no_more_than_so_many():
    seen = around.SeenHere(window=60, most=2)
    for key in "abc":
        await seen.remember(key)
    assert [await seen.seen(key) for key in "abc"] == [False, True, True]
    await asyncio.sleep(61)
    assert not await seen.seen("c")
    await seen.remember("d")
    assert list(seen._keys) == ["d"]


# Logs.


async def test_calls_are_logged_with_ids_and_outcomes_and_without_bodies(caplog):
    caplog.set_level(logging.INFO, logger="penstock.app")

    def handle(order: Order) -> None:
        if order.id:
            raise {1: Retry("busy"), 2: Reject("no"), 3: ValueError("bad")}[order.id]

    app = an_app(handle, around.logs(), max_attempts=1)
    async with TestApp(app) as shop:
        ids = [await shop.publish("orders", Order(n, "secret")) for n in range(4)]
    records = [r for r in caplog.records if hasattr(r, "outcome")]
    assert [r.outcome for r in records] == ["done", "retry", "reject", "ValueError"]
    assert [r.message_ids for r in records] == [[one] for one in ids]
    assert "secret" not in caplog.text
