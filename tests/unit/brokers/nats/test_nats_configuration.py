"""Topics and subscriptions as streams and consumers: read back, and changed."""

from dataclasses import replace

import pytest

from penstock import DeadLetterPolicy, ServerName
from penstock.brokers.nats.protocol.configuration import (
    stream_config,
    topic_config,
    updated_stream,
)
from penstock.brokers.nats.protocol.consumers import (
    consumer_config,
    consumer_of,
    updated_consumer,
)
from penstock.clock import NS
from penstock.config import DAY, SubscriptionConfig, TopicConfig

ORDERS = TopicConfig(name="orders")
BILLING = SubscriptionConfig(name="billing", topic="orders")


def stream(config, **theirs):
    return {"config": {"num_replicas": 1, **stream_config(config), **theirs}}


def consumer(config, routed=(), **theirs):
    made = {**consumer_config(config, routed, 1), **theirs}
    return {"stream_name": "orders", "name": "billing", "config": made}


@pytest.mark.parametrize(
    "config",
    [
        ORDERS,
        replace(ORDERS, message_retention=60.0, duplicate_window=120.0),
        replace(ORDERS, duplicate_window=0.0),
        replace(ORDERS, message_retention=1000 / 3, duplicate_window=10 / 7),
        replace(ORDERS, work_queue=True),
        replace(ORDERS, routed_attributes=("stage",)),
        replace(ORDERS, subjects=("a.*", "b.>")),
    ],
)
def test_what_was_asked_for_is_read_back(config):
    assert topic_config(stream(config)) == replace(config, replicas=1)


def test_what_others_change_is_read_and_not_what_was_asked_for_once():
    asked = replace(ORDERS, message_retention=60.0)
    assert topic_config(stream(asked, max_age=90 * NS)).message_retention == 90
    assert topic_config(stream(ORDERS, max_age=0)).message_retention == 0
    assert topic_config(stream(ORDERS, max_age=int(60 * DAY) * NS)).message_retention == 31 * DAY
    assert topic_config(stream(ORDERS, duplicate_window=7 * NS)).duplicate_window == 7
    idle = consumer_of(consumer(BILLING, inactive_threshold=90 * NS)).config
    assert idle.expires_after == 90
    assert consumer_of(consumer(replace(BILLING, expires_after=5.0))).config.expires_after == 5


def test_a_change_of_a_stream_is_that_change_alone():
    before = stream(ORDERS, max_msgs=5, max_age=0, metadata={"theirs": "x"})
    known = topic_config(before)
    after = updated_stream(before, replace(known, duplicate_window=5.0))
    changed = {key for key in after if after[key] != before["config"].get(key)}
    assert changed == {"duplicate_window", "metadata"}
    assert after["metadata"]["theirs"] == "x"
    assert updated_stream(before, replace(known, replicas=3))["num_replicas"] == 3
    assert updated_stream(before, known) == before["config"]


def test_a_change_of_a_consumer_is_that_change_alone():
    before = consumer(BILLING, max_ack_pending=7, deliver_policy="last")
    policy = DeadLetterPolicy(topic=ServerName("1"))
    wanted = replace(BILLING, ack_deadline=5.0, replicas=3, dead_letter_policy=policy)
    after = updated_consumer(before, wanted, ())
    changed = {key for key in after if after[key] != before["config"].get(key)}
    assert changed == {"ack_wait", "num_replicas", "metadata"}
    assert consumer_of({**before, "config": after}).config == wanted


def test_a_new_filter_brings_its_subjects_and_none_brings_all():
    one = replace(BILLING, filter='attributes.stage = "a"')
    before = consumer(one, ("stage",))
    assert before["config"]["filter_subjects"] == ["orders", "orders.a"]
    other = updated_consumer(before, replace(one, filter='attributes.stage = "b"'), ("stage",))
    assert other["filter_subjects"] == ["orders", "orders.b"]
    everything = updated_consumer(before, replace(one, filter=""), ("stage",))
    assert everything["filter_subjects"] == ["orders", "orders.>"]
    plain = updated_consumer(consumer(BILLING), one, ())
    assert "filter_subjects" not in plain and "filter_subject" not in plain
