"""Late answers, callers' functions that raise, runners that end: every flight ends all the same."""

import asyncio
import gc
import logging
from contextlib import asynccontextmanager

import pytest

from penstock import FlightState, ManagedPublisher, PublisherListener, PublishRetry, PubSub
from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.message import PublishFault
from penstock.testing import VirtualClock, settled
from tests.support.fakes import Fault, SlowBroker
from tests.support.scenes import now

ANYTHING = [ValueError, asyncio.CancelledError, GeneratorExit, BaseException]
STEADY = {"backoff": 60, "maximum_backoff": 60}


@asynccontextmanager
async def client(broker):
    async with PubSub(broker=broker, clock=VirtualClock()) as pubsub:
        await pubsub.topic("orders").create(message_retention=10**6)
        yield pubsub


@asynccontextmanager
async def publishing(broker=None, **options):
    async with client(broker or SlowBroker()) as pubsub:
        async with ManagedPublisher(pubsub, **options) as publisher:
            yield publisher


class Scripted(SlowBroker):
    """Each call does the next thing: waits so long, then answers with a fault or stores."""

    def __init__(self, *script):
        super().__init__()
        self.script = list(script)

    async def publish(self, topic, drafts):
        delay, error = self.script.pop(0) if self.script else (0, None)
        await asyncio.sleep(delay)
        if error is not None:
            return [PublishFault(error)] * len(drafts)
        return await super().publish(topic, drafts)


