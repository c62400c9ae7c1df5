"""What is the memory broker's own: retention, waiting, sharing, and cost."""

import asyncio
import gc
import sys
from collections.abc import Sequence

import pytest

from penstock import DeadLetterPolicy, Draft, PreciseTime, PushDelivery
from penstock.brokers.memory import MemoryBroker
from penstock.config import DAY, SubscriptionConfig, TopicConfig
from penstock.errors import (
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnimplementedError,
)
from penstock.message import Delivery, Settlement, Verb
from penstock.testing import VirtualClock, settled


async def make(**options) -> MemoryBroker:
    broker = MemoryBroker(VirtualClock())
    topic = {k: options.pop(k) for k in ("duplicate_window",) if k in options}
    topic["message_retention"] = options.pop("topic_retention", 0.0)
    await broker.admin.create_topic(TopicConfig(name="topic", **topic))
    await broker.admin.create_subscription(SubscriptionConfig(name="sub", topic="topic", **options))
    return broker


async def publish(broker: MemoryBroker, *texts: str, **options) -> None:
    await broker.publish("topic", [Draft.of(text.encode(), **options) for text in texts])


async def pull(broker: MemoryBroker, count: int = 100, wait: float = 0) -> Sequence[Delivery]:
    return await broker.pull("sub", max_messages=count, max_bytes=10**9, wait=wait)


async def ack(broker: MemoryBroker, *deliveries: Delivery) -> None:
    await broker.settle("sub", [Settlement(d.ack_id, Verb.ACK) for d in deliveries])


def texts(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.record.data.decode() for delivery in deliveries]


async def test_a_pull_waits_for_a_message_and_no_longer_than_asked():
    broker = await make()
    waiting = asyncio.ensure_future(pull(broker, wait=10))
    await asyncio.sleep(5)
    await publish(broker, "a")
    assert texts(await waiting) == ["a"]
    began = broker._clock.monotonic()
    assert await pull(broker, wait=3) == []
    assert broker._clock.monotonic() - began == 3


async def test_a_cancelled_pull_takes_nothing_and_wakes_the_next():
    broker = await make()
    first = asyncio.ensure_future(pull(broker, wait=100))
    second = asyncio.ensure_future(pull(broker, wait=100))
    await settled()
    await publish(broker, "a")
    first.cancel()  # it has been woken, and has not run yet
    assert texts(await second) == ["a"]
    assert broker._clock.monotonic() == 0


async def test_redeliveries_and_fresh_messages_take_turns():
    broker = await make()
    await publish(broker, "poison")
    await publish(broker, *(f"fresh-{n}" for n in range(10)))
    seen = []
    for _ in range(12):
        [delivery] = await pull(broker, 1)
        seen.append(delivery.record.data.decode())
        verb = Verb.NACK if seen[-1] == "poison" else Verb.ACK
        await broker.settle("sub", [Settlement(delivery.ack_id, verb)])
    assert seen.count("poison") <= 7
    assert len(set(seen)) >= 6


async def test_unacked_messages_expire_after_the_subscriptions_retention():
    broker = await make(message_retention=100)
    await publish(broker, "old")
    await asyncio.sleep(60)
    await publish(broker, "new")
    assert (await broker.admin.describe_subscription("sub")).backlog == 2
    await asyncio.sleep(60)
    assert (await broker.admin.describe_subscription("sub")).backlog == 1
    assert texts(await pull(broker)) == ["new"]


async def test_an_expired_message_frees_its_ordering_key():
    broker = await make(message_retention=100, message_ordering=True)
    await publish(broker, "old", ordering_key="key")
    await asyncio.sleep(60)
    await publish(broker, "new", ordering_key="key")
    await asyncio.sleep(60)
    assert texts(await pull(broker)) == ["new"]


async def test_acked_messages_come_back_by_seek_only_if_they_were_retained():
    start = PreciseTime.from_ns(VirtualClock().time_ns())
    forgetful, retaining = await make(), await make(retain_acked_messages=True)
    for broker in (forgetful, retaining):
        await publish(broker, "a", "b")
        await ack(broker, *await pull(broker))
        await publish(broker, "c")
        await broker.admin.seek("sub", start)
    assert texts(await pull(forgetful)) == ["c"]
    assert texts(await pull(retaining)) == ["a", "b", "c"]


