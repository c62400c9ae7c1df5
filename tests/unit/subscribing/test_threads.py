"""Blocking handlers in threads: side by side, settling from there, with their leases kept."""

import asyncio
import contextvars
import threading
import time

import pytest

from penstock import AckResponse, FlowControl, Message, PubSub
from penstock.errors import ClosedError, InvalidArgumentError
from penstock.testing import eventually, run_real, settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import orders, publish

real_time = pytest.mark.real_time


@real_time
async def test_as_many_blocking_handlers_run_side_by_side_as_there_are_threads():
    together = threading.Barrier(4)
    running, most, done = 0, 0, []
    lock = threading.Lock()
    async with orders(threads=4) as (topic, sub):
        home = threading.get_ident()
        places = set()

        def handle(message):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            together.wait(timeout=30)
            places.add(threading.get_ident())
            with lock:
                running -= 1
            message.ack()
            done.append(message)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 12)
        await eventually(lambda: len(done) == 12, within=30)
        assert most == 4
        assert home not in places
        assert (await sub.describe()).backlog == 0


@real_time
async def test_threads_take_nothing_new_during_a_pause():
    async with orders(threads=2) as (topic, sub):
        paused, done = threading.Event(), []

        def handle(message):
            paused.wait(timeout=30)
            done.append(message)
            message.ack()

        sub.on("message", handle)
        await publish(topic, 20)
        sub.open()
        await eventually(lambda: sub.stream.statistics().messages == 20)
        sub.pause()
        paused.set()
        await eventually(lambda: len(done) == 2)
        await asyncio.sleep(0.2)
        assert len(done) == 2
        sub.resume()
        await eventually(lambda: len(done) == 20)


@real_time
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "modify_ack_deadline"])
async def test_every_verb_can_be_called_from_a_thread(verb):
    async with orders(threads=2) as (topic, sub):
        settled_in_time, attempts = [], []

        def handle(message):
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt > 1:
                message.ack()
                return
            arguments = (300,) if verb == "modify_ack_deadline" else ()
            getattr(message, verb)(*arguments)
            # The verb has been carried out when it returns.
            settled_in_time.append(sub.stream.holds(message) == (verb == "modify_ack_deadline"))
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 3)
        await eventually(lambda: settled_in_time == [True] * 3, within=30)
        await eventually(lambda: len(attempts) == (6 if verb == "nack" else 3), within=30)


@real_time
async def test_the_first_settlement_wins_between_threads_and_the_loop():
    async with orders(threads=2) as (topic, sub):
        handed: list[Message] = []
        go = threading.Event()

        def handle(message):
            handed.append(message)
            go.wait(30)
            message.nack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await eventually(lambda: handed)
        handed[0].ack()
        go.set()
        await eventually(lambda: sub.stream.deliveries.unfinished(()) == (0, 0))
        await asyncio.sleep(0.05)
        assert (await sub.describe()).backlog == 0
        assert len(handed) == 1


@real_time
async def test_of_two_threads_that_settle_at_once_one_is_heard():
    broker = FlakyBroker()
    async with subscription_on(broker, threads=1) as (topic, sub):
        loop, done = asyncio.get_running_loop(), threading.Event()

        def handle(message):
            loop.call_soon_threadsafe(time.sleep, 0.3)  # Until both have asked.
            others = [threading.Thread(target=verb) for verb in (message.ack, message.nack)]
            for other in others:
                other.start()
            for other in others:
                other.join(30)
            done.set()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await eventually(done.is_set)
        await sub.close()
        assert len([one for batch in broker.settled for one in batch]) == 1


@real_time
async def test_a_thread_can_wait_for_a_response():
    async with orders(threads=1, enable_exactly_once_delivery=True) as (topic, sub):
        loop, responses = asyncio.get_running_loop(), []

        def handle(message):
            asked = asyncio.run_coroutine_threadsafe(message.ack_with_response(), loop)
            responses.append(asked.result(30))

        sub.on("message", handle)
        sub.open()
        await publish(topic, 2)
        await eventually(lambda: responses == [AckResponse.SUCCESS] * 2, within=30)


@real_time
async def test_a_handler_that_raises_in_a_thread_nacks_and_emits_error():
    async with orders(threads=2) as (topic, sub):
        errors, attempts = [], []

        def handle(message):
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                raise ValueError("boom")
            message.ack()

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 2)
        await eventually(lambda: len(attempts) == 4, within=30)
        assert [type(error) for error in errors] == [ValueError] * 2
        assert "Handling message" in errors[0].__notes__[0]


@real_time
async def test_async_handlers_stay_on_the_loop():
    async with orders(threads=2) as (topic, sub):
        places = []

        async def handle(message):
            places.append(threading.get_ident())
            message.ack()

        class Callable:
            async def __call__(self, message):
                places.append(threading.get_ident())

        sub.on("message", Callable())
        sub.on("message", handle)
        sub.open()
        await publish(topic, 3)
        await eventually(lambda: len(places) == 6)
        assert set(places) == {threading.get_ident()}


@real_time
async def test_a_plain_handler_may_return_what_is_to_be_awaited():
    async with orders(threads=2) as (topic, sub):
        places = []

        async def finish(message):
            places.append(threading.get_ident())
            message.ack()

        sub.on("message", lambda message: finish(message))
        sub.open()
        await publish(topic, 1)
        await eventually(lambda: places == [threading.get_ident()])


@real_time
async def test_each_message_has_a_context_of_its_own_in_threads_too():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    async with orders(threads=2) as (topic, sub):
        seen = []

        def handle(message):
            seen.append(variable.get())
            variable.set(message.id)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 20)
        await eventually(lambda: len(seen) == 20, within=30)
        assert set(seen) == {"unset"}


