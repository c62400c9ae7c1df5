"""Handlers of every kind, and what their failures do."""

import asyncio
import contextvars
import logging

import pytest

from penstock import FlowControl, Message, Streaming
from penstock.subscribing.handlers import InContext
from penstock.testing import run_virtual, settled
from tests.support.scenes import now, orders, publish


async def test_a_handler_that_raises_nacks_and_emits_error_and_the_stream_goes_on():
    async with orders() as (topic, sub):
        received, errors = [], []

        def handle(message):
            received.append(message)
            if message.delivery_attempt == 1:
                raise ValueError("boom")
            message.ack()

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        ids = await publish(topic, 3)
        await settled()
        assert len(received) == 6
        assert [type(error) for error in errors] == [ValueError] * 3
        assert f"Handling message '{ids[0]}' of 'billing'" in errors[0].__notes__
        assert (await sub.describe()).backlog == 0


async def test_an_async_handler_that_raises_does_the_same():
    async with orders() as (topic, sub):
        errors = []

        async def handle(message):
            await asyncio.sleep(0.1)
            if message.delivery_attempt < 3:
                raise ValueError("boom")
            message.ack()

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 2)
        await asyncio.sleep(1)
        assert len(errors) == 4
        assert (await sub.describe()).backlog == 0


async def test_an_error_after_the_ack_does_not_bring_the_message_back():
    async with orders() as (topic, sub):
        received, errors = [], []

        def handle(message):
            received.append(message)
            message.ack()
            raise ValueError("too late")

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(100)
        assert len(received) == len(errors) == 1


async def test_a_handler_that_cancels_itself_is_a_handler_that_failed():
    async with orders() as (topic, sub):
        errors = []

        async def handle(message):
            if message.delivery_attempt == 1:
                raise asyncio.CancelledError
            message.ack()

        def plain(message):
            raise asyncio.CancelledError

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 2)
        await settled()
        assert len(errors) == 2
        sub.off("message", handle)
        sub.on("message", plain)
        await publish(topic, 1)
        await asyncio.sleep(0)
        await settled()
        assert len(errors) > 2
        assert sub.is_open


async def test_errors_without_a_listener_are_logged(caplog):
    async with orders() as (topic, sub):
        sub.on("message", lambda m: m.ack() if m.delivery_attempt > 1 else 1 / 0)
        sub.open()
        await topic.publish_message(b"secret")
        with caplog.at_level(logging.ERROR, "penstock"):
            await settled()
        assert "billing" in caplog.text
        assert "division" in caplog.text
        assert "secret" not in caplog.text


async def test_a_listener_of_error_that_raises_stops_nothing(caplog):
    async with orders() as (topic, sub):
        heard = []
        sub.on("error", lambda error: 1 / 0)
        sub.on("error", heard.append)

        @sub.on("error")
        async def later(error):
            await asyncio.sleep(1)
            raise RuntimeError("async listener")

        sub.on("message", lambda m: m.ack() if m.delivery_attempt > 1 else 1 / 0)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(2)
        assert len(heard) == 1
        assert caplog.text.count("a listener of 'error' failed") == 2
        assert (await sub.describe()).backlog == 0


async def test_every_message_has_a_context_of_its_own():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    async with orders() as (topic, sub):
        seen = []

        async def handle(message):
            seen.append(variable.get())
            variable.set(message.id)
            await asyncio.sleep(0)
            assert variable.get() == message.id
            message.ack()

        def plain(message):
            seen.append(variable.get())
            variable.set(message.id)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 5)
        await settled()
        sub.off("message", handle)
        sub.on("message", plain)
        await publish(topic, 5)
        await settled()
        assert seen == ["unset"] * 10


async def test_timeouts_and_task_groups_work_inside_handlers():
    async with orders() as (topic, sub):
        outcomes = []

        async def handle(message):
            try:
                async with asyncio.timeout(1):
                    async with asyncio.TaskGroup() as group:
                        group.create_task(asyncio.sleep(0.5))
                        group.create_task(asyncio.sleep(0.5 if message.data == b"0" else 5))
                outcomes.append("done")
            except TimeoutError:
                outcomes.append("timeout")
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 2)
        await asyncio.sleep(3)
        assert sorted(outcomes) == ["done", "timeout"]
        assert (await sub.describe()).backlog == 0


