"""The managed publisher's specification: its properties, listener, flights and behaviour."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from penstock import (
    Expect,
    Flight,
    FlightState,
    ManagedPublisher,
    PublisherListener,
    PublishRetry,
    PubSub,
    Receipt,
)
from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    TopicNotFoundError,
    UnavailableError,
    UnimplementedError,
)
from penstock.testing import VirtualClock, settled
from tests.support.fakes import Fault, SlowBroker
from tests.support.scenes import now


class Recorder(PublisherListener):
    """Writes down every event."""

    def __init__(self):
        self.events = []

    def published(self, flight):
        self.events.append(("published", flight.id))

    def acked(self, flight):
        self.events.append(("acked", flight.id))

    def completed_exceptionally(self, flight):
        self.events.append(("failed", flight.id))

    def timeout(self, flight):
        self.events.append(("timeout", flight.id))

    def held(self):
        self.events.append("held")

    def resumed(self):
        self.events.append("resumed")

    def count(self, name):
        return sum(event == name or event[0] == name for event in self.events)


@asynccontextmanager
async def publishing(broker=None, **options):
    """A broker with the topic 'orders', and a publisher on it."""
    broker = broker or SlowBroker()
    async with PubSub(broker=broker, clock=VirtualClock()) as pubsub:
        await pubsub.topic("orders").create(message_retention=10**6)
        async with ManagedPublisher(pubsub, **options) as publisher:
            yield broker, publisher


async def stored(broker):
    return [record async for batch in broker.log.read("orders", 1, 10**9) for record in batch]


async def test_the_defaults_are_those_of_the_specification():
    async with publishing() as (_, publisher):
        assert publisher.max_in_flight == 50
        assert publisher.refill_allowed_at == 0
        assert publisher.retry is None
        assert publisher.poll_time == 0.1
        assert publisher.hold_pause_time == 0.1
        assert publisher.wait_timeout == 5.0
        assert publisher.id_prefix


async def test_publish_async_returns_a_flight_and_its_ack():
    async with publishing(id_prefix="shop") as (broker, publisher):
        flight = await publisher.publish_async("orders", b"a book", headers={"to": "ann"})
        assert flight.state is FlightState.IN_FLIGHT
        receipt = await flight.ack
        assert flight.publish_time == pytest.approx(VirtualClock().time_ns() / 1e9)
        assert isinstance(receipt, Receipt)
        assert (flight.id, flight.subject, flight.body) == ("shop-1", "orders", b"a book")
        assert flight.headers == {"to": "ann"}
        assert flight.options.message_id == "shop-1"
        assert flight.state is FlightState.ACKED
        assert flight.error is None
        [record] = await stored(broker)
        assert (record.message_id, record.data) == ("shop-1", b"a book")


async def test_identifiers_are_prefix_and_number_and_prefixes_differ():
    async with publishing() as (_, one), publishing() as (_, other):
        flights = [await one.publish_async("orders") for _ in range(3)]
        assert [f.id for f in flights] == [f"{one.id_prefix}-{n}" for n in (1, 2, 3)]
        assert one.id_prefix != other.id_prefix


async def test_no_more_than_max_in_flight_wait_for_their_acks():
    broker = SlowBroker(delay=1)
    async with publishing(broker, max_in_flight=7) as (_, publisher):
        for _ in range(30):
            await publisher.publish_async("orders", b"x")
            assert publisher.in_flight <= 7
    assert broker.most_at_once == 7
    assert len(broker.attempts) == 30


async def test_a_full_window_holds_until_it_has_drained_to_the_refill_mark():
    recorder = Recorder()
    broker = SlowBroker(delay=1)
    options = {"max_in_flight": 6, "refill_allowed_at": 2, "listener": recorder}
    async with publishing(broker, **options) as (_, publisher):
        flights = []
        for n in range(6):
            flights.append(await publisher.publish_async("orders", b"x"))
            await asyncio.sleep(0.1)
            assert publisher.holding == (n == 5)
        waiting = asyncio.ensure_future(publisher.publish_async("orders", b"x"))
        await asyncio.sleep(0.65)  # three have been acked: three are left
        assert publisher.in_flight == 3
        assert publisher.holding
        assert not waiting.done()
        await asyncio.sleep(0.1)  # two are left
        assert not publisher.holding
        assert waiting.done()
    assert recorder.count("held") == recorder.count("resumed") == 1


async def test_by_default_a_hold_lasts_until_nothing_is_in_flight_and_takes_no_longer():
    broker = SlowBroker(delay=0.01)
    async with publishing(broker) as (_, publisher):
        for _ in range(1000):
            await publisher.publish_async("orders", b"x")
    assert broker.most_at_once == 50
    assert now() == pytest.approx(20 * 0.01)  # twenty windows, no pause of 100 ms between


async def test_one_below_the_maximum_is_a_sliding_window():
    broker = SlowBroker(delay=1)
    async with publishing(broker, max_in_flight=4, refill_allowed_at=3) as (_, publisher):
        for _ in range(4):
            await publisher.publish_async("orders", b"x")
            await asyncio.sleep(0.25)
        for _ in range(4):
            await publisher.publish_async("orders", b"x")
        assert now() == pytest.approx(1.75)


async def test_bytes_in_flight_are_bounded_too():
    broker = SlowBroker(delay=1)
    options = {"max_in_flight": 100, "refill_allowed_at": 99, "max_bytes": 1000}
    async with publishing(broker, **options) as (_, publisher):
        for _ in range(10):
            await publisher.publish_async("orders", bytes(400))
            assert publisher.in_flight <= 3
    assert broker.most_at_once == 3


async def test_callers_wait_in_order_and_together_never_exceed_the_window():
    broker = SlowBroker(delay=1)
    async with publishing(broker, max_in_flight=3, refill_allowed_at=2) as (_, publisher):
        flights = await asyncio.gather(
            *(publisher.publish_async("orders", b"%d" % n) for n in range(20))
        )
        await publisher.drain()
    assert broker.most_at_once == 3
    assert [int(record.data) for record in await stored(broker)] == list(range(20))
    assert all(flight.state is FlightState.ACKED for flight in flights)


async def test_the_listener_hears_published_then_acked():
    recorder = Recorder()
    async with publishing(listener=recorder, id_prefix="p") as (_, publisher):
        await publisher.publish_async("orders")
        await publisher.publish_async("orders")
    assert sorted(recorder.events) == [
        ("acked", "p-1"),
        ("acked", "p-2"),
        ("published", "p-1"),
        ("published", "p-2"),
    ]
    assert recorder.events.index(("published", "p-1")) < recorder.events.index(("acked", "p-1"))


async def test_a_refusal_completes_exceptionally():
    recorder = Recorder()
    async with publishing(listener=recorder) as (_, publisher):
        flight = await publisher.publish_async("missing", b"x")
        with pytest.raises(TopicNotFoundError, match="missing"):
            await flight.ack
        assert flight.state is FlightState.REJECTED
        assert isinstance(flight.error, TopicNotFoundError)
        assert recorder.count("failed") == 1


async def test_without_a_retry_config_a_publish_is_attempted_once():
    broker = SlowBroker(faults=lambda draft, attempt: Fault(UnavailableError("down")))
    async with publishing(broker) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError):
            await flight.ack
        assert flight.state is FlightState.UNKNOWN
    assert list(broker.attempts.values()) == [1]


async def test_no_ack_within_the_wait_timeout_times_out_and_completes_the_future():
    recorder = Recorder()
    broker = SlowBroker(delay=1000)
    async with publishing(broker, wait_timeout=2, listener=recorder) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(DeadlineExceededError, match=r"orders.*2 s"):
            await flight.ack
        assert now() == pytest.approx(2)
        assert flight.state is FlightState.TIMED_OUT
        assert recorder.count("timeout") == 1
        assert publisher.in_flight == 0


async def test_timeouts_count_from_each_flights_own_publish():
    broker = SlowBroker(delay=1000)
    async with publishing(broker, wait_timeout=2) as (_, publisher):
        ends = []

        async def watch(flight):
            with pytest.raises(DeadlineExceededError):
                await flight.ack
            ends.append(now())

        watchers = []
        for _ in range(3):
            watchers.append(asyncio.ensure_future(watch(await publisher.publish_async("orders"))))
            await asyncio.sleep(0.5)
        await asyncio.gather(*watchers)
        assert ends == pytest.approx([2, 2.5, 3])


async def test_retries_carry_the_same_message_id_and_store_once():
    def fail_twice(draft, attempt):
        # The first attempt is stored and its ack lost: the worst case for duplicates.
        return Fault(UnavailableError("ack lost"), stored=attempt == 1) if attempt < 3 else None

    broker = SlowBroker(faults=fail_twice)
    async with publishing(broker, retry=PublishRetry(attempts=3)) as (_, publisher):
        flight = await publisher.publish_async("orders", b"once")
        receipt = await flight.ack
        assert receipt.duplicate
        assert flight.state is FlightState.DUPLICATE
        assert flight.attempts == 3
    assert broker.attempts == {flight.id: 3}
    assert len(await stored(broker)) == 1


async def test_retries_end_with_the_last_attempt():
    broker = SlowBroker(faults=lambda draft, attempt: Fault(UnavailableError(f"no {attempt}")))
    async with publishing(broker, retry=PublishRetry(attempts=4)) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError, match="no 4"):
            await flight.ack


async def test_retries_end_at_their_deadline():
    broker = SlowBroker(faults=lambda draft, attempt: Fault(UnavailableError("down")))
    retry = PublishRetry(attempts=1000, backoff=1, maximum_backoff=1, deadline=10)
    async with publishing(broker, retry=retry) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(UnavailableError):
            await flight.ack
        assert 8 <= now() <= 10
        assert flight.attempts > 5


async def test_only_faults_worth_it_are_retried():
    broker = SlowBroker(faults=lambda draft, attempt: Fault(PermissionDeniedError("no")))
    async with publishing(broker, retry=PublishRetry(attempts=5)) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(PermissionDeniedError):
            await flight.ack
        assert flight.attempts == 1
    broker = SlowBroker(faults=lambda draft, attempt: Fault(ResourceExhaustedError("full")))
    retry = PublishRetry(attempts=5, retry_on=lambda error: error.code != 8)
    async with publishing(broker, retry=retry) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(ResourceExhaustedError):
            await flight.ack
        assert flight.attempts == 1


async def test_a_timeout_is_retried_and_a_late_answer_still_counts():
    class FirstCallIsLate(SlowBroker):
        async def publish(self, topic, drafts):
            self.delay = 6 if not self.calls else 0
            return await super().publish(topic, drafts)

    broker = FirstCallIsLate()
    retry = PublishRetry(attempts=2, backoff=60, maximum_backoff=60)
    async with publishing(broker, retry=retry, wait_timeout=5) as (_, publisher):
        flight = await publisher.publish_async("orders", b"x")
        receipt = await flight.ack
        assert now() <= 66
        assert flight.state.delivered
        assert receipt.sequence == 1
    assert len(await stored(broker)) == 1


async def test_the_order_of_a_key_is_kept_under_retry():
    def first_of_each_fails(draft, attempt):
        return Fault(UnavailableError("once")) if attempt == 1 and draft.data[-1] % 2 else None

    broker = SlowBroker(faults=first_of_each_fails)
    async with publishing(broker, retry=PublishRetry()) as (_, publisher):
        await asyncio.gather(
            *(
                publisher.publish_async("orders", b"%d" % n, ordering_key=f"key-{n % 3}")
                for n in range(30)
            )
        )
    records = await stored(broker)
    assert len(records) == 30
    for key in range(3):
        mine = [int(r.data) for r in records if r.ordering_key == f"key-{key}"]
        assert mine == sorted(mine)


async def test_one_key_does_not_hold_up_another():
    stuck = Fault(UnavailableError("stuck"))
    broker = SlowBroker(faults=lambda d, attempt: stuck if d.ordering_key == "stuck" else None)
    retry = PublishRetry(attempts=100, backoff=10, maximum_backoff=10, deadline=100)
    async with publishing(broker, retry=retry) as (_, publisher):
        await publisher.publish_async("orders", ordering_key="stuck")
        free = await publisher.publish_async("orders", ordering_key="free")
        await free.ack
        assert now() == 0


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (Expect(last_sequence=5), "last sequence 5"),
        (Expect(last_id="nobody"), "last id 'nobody'"),
        (Expect(last_subject_sequence=9), "subject 9"),
        (Expect(topic="others"), "topic 'others'"),
    ],
)
async def test_an_expectation_that_fails_rejects_only_its_own_flight(expect, said):
    async with publishing() as (broker, publisher):
        good = Expect(topic="orders", last_sequence=0, last_subject_sequence=0)
        first = await publisher.publish_async("orders", b"1", expect=good)
        wrong = await publisher.publish_async("orders", b"2", expect=expect)
        third = await publisher.publish_async("orders", b"3", expect=Expect(last_id=first.id))
        with pytest.raises(FailedPreconditionError, match=said):
            await wrong.ack
        assert wrong.state is FlightState.REJECTED
        assert wrong.options.expect == expect
        await first.ack
        await third.ack
        assert [r.data for r in await stored(broker)] == [b"1", b"3"]


async def test_what_the_broker_cannot_do_is_said():
    async with publishing() as (_, publisher):
        flight = await publisher.publish_async("orders", ttl=60)
        with pytest.raises(UnimplementedError):
            await flight.ack


async def test_a_message_id_of_ones_own_is_used_and_duplicates_are_told():
    async with publishing() as (_, publisher):
        first = await publisher.publish_async("orders", message_id="job-1")
        second = await publisher.publish_async("orders", message_id="job-1")
        assert (await first.ack).sequence == (await second.ack).sequence
        assert (first.state, second.state) == (FlightState.ACKED, FlightState.DUPLICATE)


async def test_a_listener_that_raises_changes_nothing(caplog):
    class Angry(PublisherListener):
        def published(self, flight):
            raise ValueError("plain")

        async def acked(self, flight):
            raise ValueError("async")

    async with publishing(listener=Angry()) as (_, publisher):
        flights = [await publisher.publish_async("orders") for _ in range(3)]
        for flight in flights:
            await flight.ack
    assert caplog.text.count("listener failed") == 6


async def test_an_async_listener_is_awaited_in_order_before_drain_ends():
    heard: list[str] = []

    class Slow(PublisherListener):
        async def acked(self, flight: Flight) -> None:
            await asyncio.sleep(0.1)
            heard.append(flight.id)

    async with publishing(listener=Slow(), id_prefix="p") as (_, publisher):
        for _ in range(5):
            await publisher.publish_async("orders")
    assert heard == [f"p-{n}" for n in range(1, 6)]


async def test_drain_waits_for_everything_then_refuses():
    broker = SlowBroker(delay=3)
    async with publishing(broker) as (_, publisher):
        flights = [await publisher.publish_async("orders") for _ in range(5)]
        assert await publisher.drain() == ()
        assert now() == pytest.approx(3)
        assert all(flight.state is FlightState.ACKED for flight in flights)
        with pytest.raises(ClosedError):
            await publisher.publish_async("orders")
        assert await publisher.drain() == ()


async def test_drain_returns_what_was_not_delivered():
    broker = SlowBroker(
        delay=1, faults=lambda d, attempt: Fault(PermissionDeniedError("no")) if d.data else None
    )
    async with publishing(broker) as (_, publisher):
        await publisher.publish_async("orders")
        bad = await publisher.publish_async("orders", b"refused")
        assert await publisher.drain() == (bad,)


async def test_drain_with_a_deadline_ends_what_is_left_as_unknown():
    broker = SlowBroker(delay=1000)
    async with publishing(broker, wait_timeout=600) as (_, publisher):
        flights = [await publisher.publish_async("orders") for _ in range(3)]
        left = await publisher.drain(timeout=2)
        assert now() == pytest.approx(2)
        assert left == tuple(flights)
        for flight in flights:
            assert flight.state is FlightState.UNKNOWN
            with pytest.raises(UnavailableError, match=flight.id):
                await flight.ack


async def test_drain_delivers_what_was_handed_over_before_it_and_refuses_what_comes_after():
    broker = SlowBroker(delay=3)
    async with publishing(broker, max_in_flight=50) as (_, publisher):
        waiting = [asyncio.ensure_future(publisher.publish_async("orders")) for _ in range(120)]
        drained = asyncio.ensure_future(publisher.drain())
        await settled()
        with pytest.raises(ClosedError):
            await publisher.publish_async("orders")
        assert await drained == ()
        flights = await asyncio.gather(*waiting)
        assert all(flight.state is FlightState.ACKED for flight in flights)
    assert len(await stored(broker)) == 120


async def test_callers_that_wait_for_room_are_refused_when_a_drain_gives_up():
    broker = SlowBroker(delay=1000)
    async with publishing(broker, max_in_flight=1, wait_timeout=600) as (_, publisher):
        await publisher.publish_async("orders")
        waiting = asyncio.ensure_future(publisher.publish_async("orders"))
        await settled()
        await publisher.drain(timeout=2)
        assert now() == pytest.approx(2)
        with pytest.raises(ClosedError):
            await waiting


async def test_stop_ends_everything_at_once():
    broker = SlowBroker(delay=1000)
    async with publishing(broker) as (_, publisher):
        flight = await publisher.publish_async("orders")
        keyed = [await publisher.publish_async("orders", ordering_key="k") for _ in range(1)]
        await publisher.stop()
        await publisher.stop()
        assert now() == 0
        for each in (flight, *keyed):
            assert each.state is FlightState.UNKNOWN
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_runners_can_run_on_tasks_of_the_callers_own():
    broker = SlowBroker(delay=0.5)
    async with PubSub(broker=broker, clock=VirtualClock()) as pubsub:
        await pubsub.topic("orders").create()
        publisher = ManagedPublisher(pubsub, max_in_flight=2)
        flight = await publisher.publish_async("orders")
        await asyncio.sleep(1)
        assert flight.state is FlightState.IN_FLIGHT
        async with asyncio.TaskGroup() as group:
            group.create_task(publisher.publish_runner())
            group.create_task(publisher.flights_runner())
            await flight.ack
            for _ in range(5):
                await publisher.publish_async("orders")
            assert await publisher.drain() == ()
        assert len(broker.attempts) == 6


async def test_a_publisher_never_started_ends_its_flights_when_drained():
    async with PubSub(clock=VirtualClock()) as pubsub:
        publisher = ManagedPublisher(pubsub)
        flight = await publisher.publish_async("orders")
        assert await publisher.drain() == (flight,)
        assert flight.state is FlightState.UNKNOWN


async def test_a_caller_cancelled_while_waiting_publishes_nothing_and_leaks_nothing():
    broker = SlowBroker(delay=1)
    async with publishing(broker, max_in_flight=1) as (_, publisher):
        await publisher.publish_async("orders", b"first")
        cancelled = asyncio.ensure_future(publisher.publish_async("orders", b"cancelled"))
        patient = asyncio.ensure_future(publisher.publish_async("orders", b"second"))
        await settled()
        cancelled.cancel()
        await (await patient).ack
    assert [r.data for r in await stored(broker)] == [b"first", b"second"]


@pytest.mark.parametrize("turns", range(8))
async def test_cancelling_at_any_turn_leaks_nothing(turns):
    broker = SlowBroker(delay=0.1)
    async with publishing(broker, max_in_flight=2) as (_, publisher):
        tasks = [
            asyncio.ensure_future(publisher.publish_async("orders", ordering_key="k"))
            for _ in range(6)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await publisher.drain()
        assert publisher.in_flight == 0
        assert publisher._admission.window.bytes == 0


async def test_a_broken_broker_ends_flights_with_an_internal_error():
    class Broken(SlowBroker):
        async def publish(self, topic, drafts):
            if drafts[0].data == b"short":
                return []
            raise RuntimeError("bug")

    async with publishing(Broken()) as (_, publisher):
        for body in (b"short", b"raise"):
            flight = await publisher.publish_async("orders", body)
            with pytest.raises(Exception, match=r"broker answered 0 of 1|bug"):
                await flight.ack
            assert flight.state.terminal


async def test_a_flight_nobody_asks_about_that_fails_is_logged(caplog):
    async with publishing() as (_, publisher):
        await publisher.publish_async("missing", b"secret")
        await settled()
    assert "Topic not found: 'missing'" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"max_in_flight": 5, "refill_allowed_at": 5},
        {"refill_allowed_at": -1},
        {"wait_timeout": 0},
        {"poll_time": -1},
        {"max_bytes": 0},
    ],
)
async def test_impossible_options_are_refused(options):
    async with PubSub() as pubsub:
        with pytest.raises(InvalidArgumentError):
            ManagedPublisher(pubsub, **options)


@pytest.mark.parametrize("options", [{"attempts": 0}, {"backoff": 0}, {"deadline": -1}])
def test_impossible_retries_are_refused(options):
    with pytest.raises(InvalidArgumentError):
        PublishRetry(**options)


async def test_bad_input_is_refused_before_it_takes_room():
    async with publishing() as (_, publisher):
        for arguments in (
            {"topic": "x"},
            {"topic": "orders", "body": "text"},
            {"topic": "orders", "headers": {"a": "\n"}},
            {"topic": "orders", "expect": 5},
            {"topic": "orders", "ttl": 0},
        ):
            with pytest.raises(InvalidArgumentError):
                await publisher.publish_async(**arguments)
        assert publisher.in_flight == 0


def test_backoff_doubles_between_attempts():
    retry = PublishRetry(attempts=10, backoff=1, maximum_backoff=8)
    delays = [retry.delay(n, 0, UnavailableError("x"), lambda: 1.0) for n in range(1, 7)]
    assert delays == [1, 2, 4, 8, 8, 8]
    assert all(a <= b for a, b in pairwise(delays))


async def test_a_caller_that_waits_behind_its_key_is_let_go_by_stop():
    broker = SlowBroker(delay=1000)
    async with publishing(broker, wait_timeout=600) as (_, publisher):
        await publisher.publish_async("orders", ordering_key="k")
        waiting = asyncio.ensure_future(publisher.publish_async("orders", ordering_key="k"))
        await settled()
        await publisher.drain(timeout=1)
        flight = await asyncio.wait_for(waiting, 1)
        assert flight.state is FlightState.UNKNOWN


async def test_giving_up_waiting_for_an_ack_does_not_spoil_it_for_others():
    async with publishing(SlowBroker(delay=1)) as (_, publisher):
        flight = await publisher.publish_async("orders")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flight.ack, 0.5)
        assert (await flight.ack).sequence == 1


async def test_drain_does_not_wait_for_runners_that_were_cancelled():
    async with PubSub(broker=SlowBroker(delay=1000), clock=VirtualClock()) as pubsub:
        await pubsub.topic("orders").create()
        publisher = ManagedPublisher(pubsub, wait_timeout=600)
        runners = [
            asyncio.ensure_future(publisher.publish_runner()),
            asyncio.ensure_future(publisher.flights_runner()),
        ]
        flight = await publisher.publish_async("orders")
        await settled()
        for runner in runners:
            runner.cancel()
        await settled()
        assert await publisher.drain() == (flight,)


async def test_a_listener_may_drain_its_publisher():
    class Draining(PublisherListener):
        async def acked(self, flight):
            await publisher.drain()

    async with publishing(listener=Draining()) as (_, publisher):
        await publisher.publish_async("orders")
        await asyncio.sleep(1)
    assert now() == 1