async def test_a_receipt_that_comes_while_a_retry_waits_ends_the_flight_and_nothing_else():
    retry = PublishRetry(attempts=2, **STEADY)
    async with publishing(Scripted((6, None)), retry=retry, wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders", b"x")
        await flight.ack
        assert flight.state is FlightState.ACKED
        await asyncio.sleep(120)
        later = await publisher.publish_async("orders", b"y")
        await later.ack
        assert await publisher.drain() == ()


async def test_a_late_failure_of_an_attempt_that_was_given_up_decides_nothing():
    broker = Scripted((6, PermissionDeniedError("late")), (20, None))
    retry = PublishRetry(attempts=2, backoff=0.001, maximum_backoff=0.001)
    async with publishing(broker, retry=retry, wait_timeout=5.5) as publisher:
        broker.script[1] = (2, None)
        flight = await publisher.publish_async("orders", b"x")
        await flight.ack
        assert flight.state is FlightState.ACKED
        assert flight.attempts == 2


async def test_an_attempt_that_was_answered_in_time_is_not_in_doubt_later():
    """Every attempt was refused at once, though the last long after the first would be late."""
    refused = [(0, FailedPreconditionError(f"{n}")) for n in range(4)]
    retry = PublishRetry(
        attempts=4, backoff=3, maximum_backoff=3, retry_on=lambda error: True, deadline=60
    )
    async with publishing(Scripted(*refused), retry=retry, wait_timeout=2) as publisher:
        flight = await publisher.publish_async("orders", b"x")
        with pytest.raises(FailedPreconditionError):
            await flight.ack
        assert flight.attempts == 4
        assert flight.state is FlightState.REJECTED


async def test_a_publisher_that_is_stopped_pauses_no_key():
    async with publishing(SlowBroker(delay=100), pause_failed_keys=True) as publisher:
        flight = await publisher.publish_async("orders", b"x", ordering_key="ann")
        await publisher.stop()
        assert flight.state is FlightState.UNKNOWN
        assert publisher.paused_keys == frozenset()


async def test_a_late_failure_while_a_retry_waits_neither_moves_nor_ends_it():
    broker = Scripted((6, PermissionDeniedError("late")))
    retry = PublishRetry(attempts=2, backoff=60, maximum_backoff=60)
    async with publishing(broker, retry=retry, wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders", b"x")
        await flight.ack
        assert flight.state is FlightState.ACKED


@pytest.mark.parametrize("raised", ANYTHING)
async def test_whatever_retry_on_raises_the_flight_ends_and_the_flow_goes_on(raised, caplog):
    def retry_on(error):
        raise raised("from the caller")

    broker = Scripted((0, UnavailableError("once")))
    retry = PublishRetry(attempts=3, retry_on=retry_on)
    async with publishing(broker, retry=retry) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError):
            await flight.ack
        await (await publisher.publish_async("orders")).ack
    assert "retry_on" in caplog.text


@pytest.mark.parametrize("raised", ANYTHING)
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_listener_raises_flights_end_and_later_events_are_told(
    raised, is_async, caplog
):
    heard = []

    class Angry(PublisherListener):
        if is_async:

            async def acked(self, flight):
                heard.append(flight.id)
                raise raised("from the caller")

        else:

            def acked(self, flight):
                heard.append(flight.id)
                raise raised("from the caller")

    async with publishing(listener=Angry(), id_prefix="p") as publisher:
        for _ in range(3):
            await (await publisher.publish_async("orders")).ack
    assert heard == ["p-1", "p-2", "p-3"]
    assert (
        caplog.text.count("acked of a publisher's listener failed")
        + caplog.text.count("A publisher's listener failed")
        == 3
    )


@pytest.mark.parametrize("raised", ANYTHING)
async def test_whatever_a_broker_raises_the_flight_ends_and_the_flow_goes_on(raised):
    class Broken(SlowBroker):
        async def publish(self, topic, drafts):
            if drafts[0].data == b"raise":
                raise raised("bug")
            return await super().publish(topic, drafts)

    async with publishing(Broken()) as publisher:
        flight = await publisher.publish_async("orders", b"raise")
        with pytest.raises(InternalError, match="orders"):
            await flight.ack
        assert flight.state is FlightState.UNKNOWN
        await (await publisher.publish_async("orders", b"fine")).ack


@pytest.mark.parametrize("runner", ["_end_flights", "_send_batches"])
async def test_a_runner_that_fails_ends_all_flights_with_its_error(runner, monkeypatch, caplog):
    async with client(SlowBroker(delay=1)) as pubsub:
        publisher = ManagedPublisher(pubsub, wait_timeout=600)

        async def fail():
            await asyncio.sleep(0.5)
            raise RuntimeError("a mistake")

        monkeypatch.setattr(publisher, runner, fail)
        publisher.start()
        tasks = [asyncio.ensure_future(publisher.publish_async("orders")) for _ in range(70)]
        for task in tasks[:50]:
            flight = await task
            with pytest.raises(InternalError, match="a mistake"):
                await flight.ack
            assert flight.state is FlightState.UNKNOWN
        for task in tasks[50:]:
            with pytest.raises(ClosedError):
                await task
        with pytest.raises(ClosedError, match="a mistake"):
            await publisher.publish_async("orders")
        assert publisher.in_flight == 0
        assert len(await publisher.drain()) == 50
    assert "_runner ended" in caplog.text


async def test_a_cancelled_runner_leaves_no_flight_without_an_end():
    async with client(SlowBroker(delay=1000)) as pubsub:
        publisher = ManagedPublisher(pubsub, wait_timeout=600)
        runners = [
            asyncio.ensure_future(publisher.publish_runner()),
            asyncio.ensure_future(publisher.flights_runner()),
        ]
        flight = await publisher.publish_async("orders")
        await settled()
        runners[1].cancel()
        with pytest.raises(InternalError, match="flights_runner"):
            await flight.ack
        await publisher.drain()
        await asyncio.wait(runners)


async def test_published_is_told_and_timed_when_the_message_leaves():
    told = []

    class Times(PublisherListener):
        def published(self, flight):
            told.append((now(), flight.publish_time))

    class SlowToConnect(PubSub):
        async def broker(self):
            await asyncio.sleep(3)
            return await super().broker()

    broker = SlowBroker()
    async with client(broker):
        async with SlowToConnect(broker=broker, clock=VirtualClock()) as pubsub:
            async with ManagedPublisher(pubsub, listener=Times()) as publisher:
                accepted = now()
                flight = await publisher.publish_async("orders")
                assert flight.publish_time is None
                await flight.ack
        [(at, publish_time)] = told
        assert at == pytest.approx(accepted + 3)
        assert publish_time == flight.publish_time is not None


class Distant(SlowBroker):
    """Each call waits so long for a connection, then sends and is answered, or finds none."""

    def __init__(self, *script):
        super().__init__()
        self.script = list(script)

    async def publish_telling(self, on_sent, topic, drafts):
        away, answer = self.script.pop(0) if self.script else (0, None)
        await asyncio.sleep(away)
        if answer == "no connection":
            raise UnavailableError(answer)
        on_sent(range(len(drafts)))
        if answer == "broken off":
            raise UnavailableError(answer)
        if answer == "lost":
            return [PublishFault(UnavailableError(answer))] * len(drafts)
        return await self.publish(topic, drafts)


class Heard(PublisherListener):
    def __init__(self):
        self.told = []

    def published(self, flight):
        self.told.append(("published", now(), flight.attempts))

    def timeout(self, flight):
        self.told.append(("timeout", now(), flight.attempts))


async def test_published_is_told_when_the_broker_sends_it_however_long_it_was_handed_over_before():
    heard = Heard()
    async with publishing(Distant((3, None)), listener=heard) as publisher:
        flight = await publisher.publish_async("orders")
        await asyncio.sleep(2)
        assert flight.publish_time is None
        await flight.ack
        assert flight.publish_time is not None
    assert heard.told == [("published", 3, 1)]


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_flight_that_was_never_sent_is_not_published_and_not_stored(attempts):
    heard = Heard()
    broker = Distant(*[(1, "no connection")] * attempts)
    retry = PublishRetry(attempts=attempts)
    async with publishing(broker, listener=heard, retry=retry) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError, match="no connection"):
            await flight.ack
        assert flight.attempts == attempts
        assert flight.state is FlightState.REJECTED
        assert flight.publish_time is None
    assert not heard.told


