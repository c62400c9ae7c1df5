"""Topics and subscriptions made what they should be, whoever comes first."""

import copy

import pytest

from penstock import DeadLetterPolicy, PubSub, RetryPolicy, ServerName
from penstock.brokers.memory import MemoryBroker
from penstock.config import SubscriptionConfig, SubscriptionName, TopicConfig
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from penstock.message import AckResponse
from penstock.testing import VirtualClock
from penstock.testing.waiting import eventually


def on(broker: MemoryBroker) -> PubSub:
    return PubSub(broker=broker, clock=VirtualClock())


async def test_a_refusal_tells_every_difference_and_changes_none():
    async with on(MemoryBroker(VirtualClock())) as pubsub:
        topic = await pubsub.topic("orders").create(message_retention=60)
        with pytest.raises(FailedPreconditionError) as caught:
            await topic.ensure(work_queue=True, message_retention=120)
        assert str(caught.value).startswith(
            "Topic 'orders' exists and is not as asked for: message_retention is 60, not 120; "
            "work_queue is False, not True. The memory broker cannot change work_queue: "
        )
        assert (await topic.describe()).config.message_retention == 60


async def test_a_subscription_of_another_topic_is_not_taken_over():
    async with on(MemoryBroker(VirtualClock())) as pubsub:
        await (await pubsub.topic("orders").create()).subscription("billing").create()
        other = await pubsub.topic("others").create()
        with pytest.raises(FailedPreconditionError, match="topic is 'orders', not 'others'"):
            await other.subscription("billing").ensure()


async def test_a_change_that_is_not_permitted_is_refused_with_the_difference():
    broker = MemoryBroker(VirtualClock())

    async def denied(config):
        raise PermissionDeniedError("You may not")

    async with on(broker) as pubsub:
        topic = await pubsub.topic("orders").create(message_retention=60)
        sub = await topic.subscription("billing", ack_deadline=20).create()
        broker.admin.update_topic = broker.admin.update_subscription = denied
        with pytest.raises(FailedPreconditionError, match=r"retention is 60, not 120.*You may not"):
            await topic.ensure(message_retention=120)
        with pytest.raises(FailedPreconditionError, match=r"ack_deadline is 20, not 30, and may"):
            await topic.subscription("billing", ack_deadline=30).ensure()
        await topic.subscription("billing", ack_deadline=20).ensure()
        assert (await sub.describe()).config.ack_deadline == 20


async def test_what_was_not_asked_for_is_left_alone():
    async with on(MemoryBroker(VirtualClock())) as pubsub:
        topic = await pubsub.topic("orders").create(message_retention=60, subjects=["a", "b"])
        policy = RetryPolicy(minimum_backoff=1)
        await topic.subscription("billing", retry_policy=policy, ack_deadline=5).create()
        await topic.ensure(duplicate_window=5, replicas=None)
        await topic.ensure(subjects=["a", "b"])
        await topic.subscription("billing", ack_deadline=10).ensure()
        config = (await topic.describe()).config
        assert (config.message_retention, config.duplicate_window) == (60, 5)
        assert config.subjects == ("a", "b")
        found = (await pubsub.subscription("billing").describe()).config
        assert (found.ack_deadline, found.retry_policy) == (10, policy)


@pytest.mark.parametrize("same", [True, False])
async def test_somebody_who_makes_it_meanwhile_is_no_error_if_they_want_the_same(same):
    broker = MemoryBroker(VirtualClock())
    describe = broker.admin.describe_topic

    async def just_before(topic):
        broker.admin.describe_topic = describe
        work_queue = not same
        await broker.admin.create_topic(TopicConfig(name=topic, work_queue=work_queue))
        raise NotFoundError("not yet")

    async with on(broker) as pubsub:
        broker.admin.describe_topic = just_before
        if same:
            await pubsub.topic("orders").ensure(work_queue=False)
        else:
            with pytest.raises(FailedPreconditionError, match="work_queue is True"):
                await pubsub.topic("orders").ensure(work_queue=False)


async def test_a_misspelt_option_is_named_before_anything_is_asked_of_the_broker():
    async with on(MemoryBroker(VirtualClock())) as pubsub:
        topic = pubsub.topic("orders")
        for attempt in (topic.ensure, topic.update):
            with pytest.raises(InvalidArgumentError, match="did you mean message_retention"):
                await attempt(message_retentoin=5)
        with pytest.raises(InvalidArgumentError, match="did you mean retry_policy"):
            await topic.subscription("billing").update(retry_polcy=None)
        with pytest.raises(InvalidArgumentError, match="flow_control"):
            await topic.subscription("billing").update(flow_control=None)
        assert not await topic.exists()


async def test_an_open_subscription_goes_on_by_what_it_is_changed_to():
    async with on(MemoryBroker(VirtualClock())) as pubsub:
        topic = await pubsub.topic("orders").create()
        dead = await pubsub.topic("dead").create()
        letters = await dead.subscription("letters").create()
        sub = await topic.subscription("billing", ack_deadline=60).create()
        responses, attempts = [], []

        async def handle(message):
            if message.data == b"twice":
                responses.append(await message.ack_with_response())
                responses.append(await message.ack_with_response())
            else:
                attempts.append(message.delivery_attempt)
                message.nack()

        sub.on("message", handle)
        sub.open()
        await sub.update(
            enable_exactly_once_delivery=True,
            ack_deadline=10,
            dead_letter_policy=DeadLetterPolicy(topic="dead", max_delivery_attempts=2),
        )
        await topic.publish_message(b"twice")
        await topic.publish_message(b"nacked")
        await eventually(lambda: len(responses) == 2 and len(attempts) == 2)
        assert responses == [AckResponse.SUCCESS, AckResponse.INVALID]
        assert (await letters.describe()).backlog == 1
        assert sub.stream.deliveries.ack_deadline == 10
        await sub.update(dead_letter_policy=None)
        assert (await sub.describe()).config.dead_letter_policy is None


async def test_a_new_filter_counts_for_what_waits_behind_its_key_and_for_what_comes_back():
    async with on(MemoryBroker(VirtualClock())) as pubsub:
        topic = await pubsub.topic("orders").create()
        sub = await topic.subscription("billing", message_ordering=True, ack_deadline=10).create()
        for kind in ("old", "old", "new", "old", "new"):
            await topic.publish_message(kind.encode(), {"kind": kind}, ordering_key="k")
        broker = await pubsub.broker()
        [lent] = await broker.pull("billing", max_messages=9, max_bytes=1000, wait=0)
        await sub.update(filter='attributes.kind = "new"')
        assert await broker.pull("billing", max_messages=9, max_bytes=1000, wait=0) == []
        seen = []
        async for message in sub:  # The one on loan expires, and is not wanted any more.
            seen.append((message.data, message.delivery_attempt))
            message.ack()
            if len(seen) == 2:
                break
        assert lent.record.data == b"old"
        assert seen == [(b"new", 1), (b"new", 1)]
        await sub.close()
        assert (await sub.describe()).backlog == 0


def test_a_name_that_knows_its_topic_is_text_that_travels():
    name = SubscriptionName(ServerName("1"), "orders")
    again = copy.copy(name)
    assert (again, again.topic, type(again.name)) == ("1", "orders", ServerName)
    config = SubscriptionConfig(name="billing", topic="orders")
    assert (config.address, config.address.topic) == ("billing", "orders")


@pytest.mark.parametrize("name", ["", "a b", "a\r\nb", "x" * 256])
def test_a_name_that_nobody_could_have_given_is_refused(name):
    with pytest.raises(InvalidArgumentError):
        TopicConfig(name=ServerName(name))
