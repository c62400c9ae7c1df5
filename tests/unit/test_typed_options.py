"""Options are typed: a misspelling or a wrong type is an error before anything runs."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from penstock import PubSub, SubscriberOptions
from penstock.client import TopicOptions
from penstock.config import SubscriptionConfig, TopicConfig
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
