"""What is asked of a broker and not claimed: refused in one place, for every broker alike."""

from dataclasses import fields

import pytest

from penstock import (
    Capabilities,
    DeadLetterPolicy,
    Draft,
    Expect,
    PushDelivery,
    Receipt,
    RetryPolicy,
)
from penstock.brokers.memory import MemoryBroker
from penstock.capabilities import check_subscription, check_topic, publish, require
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.errors import TopicNotFoundError, UnimplementedError
from penstock.message import PublishFault
from penstock.testing import VirtualClock


class Modest(MemoryBroker):
    name = "modest"
    capabilities = Capabilities()


async def modest() -> Modest:
    broker = Modest(VirtualClock())
    await broker.admin.create_topic(TopicConfig(name="orders"))
    return broker


async def test_a_refusal_names_the_wish_the_capability_the_broker_and_a_way_out():
    with pytest.raises(UnimplementedError) as caught:
        require(await modest(), "filters", "filter of subscription 'billing'")
    assert str(caught.value).startswith(
        "filter of subscription 'billing' needs 'filters', which the modest broker does not claim; "
        "leave it out"
    )


async def test_drafts_that_are_refused_keep_the_others_from_nothing_and_each_its_place():
    broker = await modest()
    drafts = [
        Draft.of(b"0"),
        Draft.of(b"1", ttl=5),
        Draft.of(b"2", expect=Expect(last_sequence=0)),
        Draft.of(b"3"),
        Draft.of(b"4", ttl=5, expect=Expect()),
    ]
    answers = await publish(broker, "orders", drafts)
    assert [type(answer) for answer in answers] == [
        Receipt,
        PublishFault,
        PublishFault,
        Receipt,
        PublishFault,
    ]
    assert [answer.sequence for answer in answers if isinstance(answer, Receipt)] == [1, 2]
    assert "'ttl'" in str(answers[1].error) and "'expectations'" in str(answers[2].error)


async def test_it_is_told_that_those_were_sent_which_are_not_refused():
    drafts = [Draft.of(b"0", ttl=5), Draft.of(b"1"), Draft.of(b"2", ttl=5), Draft.of(b"3")]
    told = []
    await publish(await modest(), "orders", drafts, told.extend)
    assert told == [1, 3]


async def test_what_is_claimed_goes_through_as_it_is():
    class Proud(Modest):
        capabilities = Capabilities(expectations=True)

    broker = Proud(VirtualClock())
    await broker.admin.create_topic(TopicConfig(name="orders"))
    draft = Draft.of(b"x", expect=Expect(last_sequence=0))
    [answer] = await publish(broker, "orders", [draft])
    assert isinstance(answer, Receipt)


async def test_a_missing_topic_is_told_even_when_some_drafts_are_refused():
    with pytest.raises(TopicNotFoundError):
        await publish(await modest(), "missing", [Draft.of(ttl=5), Draft.of()])


async def test_a_topic_may_be_without_a_duplicate_window_where_there_is_none():
    broker = await modest()
    check_topic(broker, TopicConfig(name="plain"))
    check_topic(broker, TopicConfig(name="plain", duplicate_window=0))
    with pytest.raises(UnimplementedError, match="'dedupe'"):
        check_topic(broker, TopicConfig(name="asking", duplicate_window=60))


# What every broker can, what the client does where a broker cannot, and what is kept "at least".
FOR_EVERY_BROKER = {
    TopicConfig: {"name", "routed_attributes"},
    SubscriptionConfig: {"name", "topic", "ack_deadline", "message_ordering", "message_retention"},
}
WISHES = {
    "duplicate_window": 60,
    "message_retention": 60,
    "replicas": 2,
    "subjects": ("orders.>",),
    "work_queue": True,
    "filter": "attributes:wanted",
    "dead_letter_policy": DeadLetterPolicy(topic="dead"),
    "retry_policy": RetryPolicy(),
    "enable_exactly_once_delivery": True,
    "push": PushDelivery(subject="there"),
    "retain_acked_messages": True,
    "expires_after": 60,
}


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (kind, field.name)
        for kind, free in FOR_EVERY_BROKER.items()
        for field in fields(kind)
        if field.name not in free
    ],
)
async def test_no_option_reaches_a_broker_that_does_not_claim_it(kind, option):
    broker = await modest()
    wish = {option: WISHES[option]}
    with pytest.raises(UnimplementedError, match="modest broker does not claim"):
        if kind is TopicConfig:
            check_topic(broker, TopicConfig(name="new", **wish))
        else:
            check_subscription(broker, SubscriptionConfig(name="new", topic="orders", **wish))