async def test_what_another_subscription_retains_is_not_replayed_to_this_one():
    start = PreciseTime.from_ns(VirtualClock().time_ns())
    broker = await make()
    await broker.admin.create_subscription(
        SubscriptionConfig(name="keeper", topic="topic", retain_acked_messages=True)
    )
    await publish(broker, "a")
    await ack(broker, *await pull(broker))
    await broker.admin.seek("sub", start)
    assert await pull(broker) == []


async def test_a_topic_with_retention_replays_even_what_was_published_before_the_subscription():
    broker = await make(topic_retention=1000)
    await publish(broker, "before")
    await broker.admin.create_subscription(SubscriptionConfig(name="late", topic="topic"))
    await broker.admin.seek("late", PreciseTime.from_ns(0))
    got = await broker.pull("late", max_messages=10, max_bytes=1000, wait=0)
    assert texts(got) == ["before"]


async def test_the_log_ends_where_retention_ends():
    broker = await make(topic_retention=100)
    await publish(broker, "a", "b")
    await asyncio.sleep(60)
    await publish(broker, "c")
    await asyncio.sleep(60)
    extent = await broker.log.extent("topic")
    assert (extent.first, extent.last) == (3, 3)
    assert [len(batch) async for batch in broker.log.read("topic", 1, 10)] == [1]
    await asyncio.sleep(60)
    extent = await broker.log.extent("topic")
    assert (extent.first, extent.last) == (4, 3)


async def test_without_retention_the_log_holds_nothing_and_payloads_are_freed():
    broker = await make()
    payload = bytes(100)
    before = sys.getrefcount(payload)
    await broker.publish("topic", [Draft(payload)])
    assert sys.getrefcount(payload) > before
    deliveries = await pull(broker)
    await ack(broker, *deliveries)
    del deliveries
    gc.collect()
    assert sys.getrefcount(payload) == before


async def test_a_seek_to_the_future_acks_what_is_published_until_then():
    broker = await make()
    await publish(broker, "now")
    ahead = PreciseTime.from_ns(VirtualClock().time_ns() + 100 * 10**9)
    await broker.admin.seek("sub", ahead)
    await asyncio.sleep(50)
    await publish(broker, "soon")
    await asyncio.sleep(60)
    await publish(broker, "then")
    assert texts(await pull(broker)) == ["then"]


@pytest.mark.parametrize("to", [5, None, PreciseTime.from_ns(0).replace(tzinfo=None)])
async def test_a_seek_needs_an_aware_time_or_a_snapshot(to):
    broker = await make()
    with pytest.raises(InvalidArgumentError, match="aware"):
        await broker.admin.seek("sub", to)


async def test_snapshots_expire_and_let_go_of_what_they_kept():
    broker = await make()
    await publish(broker, "a")
    await broker.admin.create_snapshot("snapshot", "sub")
    await publish(broker, "b")
    await ack(broker, *await pull(broker))
    await asyncio.sleep(6 * 86_400)
    await broker.admin.seek("sub", "snapshot")
    deliveries = await pull(broker)
    assert texts(deliveries) == ["a", "b"]
    await ack(broker, *deliveries)
    await asyncio.sleep(2 * 86_400)
    await publish(broker, "c")
    assert len(broker._registry.topics["topic"].retained) == 0
    with pytest.raises(SnapshotNotFoundError) as caught:
        await broker.admin.seek("sub", "snapshot")
    assert caught.value.code == 5


async def test_a_snapshot_belongs_to_its_topic():
    broker = await make()
    await broker.admin.create_topic(TopicConfig(name="other"))
    await broker.admin.create_subscription(SubscriptionConfig(name="stranger", topic="other"))
    await broker.admin.create_snapshot("snapshot", "sub")
    with pytest.raises(InvalidArgumentError, match="'other'"):
        await broker.admin.seek("stranger", "snapshot")


async def test_a_dead_letter_topic_that_went_away_loses_nothing():
    broker = await make()
    await broker.admin.create_topic(TopicConfig(name="dead"))
    policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=2)
    await broker.admin.create_subscription(
        SubscriptionConfig(name="poisoned", topic="topic", dead_letter_policy=policy)
    )
    await broker.admin.delete_topic("dead")
    await publish(broker, "poison")
    for attempt in range(1, 6):
        [delivery] = await broker.pull("poisoned", max_messages=1, max_bytes=100, wait=0)
        assert delivery.delivery_attempt == attempt
        verb = Verb.REJECT if attempt == 4 else Verb.NACK
        await broker.settle("poisoned", [Settlement(delivery.ack_id, verb)])


