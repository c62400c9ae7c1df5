"""Options are typed: a misspelling or a wrong type is an error before anything runs."""

import subprocess
import sys
from dataclasses import fields
from math import inf, nan
from pathlib import Path

import pytest

from penstock import (
    App,
    Backoff,
    DeadLetterPolicy,
    FlowControl,
    LeaseExtension,
    ManagedPublisher,
    Message,
    PublisherListener,
    PublishRetry,
    PubSub,
    RetryPolicy,
    Streaming,
    SubscriberOptions,
)
from penstock.client import TopicOptions
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.consuming.middleware import deduplicate, logs, rate_limit, retry
from penstock.consuming.middleware.deduplication import SeenHere
from penstock.errors import InvalidArgumentError
from penstock.subscribing.options import StreamOptions, SubscriptionOptions
from tests.support.scenes import orders

ROOT = Path(__file__).parents[2]

PROGRAM = """
from penstock import (
    Backoff, DeadLetterPolicy, FlowControl, LeaseExtension, MessageStream, PubSub, RetryPolicy,
    Streaming, SubscriberOptions,
)

async def right(pubsub: PubSub) -> None:
    topic = await pubsub.topic("orders").create(message_retention=5, routed_attributes=["stage"])
    sub = topic.subscription(
        "billing", ack_deadline=60, message_ordering=True, enable_exactly_once_delivery=True,
        flow_control=FlowControl(max_messages=5), streaming=Streaming(), backoff=Backoff(),
        lease_extension=LeaseExtension(), filter="attributes:a", message_retention=60,
        dead_letter_policy=DeadLetterPolicy(topic="dead"), retry_policy=RetryPolicy(),
    )
    pubsub.subscription("billing", topic="orders", ack_deadline=None, retain_acked_messages=True)
    sub.set_options(flow_control=FlowControl(max_messages=1), lease_extension=None)
    await topic.ensure(message_retention=5, subjects=["a.*"])
    await (await sub.ensure()).update(retry_policy=None, ack_deadline=5)
    MessageStream(sub, SubscriberOptions()).set_options(ack_deadline=5)

async def wrong(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders")
    topic.subscription("billing", ack_dedline=60)  # wrong
    topic.subscription("billing", ack_deadline="soon")  # wrong
    pubsub.subscription("billing", message_odering=True)  # wrong
    pubsub.subscription("billing", flow_control=1000)  # wrong
    sub = pubsub.subscription("billing")
    sub.set_options(filter="attributes:a")  # wrong
    sub.set_options(streaming=5)  # wrong
    MessageStream(sub).set_options(ack_deadlines=5)  # wrong
    await topic.create(message_retentoin=5)  # wrong
    await topic.create(duplicate_window="long")  # wrong
    await topic.ensure(duplicate_windw=5)  # wrong
    await topic.update(work_queue="yes")  # wrong
    await sub.update(retry_polcy=None)  # wrong
"""


def test_mypy_sees_what_is_misspelt_and_what_has_the_wrong_type(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(program)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {int(line.split(":")[1]) for line in ran.stdout.splitlines() if ": error:" in line}
    wrong = {n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert len(wrong) == 12
    assert found == wrong, ran.stdout + ran.stderr


def test_the_keywords_are_the_fields_of_what_they_become():
    stream = {field.name for field in fields(SubscriberOptions)}
    broker = {field.name for field in fields(SubscriptionConfig)} - {"name", "topic"}
    assert stream == StreamOptions.__annotations__.keys()
    assert stream | broker == SubscriptionOptions.__annotations__.keys()
    topic = {field.name for field in fields(TopicConfig)} - {"name"}
    assert topic == TopicOptions.__annotations__.keys()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("ack_dedline", "ack_deadline"), ("filters", "filter"), ("flow_controll", "flow_control")],
)
async def test_an_error_names_the_nearest_right_spelling(given, meant):
    async with PubSub() as pubsub:
        with pytest.raises(InvalidArgumentError, match=f"no option {given}; did you mean {meant}"):
            pubsub.subscription("billing", **{given: 5})


async def test_the_same_for_options_that_change_later():
    async with orders() as (_, sub):
        with pytest.raises(InvalidArgumentError, match="did you mean streaming"):
            sub.set_options(steaming=5)
        with pytest.raises(InvalidArgumentError, match="cannot change filter while it exists"):
            sub.set_options(filter="attributes:a")
        sub.open()
        assert sub.stream is not None
        with pytest.raises(InvalidArgumentError, match="did you mean ack_deadline"):
            sub.stream.set_options(ack_dedline=5)


