"""What is added in front of a broker that leaves deadlines and order to its clients."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock import DeadLetterPolicy, Draft, RetryPolicy
from penstock.brokers.memory import MemoryBroker
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.emulator.completing import completed
from penstock.emulator.completing.deadlines import KeptDeadlines
from penstock.emulator.completing.passing import PassingOn
from penstock.message import AckResponse, Delivery, Settlement, Verb
from penstock.testing import VirtualClock


class Coarse(PassingOn):
    """Like JetStream: an extension renews the deadline as it is, and keys are sent ahead."""

    def __init__(self, broker, config):
        super().__init__(broker)
        self._config = config
        self.extensions = 0

    @property
    def capabilities(self):
        return replace(self.broker.capabilities, sets_deadlines=False, ordering=False)

    @property
    def admin(self):
        return self

    async def describe_subscription(self, name):
        status = await self.broker.admin.describe_subscription(name)
        return replace(status, config=self._config)

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        coarse = []
        for settlement in settlements:
            if settlement.verb is Verb.EXTEND:
                self.extensions += 1
                settlement = Settlement(settlement.ack_id, Verb.EXTEND, self._config.ack_deadline)
            coarse.append(settlement)
        return await self.broker.settle(subscription, coarse)


async def make(**options):
    memory = MemoryBroker(VirtualClock())
    for name in ("topic", "dead"):
        await memory.admin.create_topic(TopicConfig(name=name))
    config = SubscriptionConfig(name="sub", topic="topic", ack_deadline=10, **options)
    await memory.admin.create_subscription(replace(config, message_ordering=False))
    coarse = Coarse(memory, config)
    broker = completed(coarse, VirtualClock())
    assert broker.capabilities.sets_deadlines and broker.capabilities.ordering
    return broker, coarse


async def publish(broker, *texts: str, key: str | None = None) -> None:
    await broker.publish("topic", [Draft.of(text.encode(), ordering_key=key) for text in texts])


async def pull(broker, count: int = 100, wait: float = 0.1) -> Sequence[Delivery]:
    return await broker.pull("sub", max_messages=count, max_bytes=10**9, wait=wait)


async def settle(broker, delivery: Delivery, verb: Verb, seconds: float | None = None) -> None:
    await broker.settle("sub", [Settlement(delivery.ack_id, verb, seconds)])


def texts(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.record.data.decode() for delivery in deliveries]


async def test_a_broker_that_does_it_all_is_used_as_it_is():
    memory = MemoryBroker(VirtualClock())
    assert completed(memory, VirtualClock()) is memory


async def test_a_broker_that_keeps_order_is_left_to_do_so():
    class Ordering(PassingOn):
        @property
        def capabilities(self):
            return replace(self.broker.capabilities, sets_deadlines=False)

    broker = completed(Ordering(MemoryBroker(VirtualClock())), VirtualClock())
    assert broker.capabilities.sets_deadlines and broker.capabilities.ordering
    assert isinstance(broker, KeptDeadlines)


@pytest.mark.parametrize("seconds", [3, 10, 25, 600])
async def test_a_deadline_lasts_as_long_as_asked(seconds):
    broker, _ = await make()
    await publish(broker, "x")
    [first] = await pull(broker)
    await settle(broker, first, Verb.EXTEND, float(seconds))
    await asyncio.sleep(seconds - 0.5)
    assert await pull(broker) == []
    await asyncio.sleep(0.6)
    [second] = await pull(broker)
    assert second.delivery_attempt == 2
    await broker.aclose()


async def test_a_deadline_nobody_extends_ends_in_its_time():
    broker, _ = await make()
    await publish(broker, "x")
    await pull(broker)
    await asyncio.sleep(9.5)
    assert await pull(broker) == []
    await asyncio.sleep(1)
    assert texts(await pull(broker)) == ["x"]
    await broker.aclose()


async def test_a_missed_deadline_is_a_nack_to_the_retry_policy():
    policy = RetryPolicy(minimum_backoff=50, maximum_backoff=50)
    broker, coarse = await make()
    await coarse.broker.admin.update_subscription(
        replace(
            (await coarse.broker.admin.describe_subscription("sub")).config, retry_policy=policy
        )
    )
    await publish(broker, "x")
    await pull(broker)
    await asyncio.sleep(30)
    assert await pull(broker) == []
    await asyncio.sleep(32)
    assert texts(await pull(broker)) == ["x"]
    await broker.aclose()


async def test_what_is_settled_is_not_extended_any_more():
    broker, coarse = await make()
    await publish(broker, *"abc")
    taken = await pull(broker)
    await settle(broker, taken[0], Verb.EXTEND, 600.0)
    for delivery in taken:
        await settle(broker, delivery, Verb.ACK)
    before = coarse.extensions
    await asyncio.sleep(100)
    assert coarse.extensions == before
    assert await pull(broker) == []
    await broker.aclose()


async def test_one_of_a_key_is_lent_at_a_time():
    broker, _ = await make(message_ordering=True)
    await publish(broker, *"abc", key="one")
    await publish(broker, *"xyz", key="two")
    await publish(broker, "free")
    first = await pull(broker)
    assert texts(first) == ["a", "x", "free"]
    assert await pull(broker) == []
    await settle(broker, first[0], Verb.ACK)
    assert texts(await pull(broker)) == ["b"]
    await broker.aclose()


async def test_a_nacked_message_comes_back_before_later_ones_of_its_key():
    broker, _ = await make(message_ordering=True)
    await publish(broker, *"abc", key="one")
    [first] = await pull(broker)
    await settle(broker, first, Verb.NACK)
    again = await pull(broker)
    assert texts(again) == ["a"]
    seen = []
    while again:
        seen += texts(again)
        await settle(broker, again[0], Verb.ACK)
        again = await pull(broker)
    assert seen == ["a", "b", "c"]
    await broker.aclose()


async def test_an_expired_message_comes_back_before_later_ones_of_its_key():
    broker, _ = await make(message_ordering=True)
    await publish(broker, *"abc", key="one")
    assert texts(await pull(broker)) == ["a"]
    await asyncio.sleep(11)
    [again] = await pull(broker)
    assert again.record.data == b"a"
    await settle(broker, again, Verb.ACK)
    assert texts(await pull(broker)) == ["b"]
    await broker.aclose()


async def test_who_waits_behind_a_slow_one_keeps_its_place_and_gets_its_full_time():
    broker, _ = await make(message_ordering=True)
    await publish(broker, *"ab", key="one")
    [first] = await pull(broker)
    for _ in range(10):
        await asyncio.sleep(8)
        await settle(broker, first, Verb.EXTEND, 10.0)
    await settle(broker, first, Verb.ACK)
    [second] = await pull(broker)
    await asyncio.sleep(9)
    assert await pull(broker) == []
    await settle(broker, second, Verb.ACK)
    await asyncio.sleep(100)
    assert await pull(broker) == []
    await broker.aclose()


async def test_a_dead_letter_lets_its_key_go_on():
    policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=2)
    broker, coarse = await make(message_ordering=True, dead_letter_policy=policy)
    admin = coarse.broker.admin
    config = (await admin.describe_subscription("sub")).config
    await admin.update_subscription(replace(config, dead_letter_policy=policy))
    await publish(broker, *"ab", key="one")
    for _ in range(2):
        [delivery] = await pull(broker)
        assert delivery.record.data == b"a"
        await settle(broker, delivery, Verb.NACK)
    assert texts(await pull(broker)) == ["b"]
    await broker.aclose()


async def test_what_was_lent_before_we_began_comes_first():
    memory = MemoryBroker(VirtualClock())
    await memory.admin.create_topic(TopicConfig(name="topic"))
    config = SubscriptionConfig(name="sub", topic="topic", ack_deadline=10)
    await memory.admin.create_subscription(config)
    await publish(memory, *"abcd", key="one")
    lent = await pull(memory, 3)  # by an emulator that then died
    await asyncio.sleep(5)
    await settle(memory, lent[0], Verb.EXTEND, 10.0)
    broker = completed(Coarse(memory, replace(config, message_ordering=True)), VirtualClock())
    seen = []
    while taken := await pull(broker, 1, wait=30):
        seen += texts(taken)
        await settle(broker, taken[0], Verb.ACK)
    assert seen == ["a", "b", "c", "d"]
    await broker.aclose()


async def test_a_pull_that_is_cancelled_loses_nothing():
    broker, _ = await make(message_ordering=True)
    waiting = asyncio.ensure_future(pull(broker, wait=100))
    await asyncio.sleep(1)
    waiting.cancel()
    await publish(broker, "x", key="one")
    await asyncio.sleep(0.5)
    assert texts(await pull(broker, wait=5)) == ["x"]
    await broker.aclose()


async def test_pulling_from_what_is_gone_fails_as_ever():
    broker, _ = await make(message_ordering=True)
    assert await pull(broker) == []
    broker.broker.broker.broker.admin._registry.subscriptions.clear()
    with pytest.raises(LookupError):
        await pull(broker, wait=10)
    await broker.aclose()