async def test_a_topic_created_again_under_its_name_is_another_topic():
    broker = await make()
    await broker.admin.delete_topic("topic")
    await broker.admin.create_topic(TopicConfig(name="topic"))
    await publish(broker, "new")
    assert (await broker.admin.describe_topic("topic")).subscriptions == ()
    assert (await broker.admin.describe_subscription("sub")).topic_deleted
    await broker.admin.delete_subscription("sub")


async def test_an_ack_id_of_one_subscription_means_nothing_to_another():
    broker = await make(enable_exactly_once_delivery=True)
    await broker.admin.create_subscription(SubscriptionConfig(name="other", topic="topic"))
    await publish(broker, "a")
    [mine] = await pull(broker)
    await broker.settle("other", [Settlement(mine.ack_id, Verb.ACK)])
    assert (await broker.admin.describe_subscription("other")).backlog == 1
    assert (await broker.admin.describe_subscription("sub")).leased == 1


async def test_closing_the_broker_ends_every_wait():
    broker = await make()
    waiting = asyncio.ensure_future(pull(broker, wait=1000))
    await settled()
    await broker.aclose()
    await broker.aclose()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await publish(broker, "x")
    with pytest.raises(ClosedError):
        await broker.admin.create_topic(TopicConfig(name="new"))


async def test_deleting_a_subscription_ends_its_waits():
    broker = await make()
    waiting = asyncio.ensure_future(pull(broker, wait=1000))
    await settled()
    await broker.admin.delete_subscription("sub")
    with pytest.raises(SubscriptionNotFoundError):
        await waiting


async def test_a_loop_that_only_publishes_lets_others_run():
    broker = await make()
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    for _ in range(5000):
        await publish(broker, "x")
    task.cancel()
    assert turns >= 10


async def test_there_is_one_timer_whatever_is_on_loan():
    broker = await make()
    loop = asyncio.get_running_loop()
    await publish(broker, *(str(n) for n in range(5000)))
    for _ in range(50):
        assert len(await pull(broker)) == 100
        await asyncio.sleep(0.01)
    assert len(loop._scheduled) <= 3
    assert len(asyncio.all_tasks()) == 1


async def test_a_log_that_was_dropped_begins_anew():
    broker = await make()
    keeper = SubscriptionConfig(name="keeper", topic="topic", retain_acked_messages=True)
    await broker.admin.create_subscription(keeper)
    await publish(broker, "1", "2")
    await broker.admin.delete_subscription("keeper")
    await publish(broker, "3")
    await broker.admin.create_subscription(keeper)
    await publish(broker, "4", "5")
    extent = await broker.log.extent("topic")
    assert (extent.first, extent.last) == (4, 5)
    [batch] = [batch async for batch in broker.log.read("topic", 1, 5)]
    assert [(r.sequence, r.data) for r in batch] == [(4, b"4"), (5, b"5")]


async def test_retention_holds_also_where_nobody_pulls():
    broker = await make(message_retention=10)
    for n in range(100):
        await publish(broker, str(n))
        await asyncio.sleep(1)
    assert len(broker._registry.subscriptions["sub"]._fresh) <= 11


async def test_ids_never_meet_those_of_callers_or_of_an_earlier_topic():
    broker = await make()
    [first] = await broker.publish("topic", [Draft.of(b"x")])
    await broker.admin.delete_topic("topic")
    await broker.admin.create_topic(TopicConfig(name="topic"))
    [second] = await broker.publish("topic", [Draft.of(b"x")])
    [third] = await broker.publish("topic", [Draft.of(b"x", message_id="2")])
    assert len({first.message_id, second.message_id, third.message_id, "1", "2"}) == 4


async def test_a_snapshot_does_not_outlive_its_topic_into_another_of_that_name():
    broker = await make()
    await publish(broker, "old")
    await broker.admin.create_snapshot("snapshot", "sub")
    await broker.admin.delete_topic("topic")
    with pytest.raises(TopicNotFoundError, match="deleted"):
        await broker.admin.create_snapshot("another", "sub")
    await broker.admin.delete_subscription("sub")
    await broker.admin.create_topic(TopicConfig(name="topic"))
    await broker.admin.create_subscription(SubscriptionConfig(name="sub", topic="topic"))
    await publish(broker, "new")
    with pytest.raises(InvalidArgumentError, match="another topic"):
        await broker.admin.seek("sub", "snapshot")
    assert texts(await pull(broker)) == ["new"]