class Acks:
    def acked(self, _flight):
        pass


class Silent(PublisherListener):
    pass


def publisher(**options):
    return ManagedPublisher(PubSub(), **options)


def topic_config(**options):
    return TopicConfig(name="orders", **options)


def dead_letter_policy(**options):
    return DeadLetterPolicy(topic="dead", **options)


def app(**options):
    declared = App(**options)
    declared.subscriber("orders", "billing")(_plain)
    return declared.bindings()


def subscriber(**options):
    declared = App()
    declared.subscriber("orders", "billing", **options)(_plain)
    return declared.bindings()


def _plain(message: Message) -> None:
    pass


def paced(**options):
    return rate_limit(**{"per_second": 5, **options})


NO_NUMBERS = [True, False, nan, inf, -inf, -1, "x", b"x", [], object()]
NO_SECONDS = [*NO_NUMBERS, 10**12]
NO_FLAGS = [0, 1, "no", "", None, []]
NO_VALUES = [0, 5, True, "x", [], object()]


@pytest.mark.parametrize(
    ("make", "option", "right", "wrong"),
    [
        (PublishRetry, "attempts", [1], [*NO_NUMBERS, 0, 2.5]),
        (PublishRetry, "backoff", [0.001, 5], [*NO_SECONDS, 0, None]),
        (PublishRetry, "maximum_backoff", [5, 60.0], [*NO_SECONDS, 0, None]),
        (PublishRetry, "deadline", [0, 0.5, None], NO_SECONDS),
        (PublishRetry, "retry_on", [lambda error: True], NO_VALUES),
        (Backoff, "initial", [0.001, 5], [*NO_SECONDS, 0, None]),
        (Backoff, "maximum", [5, 60.0], [*NO_SECONDS, 0, None]),
        (publisher, "retry", [PublishRetry(), None], NO_VALUES),
        (publisher, "listener", [Silent(), Acks(), None], [*NO_VALUES, Silent]),
        (publisher, "pause_failed_keys", [True, False], NO_FLAGS),
        (publisher, "wait_timeout", [5, 0.5], [*NO_SECONDS, 0, None]),
        (publisher, "max_in_flight", [5], [*NO_NUMBERS, 0, None]),
        (dead_letter_policy, "max_delivery_attempts", [1, 100], [*NO_NUMBERS, 0, 101, 2.5, None]),
        (RetryPolicy, "minimum_backoff", [0, 5], [*NO_SECONDS, None]),
        (LeaseExtension, "jitter", [0, 0.5], [*NO_NUMBERS, 1, None]),
        (LeaseExtension, "interval", [5], [*NO_SECONDS, 0, None]),
        (Streaming, "max_streams", [5], [*NO_NUMBERS, 0, None]),
        (FlowControl, "max_bytes", [5], [*NO_NUMBERS, 0, None]),
        (FlowControl, "allow_excess_messages", [True, False], NO_FLAGS),
        (SubscriberOptions, "message_ordering", [True, False], NO_FLAGS),
        (topic_config, "work_queue", [True, False], NO_FLAGS),
        (app, "retry", [RetryPolicy(), None], NO_VALUES),
        (app, "max_attempts", [5, None], [*NO_NUMBERS, 0, 2.5]),
        (app, "concurrency", [5, None], [*NO_NUMBERS, 0, 2.5]),
        (app, "title", ["shop", None], [5, True, b"x", []]),
        (app, "version", ["2"], [5, True, b"x", [], None]),
        (subscriber, "blocking", [True, False], NO_FLAGS),
        (subscriber, "middleware", [(), []], [5, True, None, "x"]),
        (retry, "backoff", [Backoff()], [*NO_VALUES, None]),
        (paced, "per_second", [0.5, 5], [*NO_NUMBERS, 0, None]),
        (logs, "level", [0, 20], [*NO_NUMBERS, 2.5, None]),
        (deduplicate, "key", [lambda message: "x"], NO_VALUES),
        (deduplicate, "store", [SeenHere(), None], NO_VALUES),
    ],
)
def test_what_an_option_cannot_be_is_refused_by_its_name(make, option, right, wrong):
    for value in right:
        make(**{option: value})
    for value in wrong:
        with pytest.raises(InvalidArgumentError, match=option):
            make(**{option: value})