async def test_a_flight_that_was_sent_once_and_lost_is_unknown_though_it_is_not_sent_again():
    heard = Heard()
    retry = PublishRetry(attempts=2, **STEADY)
    broker = Distant((0, "lost"), (0, "no connection"))
    async with publishing(broker, listener=heard, retry=retry) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError, match="no connection"):
            await flight.ack
        assert flight.state is FlightState.UNKNOWN
        assert flight.publish_time is not None
    assert heard.told == [("published", 0, 1)]


async def test_a_flight_of_a_call_that_broke_off_after_it_was_sent_is_unknown():
    async with publishing(Distant((0, "broken off"))) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError, match="broken off"):
            await flight.ack
        assert flight.state is FlightState.UNKNOWN


async def test_a_flight_that_is_sent_after_its_end_is_in_doubt_and_nobody_is_told():
    heard = Heard()
    async with publishing(Distant((8, None)), listener=heard, wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(DeadlineExceededError, match="Not sent to topic 'orders' within 5 s"):
            await flight.ack
        assert flight.state is FlightState.TIMED_OUT
        await asyncio.sleep(5)
        assert flight.publish_time is not None
    assert heard.told == [("timeout", 5, 1)]


async def test_an_attempt_that_may_still_be_sent_leaves_the_flight_in_doubt():
    """The second found no connection; the first had not yet given up to wait for one."""
    retry = PublishRetry(attempts=2, backoff=0.001, maximum_backoff=0.001)
    broker = Distant((8, None), (0, "no connection"))
    async with publishing(broker, retry=retry, wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError):
            await flight.ack
        assert flight.state is FlightState.UNKNOWN


async def test_a_flight_whose_first_attempts_found_no_broker_is_tried_until_its_deadline():
    told = []

    class Times(PublisherListener):
        def published(self, flight):
            told.append((flight.attempts, flight.publish_time))

    class DownAtFirst(PubSub):
        failures = 0

        async def broker(self):
            self.failures -= 1
            if self.failures >= 0:
                raise UnavailableError("nobody is there")
            return await super().broker()

    # A loop that has run for long: its time is far beyond any deadline.
    await asyncio.sleep(10**6)
    retry = PublishRetry(attempts=1000, deadline=1000, **STEADY)
    broker = SlowBroker()
    async with client(broker):
        async with DownAtFirst(broker=broker, clock=VirtualClock()) as pubsub:
            async with ManagedPublisher(pubsub, retry=retry, listener=Times()) as publisher:
                pubsub.failures = 3
                flight = await publisher.publish_async("orders")
                await flight.ack
                assert flight.attempts == 4
                assert told == [(flight.attempts, flight.publish_time)]
                assert flight.publish_time is not None
                pubsub.failures = 10**6
                began = now()
                with pytest.raises(UnavailableError):
                    await (await publisher.publish_async("orders")).ack
                assert 900 < now() - began < 1000


def stand_still(seconds):
    asyncio.get_running_loop()._jumping.now += seconds


@pytest.mark.parametrize("late", [0.02, 1, 100])
async def test_acks_that_came_while_the_process_stood_still_count(late):
    async with publishing(SlowBroker(delay=1), wait_timeout=5) as publisher:
        flights = [await publisher.publish_async("orders") for _ in range(10)]
        await settled()
        stand_still(5 + late)
        await publisher.drain()
        assert {flight.state for flight in flights} == {FlightState.ACKED}


async def test_who_stands_still_again_and_again_does_not_wait_for_ever():
    async with publishing(SlowBroker(delay=1000), wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders")
        await settled()
        stand_still(6)
        await asyncio.sleep(0.1)
        assert flight.state is FlightState.IN_FLIGHT
        stand_still(6)
        await asyncio.sleep(0.1)
        assert flight.state is FlightState.TIMED_OUT


async def test_an_attempt_that_is_answered_in_the_time_it_was_given_more_is_not_in_doubt():
    refused = (5.7, FailedPreconditionError("no"))
    retry = PublishRetry(attempts=2, retry_on=lambda error: True, **STEADY)
    async with publishing(Scripted(refused), retry=retry, wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders")
        await settled()
        stand_still(5.5)
        await asyncio.sleep(2)
        assert not flight._in_doubt
        await flight.ack


@pytest.mark.parametrize("key", [None, "ann"])
async def test_a_flight_that_ends_leaves_its_bytes_to_others(key):
    options = {"max_bytes": 1000, "max_in_flight": 50, "refill_allowed_at": 49}
    async with publishing(**options) as publisher, asyncio.timeout(3):
        for _ in range(30):
            await (await publisher.publish_async("orders", bytes(100), ordering_key=key)).ack
        flights = [await publisher.publish_async("orders", bytes(100)) for _ in range(30)]
        for flight in flights:
            await flight.ack
    assert (publisher._admission.window.messages, publisher._admission.window.bytes) == (0, 0)


async def test_a_flight_of_a_publisher_that_never_started_ends_by_its_deadline():
    async with client(SlowBroker()) as pubsub:
        publisher = ManagedPublisher(pubsub, wait_timeout=7)
        flight = await publisher.publish_async("orders")
        with pytest.raises(DeadlineExceededError, match="start"):
            await flight.ack
        assert now() == pytest.approx(7)
        assert flight.state is FlightState.TIMED_OUT
        assert publisher.in_flight == 0


async def test_who_waits_behind_a_flight_that_was_never_sent_is_let_in_when_that_is_given_up():
    async with client(SlowBroker()) as pubsub:
        publisher = ManagedPublisher(pubsub, max_in_flight=1, wait_timeout=7)
        await publisher.publish_async("orders")
        flight = await publisher.publish_async("orders")
        assert now() == pytest.approx(7)
        with pytest.raises(DeadlineExceededError, match="start"):
            await flight.ack
        assert now() == pytest.approx(14)


async def test_callers_that_were_started_before_a_drain_are_published_by_it():
    async with publishing() as publisher:
        callers = [asyncio.ensure_future(publisher.publish_async("orders")) for _ in range(20)]
        assert await publisher.drain() == ()
        flights = await asyncio.gather(*callers)
        assert {flight.state for flight in flights} == {FlightState.ACKED}


async def test_who_is_cancelled_while_leaving_leaves_nothing_running():
    async with client(SlowBroker(delay=1000)) as pubsub:
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                async with ManagedPublisher(pubsub, wait_timeout=3600) as publisher:
                    flight = await publisher.publish_async("orders")
        assert asyncio.all_tasks() == before
        assert flight.state is FlightState.UNKNOWN
        with pytest.raises(ClosedError):
            await publisher.publish_async("orders")


async def test_one_runner_alone_still_ends_its_flights():
    async with client(SlowBroker(delay=1000)) as pubsub:
        publisher = ManagedPublisher(pubsub, wait_timeout=7)
        runner = asyncio.ensure_future(publisher.publish_runner())
        flight = await publisher.publish_async("orders")
        with pytest.raises(DeadlineExceededError):
            await flight.ack
        await publisher.stop()
        await asyncio.wait({runner})


async def test_a_refusal_that_says_nothing_was_stored_is_rejected_though_it_may_pass_later():
    broker = SlowBroker(faults=lambda d, a: Fault(ResourceExhaustedError("full")))
    async with publishing(broker, retry=PublishRetry(attempts=2)) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(ResourceExhaustedError):
            await flight.ack
        assert flight.state is FlightState.REJECTED


async def test_a_refusal_after_an_attempt_that_was_never_answered_is_unknown():
    broker = Scripted((6, None), (0, PermissionDeniedError("no")))
    retry = PublishRetry(
        attempts=2,
        backoff=0.001,
        maximum_backoff=0.001,
        retry_on=lambda error: isinstance(error, DeadlineExceededError),
    )
    async with publishing(broker, retry=retry, wait_timeout=5) as publisher:
        flight = await publisher.publish_async("orders")
        with pytest.raises(PermissionDeniedError):
            await flight.ack
        assert flight.state is FlightState.UNKNOWN


@pytest.mark.parametrize("prefix", [5, "a\r\nNats-Rollup: all", "x" * 2000, b"bytes"])
async def test_an_id_prefix_is_checked_like_every_other_text(prefix):
    async with PubSub() as pubsub:
        with pytest.raises(InvalidArgumentError, match="id_prefix"):
            ManagedPublisher(pubsub, id_prefix=prefix)


async def test_a_key_that_failed_for_good_is_paused_until_it_is_resumed():
    broker = SlowBroker(
        delay=1, faults=lambda d, a: Fault(PermissionDeniedError("no")) if d.data == b"1" else None
    )
    async with publishing(broker, pause_failed_keys=True) as publisher:
        tasks = [
            asyncio.ensure_future(publisher.publish_async("orders", b"%d" % n, ordering_key="k"))
            for n in range(4)
        ]
        other = await publisher.publish_async("orders", b"1 of another", ordering_key="other")
        flights = await asyncio.gather(*tasks)
        await flights[0].ack
        with pytest.raises(PermissionDeniedError):
            await flights[1].ack
        for flight in flights[2:]:
            with pytest.raises(FailedPreconditionError, match=r"resume_key\('orders', 'k'\)"):
                await flight.ack
            assert flight.state is FlightState.REJECTED
        await other.ack
        assert publisher.paused_keys == {("orders", "k")}
        refused = await publisher.publish_async("orders", b"5", ordering_key="k")
        assert refused.state is FlightState.REJECTED
        publisher.resume_key("orders", "k")
        await (await publisher.publish_async("orders", b"6", ordering_key="k")).ack
        assert publisher.paused_keys == frozenset()
    log = [r.data async for b in broker.log.read("orders", 1, 10**9) for r in b]
    assert [data for data in log if b"another" not in data] == [b"0", b"6"]


async def test_a_key_that_is_paused_in_one_topic_is_not_in_another():
    broker = SlowBroker(faults=lambda d, a: Fault(PermissionDeniedError("no")))
    async with client(broker) as pubsub, ManagedPublisher(pubsub, pause_failed_keys=True) as held:
        await pubsub.topic("invoices").create()
        failed = await held.publish_async("orders", b"x", ordering_key="ann")
        with pytest.raises(PermissionDeniedError):
            await failed.ack
        broker.faults = lambda d, a: None
        await (await held.publish_async("invoices", b"x", ordering_key="ann")).ack
        assert held.paused_keys == {("orders", "ann")}


async def test_a_listener_that_takes_too_long_is_left_without_a_word_of_what_it_missed():
    class Slow(PublisherListener):
        async def acked(self, flight):
            await asyncio.sleep(100)

    async with publishing(listener=Slow()) as publisher:
        for flight in [await publisher.publish_async("orders", b"x") for _ in range(3)]:
            await flight.ack
        began = now()
        await publisher.drain()
        assert now() - began == 5
    gc.collect()  # A coroutine that nobody awaited would say so.


async def test_thousands_behind_a_paused_key_end_without_a_deep_stack():
    broker = SlowBroker(delay=1, faults=lambda d, a: Fault(PermissionDeniedError("no")))
    options = {"pause_failed_keys": True, "max_in_flight": 5000, "listener": PublisherListener()}
    async with publishing(broker, **options) as publisher:
        tasks = [
            asyncio.ensure_future(publisher.publish_async("orders", ordering_key="k"))
            for _ in range(4000)
        ]
        flights = await asyncio.gather(*tasks)
        await publisher.drain()
        assert all(flight.state is FlightState.REJECTED for flight in flights)


async def test_without_the_option_a_key_goes_on_after_a_failure():
    broker = SlowBroker(
        faults=lambda d, a: Fault(PermissionDeniedError("no")) if d.data == b"0" else None
    )
    async with publishing(broker) as publisher:
        await publisher.publish_async("orders", b"0", ordering_key="k")
        await (await publisher.publish_async("orders", b"1", ordering_key="k")).ack


@pytest.mark.real_time
def test_a_wish_to_leave_is_granted_after_the_flight_has_ended():
    ended = []

    class Leaving(PublisherListener):
        def acked(self, flight):
            ended.append(flight.state)
            raise SystemExit(3)

    async def main():
        async with PubSub() as pubsub:
            await pubsub.topic("orders").create()
            async with ManagedPublisher(pubsub, listener=Leaving()) as publisher:
                await publisher.publish_async("orders")
                await asyncio.sleep(60)

    logging.getLogger("penstock").disabled = True
    try:
        with pytest.raises(SystemExit):
            asyncio.run(main())
    finally:
        logging.getLogger("penstock").disabled = False
    assert ended == [FlightState.ACKED]
