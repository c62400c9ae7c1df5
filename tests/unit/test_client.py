"""The client's edges: what is exported, and what bad input says."""

import importlib
import subprocess
import sys

import pytest

import penstock
from penstock import FlowControl, LeaseExtension, PubSub, Streaming, connect, errors
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.testing import VirtualClock
from tests.support.scenes import orders


def test_everything_public_is_exported_and_documented():
    for name in penstock.__all__:
        member = getattr(penstock, name)
        assert member.__doc__, name
    assert penstock.__all__ == sorted(penstock.__all__, key=lambda name: (name.islower(), name))


def test_importing_penstock_needs_msgspec_and_the_standard_library_only():
    script = (
        "import sys; import penstock; "
        "print(*{m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name for name in out.stdout.split() if not name.startswith("_")}
    assert loaded <= {"penstock", "msgspec", "typing_extensions", "sitecustomize"}


def test_every_error_has_its_code_and_place_in_the_tree():
    documented = errors.__doc__ or ""
    for name in errors.__all__:
        error = getattr(errors, name)
        assert issubclass(error, PenstockError)
        assert name in documented
    assert errors.InvalidArgumentError.code == 3
    assert errors.SubscriptionNotFoundError("billing").code == 5
    assert errors.UnavailableError.retryable
    assert not errors.PermissionDeniedError.retryable


@pytest.mark.parametrize("url", ["", "memory", "kafka", None, 5])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InvalidArgumentError, match="memory://"):
        PubSub(url)


async def test_an_unknown_scheme_is_refused_without_showing_the_address():
    with pytest.raises(InvalidArgumentError, match="kafka://") as caught:
        await connect("kafka://user:password@host")
    assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ack_deadline": 0}, "above 0"),
        ({"ack_deadline": 601}, "601"),
        ({"ack_deadline": "60"}, "str"),
        ({"flow_control": {"max_messages": 5}}, "flow_control"),
        ({"streaming": 5}, "streaming"),
        ({"message_ordering": "yes"}, "message_ordering"),
        ({"lease_extension": 10}, "lease_extension"),
        ({"dead_letter_policy": "dead"}, "dead_letter_policy"),
        ({"retry_policy": 10}, "retry_policy"),
        ({"filter": 5}, "filter"),
        ({"max_messages": 5}, "max_messages"),
    ],
)
async def test_bad_options_are_refused_when_they_are_given(options, said):
    async with orders() as (topic, _):
        with pytest.raises(InvalidArgumentError, match=said) as caught:
            topic.subscription("new-one", **options)
        assert caught.value.code == 3
        assert (await topic.describe()).subscriptions == ("billing",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Streaming(max_streams=0),
        lambda: Streaming(high_water_mark=-1),
        lambda: LeaseExtension(interval=0),
        lambda: LeaseExtension(jitter=1),
        lambda: LeaseExtension(max_total=1, interval=5),
        lambda: FlowControl(max_bytes="1"),
    ],
)
def test_impossible_options_are_refused(make):
    with pytest.raises(InvalidArgumentError):
        make()


async def test_bad_names_are_refused_by_every_handle():
    async with PubSub(clock=VirtualClock()) as pubsub:
        with pytest.raises(InvalidArgumentError, match="'x'"):
            pubsub.topic("x")
        with pytest.raises(InvalidArgumentError, match="'goog-sub'"):
            pubsub.subscription("goog-sub")
        with pytest.raises(InvalidArgumentError, match="'a b'"):
            pubsub.subscription("billing", topic="a b")
        with pytest.raises(InvalidArgumentError, match="topic="):
            await pubsub.subscription("billing").create()
        assert await pubsub.topics() == []


async def test_bad_events_and_listeners_are_refused():
    async with orders() as (_, sub):
        with pytest.raises(InvalidArgumentError, match=r"'massage'.*message, error, close"):
            sub.on("massage", print)
        with pytest.raises(InvalidArgumentError, match="massage"):
            sub.on("massage")
        with pytest.raises(InvalidArgumentError, match="callable"):
            sub.on("message", 5)
        sub.off("message", print)


async def test_publishing_something_impossible_stores_nothing():
    async with orders() as (topic, sub):
        for arguments in ({"data": "text"}, {"attributes": {"a": "\n"}}, {"ordering_key": 1}):
            with pytest.raises(InvalidArgumentError):
                await topic.publish_message(**arguments)
        assert (await sub.describe()).backlog == 0


async def test_payloads_do_not_show_in_what_might_be_logged():
    async with orders() as (topic, sub):
        received = []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        sub.open()
        await topic.publish_message(b"secret", {"token": "secret"})
        async for _ in _until(received):
            pass
        assert "secret" not in repr(received[0]) + repr(topic) + repr(sub)


async def _until(condition):
    import asyncio

    while not condition:
        yield
        await asyncio.sleep(0)


async def test_a_handle_knows_itself():
    async with orders() as (topic, sub):
        assert repr(topic) == "<Topic 'orders'>"
        assert repr(sub) == "<Subscription 'billing' of 'orders', not open>"
        assert (sub.name, sub.topic, topic.name) == ("billing", "orders", "orders")


def test_the_version_is_one():
    assert importlib.metadata.version("penstock") == penstock.__version__