async def test_leases_are_kept_while_threads_work():
    """In virtual time: an hour passes while the thread is stuck."""
    go, done = threading.Event(), threading.Event()
    async with orders(threads=1, ack_deadline=10) as (topic, sub):
        attempts = []

        def handle(message):
            attempts.append(message.delivery_attempt)
            go.wait(30)
            message.ack()
            done.set()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 2)
        while not attempts:
            await asyncio.sleep(0)
        await asyncio.sleep(3000)
        assert attempts == [1]
        assert (await sub.describe()).leased == 2
        go.set()
        while not (done.is_set() and len(attempts) == 2):
            await asyncio.sleep(0)
        await sub.close()
        assert attempts == [1, 1]
        assert (await sub.describe()).backlog == 0


@real_time
async def test_a_thread_that_will_not_end_is_left_behind_and_told_so():
    go, refused = threading.Event(), []
    async with orders(threads=2, flow_control=FlowControl(max_messages=10)) as (topic, sub):
        started = []

        def handle(message):
            started.append(message.id)
            go.wait(30)
            try:
                message.ack()
            except ClosedError as error:
                refused.append(error)

        sub.on("message", handle)
        sub.open()
        ids = await publish(topic, 5)
        await eventually(lambda: len(started) == 2)
        report = await sub.close(timeout=0)
        assert sorted(report.cancelled) == sorted(started)
        assert sorted(report.given_back) == sorted(set(ids) - set(started))
        status = await sub.describe()
        assert (status.backlog, status.leased) == (5, 0)
        go.set()
        await eventually(lambda: len(refused) == 2)
        assert "is closed" in str(refused[0])


def test_a_thread_that_outlives_the_loop_is_told_so():
    go, outcome = threading.Event(), []

    async def main():
        async with PubSub() as pubsub:
            topic = await pubsub.topic("orders").create()
            sub = await topic.subscription("billing", threads=1).create()
            started = threading.Event()

            def handle(message):
                started.set()
                go.wait(30)
                try:
                    message.ack()
                except ClosedError as error:
                    outcome.append(str(error))

            sub.on("message", handle)
            sub.open()
            await topic.publish_message(b"x")
            await asyncio.to_thread(started.wait, 30)
            await sub.close(timeout=0)

    run_real(main())
    go.set()
    while not outcome:
        time.sleep(0.001)
    assert "event loop" in outcome[0]


@real_time
async def test_threads_can_be_switched_on_and_off_while_it_runs():
    async with orders() as (topic, sub):
        home, places = threading.get_ident(), []

        def handle(message):
            places.append(threading.get_ident() == home)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 2)
        await eventually(lambda: len(places) == 2)
        sub.set_options(threads=3)
        await publish(topic, 2)
        await eventually(lambda: len(places) == 4)
        sub.set_options(threads=0)
        await publish(topic, 2)
        await eventually(lambda: len(places) == 6)
        assert places == [True, True, False, False, True, True]


@pytest.mark.parametrize("threads", [-1, "8", True, 2.5, None])
async def test_a_count_of_threads_that_cannot_be_is_refused(threads):
    async with orders() as (topic, _):
        if threads is None:
            topic.subscription("new-one", threads=threads)
            return
        with pytest.raises(InvalidArgumentError, match="threads"):
            topic.subscription("new-one", threads=threads)


@real_time
@pytest.mark.parametrize("raised", [GeneratorExit, asyncio.CancelledError, BaseException])
async def test_whatever_a_handler_raises_in_a_thread_its_message_comes_again(raised):
    async with orders(threads=2) as (topic, sub):
        attempts, errors = [], []

        def handle(message):
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                raise raised
            message.ack()

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 1)
        await eventually(lambda: len(attempts) == 2, within=30)
        assert [type(error) for error in errors] == [raised]
        report = await sub.close()
        assert report.clean


@real_time
async def test_what_waits_while_the_number_of_threads_changes_is_run_by_the_new_ones():
    begun, done = threading.Event(), []
    go_on = threading.Event()
    async with orders(threads=1) as (topic, sub):

        def handle(message):
            begun.set()
            go_on.wait(30)
            done.append(message.delivery_attempt)
            message.ack()

        errors = []
        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 5)
        await eventually(begun.is_set, within=30)
        sub.set_options(threads=2)
        go_on.set()
        await eventually(lambda: len(done) == 5, within=30)
        assert done == [1] * 5
        assert errors == []


async def test_a_pause_holds_what_waits_for_a_thread_when_there_are_none_any_more():
    """It waits as before, and has its whole deadline when it is handed over: what is forgotten
    then comes again."""
    go_on, begun, clock = threading.Event(), [], asyncio.get_running_loop()
    async with orders(threads=1, ack_deadline=10) as (topic, sub):

        def handle(message):
            begun.append((round(clock.time()), message.delivery_attempt))
            if len(begun) == 1:
                go_on.wait(30)
                message.ack()

        sub.on("message", handle)
        await publish(topic, 3)
        sub.open()
        await _without_time_passing(lambda: begun)
        sub.pause()
        go_on.set()
        await _without_time_passing(lambda: sub.stream.statistics().messages == 2)
        sub.set_options(threads=0)
        await asyncio.sleep(100)
        assert begun == [(0, 1)]
        sub.resume()
        await asyncio.sleep(15)
        assert begun == [(0, 1), (100, 1), (100, 1), (110, 2), (110, 2)]


async def _without_time_passing(condition):
    """Wait for a thread to get there; virtual time stands still."""
    for _ in range(10_000):
        await settled()
        if condition():
            return
        time.sleep(0.001)  # noqa: ASYNC251
    raise AssertionError("No thread got there")