async def test_a_thousand_waiting_handlers_run_side_by_side_on_reused_tasks():
    async with orders() as (topic, sub):
        running = most = 0

        async def handle(message):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 3000)
        await asyncio.sleep(0.9)
        tasks = len(asyncio.all_tasks())
        await asyncio.sleep(3)
        assert most == 1000
        assert (await sub.describe()).backlog == 0
        assert len(asyncio.all_tasks()) <= tasks


async def test_handlers_that_never_wait_share_a_few_tasks():
    async with orders() as (topic, sub):
        tasks = set()

        async def handle(message):
            tasks.add(asyncio.current_task())
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 2000)
        await settled()
        assert (await sub.describe()).backlog == 0
        assert len(tasks) <= 3


async def test_several_listeners_each_get_every_message():
    async with orders() as (topic, sub):
        first, second = [], []

        async def slow(message):
            await asyncio.sleep(1)
            second.append(message)
            message.ack()

        sub.on("message", first.append)
        sub.on("message", slow)
        sub.open()
        await publish(topic, 3)
        await asyncio.sleep(2)
        assert len(first) == len(second) == 3


async def test_messages_wait_for_a_listener():
    async with orders() as (topic, sub):
        sub.open()
        await publish(topic, 3)
        await settled()
        received: list[Message] = []
        sub.on("message", received.append)
        await settled()
        assert len(received) == 3


async def test_async_with_acks_on_success_and_nacks_on_error():
    async with orders() as (topic, sub):
        attempts = []

        async def handle(message):
            async with message:
                attempts.append(message.delivery_attempt)
                if message.delivery_attempt == 1:
                    raise ValueError("once")

        sub.on("message", handle)
        sub.on("error", lambda error: None)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(100)
        assert attempts == [1, 2]


async def test_a_lower_limit_retires_workers_and_the_rest_go_on():
    async with orders(flow_control=FlowControl(max_messages=100)) as (topic, sub):
        done = []

        async def handle(message):
            await asyncio.sleep(0.1)
            done.append(message)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 100)
        await asyncio.sleep(5)
        sub.set_options(flow_control=FlowControl(max_messages=10))
        await publish(topic, 30)
        await asyncio.sleep(1)
        assert len(done) == 130


async def test_a_handler_whose_task_is_cancelled_fails_alone():
    async with orders(flow_control=FlowControl(max_messages=1)) as (topic, sub):
        tasks, seen, errors = [], [], []

        async def handle(message):
            seen.append((message.data, now()))
            message.ack()
            if message.data == b"0":
                tasks.append(asyncio.current_task())
                await asyncio.sleep(1000)

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 2)
        await settled()
        tasks[0].cancel()
        await settled()
        assert seen == [(b"0", 0), (b"1", 0)]
        assert len(errors) == 1


async def test_a_worker_cancelled_before_its_first_step_is_replaced():
    async with orders() as (topic, sub):
        seen = []

        async def handle(message):
            seen.append(message.data)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await settled()
        before = asyncio.all_tasks()
        await publish(topic, 1)
        started: set[asyncio.Task] = set()
        for _ in range(20):
            await asyncio.sleep(0)
            if started := asyncio.all_tasks() - before:
                break
        started.pop().cancel()
        await publish(topic, 3)
        await settled()
        assert sorted(seen) == [b"0", b"0", b"1", b"2"]


async def test_what_a_settlement_sets_free_does_not_see_the_settlers_context():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    flow = FlowControl(max_messages=1)
    async with orders(flow_control=flow) as (topic, sub):
        sub.set_options(streaming=Streaming(max_streams=1, high_water_mark=5))
        seen = []

        async def handle(message):
            seen.append(variable.get())
            variable.set("leaked")
            sub.pause()
            sub.resume()
            await asyncio.sleep(1)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 10)
        await asyncio.sleep(20)
        assert seen == ["unset"] * 10