async def test_a_released_message_comes_back_without_an_attempt():
    broker = await make()
    await publish(broker, "a", "b")
    for _ in range(3):
        deliveries = await pull(broker)
        assert [d.delivery_attempt for d in deliveries] == [1, 1]
        assert texts(deliveries) == ["a", "b"]
        await broker.settle("sub", [Settlement(d.ack_id, Verb.RELEASE) for d in deliveries])


async def test_what_others_retained_before_it_existed_is_not_a_subscriptions_to_replay():
    broker = await make(retain_acked_messages=True)
    await publish(broker, "early")
    await broker.admin.create_subscription(
        SubscriptionConfig(name="late", topic="topic", retain_acked_messages=True)
    )
    await publish(broker, "after")
    await broker.admin.seek("late", PreciseTime.from_ns(0))
    got = await broker.pull("late", max_messages=10, max_bytes=1000, wait=0)
    assert texts(got) == ["after"]


async def test_what_it_cannot_do_it_refuses():
    broker = await make()
    push = PushDelivery(subject="deliver.here")
    with pytest.raises(UnimplementedError, match="push"):
        await broker.admin.create_subscription(
            SubscriptionConfig(name="pushed", topic="topic", push=push)
        )
    for subject in ("", "a b", "a.*", 5):
        with pytest.raises(InvalidArgumentError):
            PushDelivery(subject=subject)


async def test_a_snapshot_that_would_expire_within_the_hour_is_refused():
    broker = await make(message_retention=30 * DAY)
    await publish(broker, "old")
    await asyncio.sleep(7 * DAY - 3601)
    await broker.admin.create_snapshot("first", "sub")
    await asyncio.sleep(2)
    with pytest.raises(FailedPreconditionError, match=r"'second'.*hour"):
        await broker.admin.create_snapshot("second", "sub")
    assert await broker.admin.list_snapshots() == ["first"]
    await asyncio.sleep(3600)
    assert await broker.admin.list_snapshots() == []


async def test_a_snapshot_of_a_deleted_topic_says_so():
    broker = await make()
    await broker.admin.create_snapshot("snapshot", "sub")
    await broker.admin.delete_topic("topic")
    await broker.admin.create_topic(TopicConfig(name="topic"))
    assert (await broker.admin.describe_snapshot("snapshot")).topic_deleted
    assert await broker.admin.list_snapshots("topic") == []


async def test_a_detached_subscription_tells_whoever_waits_and_cannot_seek():
    broker = await make(topic_retention=600)
    await publish(broker, "a")
    [delivery] = await pull(broker)
    waiting = asyncio.ensure_future(pull(broker, wait=100))
    await settled()
    await broker.admin.detach_subscription("sub")
    with pytest.raises(FailedPreconditionError, match="'sub' is detached"):
        await waiting
    with pytest.raises(FailedPreconditionError):
        await broker.admin.seek("sub", PreciseTime.from_ns(delivery.record.publish_time_ns))
    await asyncio.sleep(1000)
    assert (await broker.admin.describe_subscription("sub")).backlog == 0


async def test_a_pull_that_waits_and_a_settlement_keep_a_subscription_from_expiring():
    broker = await make(expires_after=DAY)
    waiting = asyncio.ensure_future(pull(broker, wait=3 * DAY))
    await asyncio.sleep(2.9 * DAY)
    waiting.cancel()
    await asyncio.sleep(0.9 * DAY)
    await broker.settle("sub", [Settlement("long gone", Verb.ACK)])
    await asyncio.sleep(0.9 * DAY)
    assert await broker.admin.list_subscriptions() == ["sub"]
    await asyncio.sleep(0.2 * DAY)
    assert await broker.admin.list_subscriptions() == []
    with pytest.raises(SubscriptionNotFoundError):
        await pull(broker)


async def test_extensions_of_different_lengths_in_one_call_are_each_as_asked():
    broker = await make(ack_deadline=10)
    await publish(broker, "a", "b", "c")
    taken = await pull(broker)
    wishes = [(0, 20.0), (1, 30.0), (0, 40.0), (2, 20.0), (1, 20.0)]
    await broker.settle(
        "sub", [Settlement(taken[n].ack_id, Verb.EXTEND, seconds) for n, seconds in wishes]
    )
    await asyncio.sleep(19.5)
    assert await pull(broker) == []
    await asyncio.sleep(1)
    assert sorted(texts(await pull(broker))) == ["b", "c"]
    await asyncio.sleep(20)
    assert "a" in texts(await pull(broker))