async def test_listeners_may_come_and_go_while_messages_are_delivered():
    async with orders() as (topic, sub):
        seen = []

        def once(message):
            seen.append("once")
            sub.off("message", once)

        def always(message):
            seen.append("always")
            message.ack()

        sub.on("message", once)
        sub.on("message", always)
        sub.open()
        await publish(topic, 2)
        await settled()
        assert seen == ["once", "always", "always"]


async def test_one_of_several_listeners_that_raises_leaves_no_work_behind():
    async with orders(ack_deadline=1) as (topic, sub):
        errors = []

        async def first(message):
            await asyncio.sleep(0)

        def second(message):
            if message.delivery_attempt == 1:
                raise ValueError("boom")
            message.ack()

        sub.on("message", first)
        sub.on("message", second)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(0.5)
        assert errors
        await sub.close(timeout=0, nack_waiting=True)


async def test_a_listener_that_raises_cancelled_error_stops_nothing():
    async with orders() as (topic, sub):

        def cancelled(error):
            raise asyncio.CancelledError

        seen = []

        def handle(message):
            seen.append(message.delivery_attempt)
            if message.delivery_attempt < 9:
                raise ValueError("boom")
            message.ack()

        sub.on("error", cancelled)
        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await settled()
        await asyncio.sleep(1)
        assert seen == list(range(1, 10))


class Odd(BaseException):
    """Neither an Exception nor a reason for the process to end."""


class RefusesNotesError(Exception):
    @property
    def __notes__(self):
        raise RuntimeError("not to be looked at")

    def add_note(self, note):
        raise TypeError("no notes, please")


FAILURES = [Odd("odd"), GeneratorExit(), asyncio.CancelledError(), RefusesNotesError("no")]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("kind", ["plain", "async", "after a wait", "one of two", "odd awaitable"])
async def test_a_handler_may_raise_anything_and_stops_nothing(kind, failure):
    async with orders() as (topic, sub):
        attempts, errors = [], []

        def plain(message):
            attempts.append((message.data, message.delivery_attempt))
            if message.data == b"1" and message.delivery_attempt == 1:
                raise failure
            message.ack()

        async def asynchronous(message):
            if kind == "after a wait":
                await asyncio.sleep(0.1)
            plain(message)

        class Awaitable:
            def __init__(self, message):
                self.message = message

            def __await__(self):
                plain(self.message)
                return iter(())

        handlers = {"plain": plain, "odd awaitable": Awaitable}
        if kind == "one of two":
            sub.on("message", lambda message: None)
        sub.on("message", handlers.get(kind, asynchronous))
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 3)
        await asyncio.sleep(1)
        assert len(errors) == 1
        assert type(errors[0]) is type(failure)
        assert sorted(attempts) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]
        assert sub.is_open
        assert (await sub.describe()).backlog == 0
        assert sub.stream.statistics().messages == 0


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("event", ["error", "close"])
async def test_a_listener_may_raise_anything_and_stops_nothing(event, kind, caplog):
    async with orders() as (topic, sub):

        def plain(*args):
            raise Odd("odd")

        async def asynchronous(*args):
            raise Odd("odd")

        heard = []
        sub.on(event, plain if kind == "plain" else asynchronous)
        sub.on(event, lambda *args: heard.append(args))
        sub.on("message", lambda m: m.ack() if m.delivery_attempt > 1 else 1 / 0)
        sub.open()
        await publish(topic, 1)
        await settled()
        assert (await sub.describe()).backlog == 0
        assert (await sub.close()).clean
        assert len(heard) == 1
        assert f"a listener of '{event}' failed" in caplog.text


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_kept_from_it(failure, kind):
    async def main():
        async with orders() as (topic, sub):

            def plain(message):
                raise failure

            async def asynchronous(message):
                raise failure

            sub.on("message", plain if kind == "plain" else asynchronous)
            sub.open()
            await publish(topic, 1)
            await asyncio.sleep(10)

    with pytest.raises(failure):
        run_virtual(main())


async def test_a_handler_is_closed_when_its_task_is_thrown_away():
    ended = []

    async def handle():
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    steps = InContext(handle(), contextvars.copy_context()).__await__()
    next(steps)
    steps.close()
    assert ended == [True]
