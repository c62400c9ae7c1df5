"""The bridge's specification, "Publishing Flow": envelope, subject, id, retries, result."""

import asyncio
import json

import pytest

from penstock import errors
from penstock.testing.bridge import BridgeKit


async def test_publishing_an_event_stores_its_envelope_on_the_apps_subject():
    async with BridgeKit("api", "worker") as kit:
        result = await kit.bridge.publish(
            resource_type="user",
            event_type="user.created",
            payload={"id": 1, "email": "user@example.com"},
        )
        [(topic, draft)] = kit.broker.published
        body = json.loads(draft.data)
    assert topic == "jetstream-bridge-stream" and draft.subject == "api.sync.worker"
    assert draft.message_id == result.event_id == body["event_id"]
    assert (result.success, result.duplicate, result.queued) == (True, False, False)
    assert result.subject == "api.sync.worker"
    assert list(body) == [
        "event_id", "schema_version", "event_type", "producer", "resource_id", "occurred_at",
        "trace_id", "resource_type", "payload",
    ]  # fmt: skip
    assert body["producer"] == "api" and body["resource_id"] == "1"


async def test_publishing_the_same_event_again_says_that_it_is_a_duplicate():
    async with BridgeKit() as kit:
        first = await kit.bridge.publish(event_type="a.b", payload={}, event_id="same")
        again = await kit.bridge.publish(event_type="a.b", payload={}, event_id="same")
        assert (first.duplicate, again.duplicate) == (False, True)
        assert again.success and len(kit.published()) == 1


async def test_a_publish_is_tried_again_while_the_broker_is_away():
    async with BridgeKit() as kit:
        kit.broker.unplug()
        publishing = asyncio.create_task(kit.bridge.publish(event_type="a.b", payload={}))
        await asyncio.sleep(0.05)
        kit.broker.plug_in()
        assert (await publishing).success
        kit.assert_published(count=1)


async def test_a_publish_that_fails_after_its_retries_says_so_in_its_result():
    async with BridgeKit() as kit:
        kit.broker.unplug()
        result = await kit.bridge.publish(event_type="a.b", payload={})
        assert not result.success
        assert isinstance(result.error, errors.UnavailableError)
        assert kit.published() == []


async def test_a_stream_that_is_gone_is_made_again_where_we_may():
    async with BridgeKit() as kit:
        await kit.broker.admin.delete_topic("jetstream-bridge-stream")
        assert (await kit.bridge.publish(event_type="a.b", payload={})).success
        kit.assert_published(count=1)
        assert await kit.bridge.problems() == []
    async with BridgeKit(auto_provision=False) as kit:
        result = await kit.bridge.publish(event_type="a.b", payload={})
        assert isinstance(result.error, errors.NotFoundError)
        assert await kit.broker.admin.list_topics() == []


async def test_events_are_published_from_many_tasks_at_once():
    async with BridgeKit() as kit:
        results = await asyncio.gather(
            *(kit.bridge.publish(event_type="user.created", payload={"id": n}) for n in range(50))
        )
        assert len({result.event_id for result in results}) == 50
        assert sorted(int(event.resource_id) for event in kit.published()) == list(range(50))


async def test_what_cannot_be_an_event_is_refused_at_once():
    async with BridgeKit() as kit:
        with pytest.raises(errors.InvalidArgumentError, match="payload"):
            await kit.bridge.publish(event_type="a.b", payload=[1, 2])
        with pytest.raises(errors.InvalidArgumentError, match="needs the outbox"):
            await kit.bridge.publish(event_type="a.b", payload={}, connection=object())


async def test_trace_context_goes_along():
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with BridgeKit() as kit:
        await kit.bridge.publish(event_type="a.b", payload={}, traceparent=parent)
        [(_, draft)] = kit.broker.published
        assert draft.attributes["traceparent"] == parent
        assert kit.published()[0].trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_the_current_span_is_the_trace_context():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("tests")
    async with BridgeKit() as kit:
        with tracer.start_as_current_span("registering") as span:
            await kit.bridge.publish(event_type="a.b", payload={})
        [(_, draft)] = kit.broker.published
        assert f"{span.get_span_context().span_id:016x}" in draft.attributes["traceparent"]
        assert trace.get_current_span().get_span_context().is_valid is False


async def test_a_lazy_bridge_connects_when_it_is_first_used():
    async with BridgeKit(lazy_connect=True) as kit:
        assert kit.bridge.connection.state.value == "disconnected"
        await kit.bridge.publish(event_type="a.b", payload={})
        assert kit.bridge.connection.state.value == "connected"


async def test_without_auto_provision_nothing_is_created():
    async with BridgeKit(auto_provision=False) as kit:
        assert await kit.broker.admin.list_topics() == []
        assert len(await kit.bridge.problems()) == 3
        done = await kit.bridge.provision()
        assert len(done.changed) == 3 and await kit.bridge.problems() == []


async def test_starting_and_closing_twice_is_safe():
    kit = BridgeKit()
    await kit.bridge.aclose()
    async with BridgeKit() as kit:
        await kit.bridge.startup()
        await kit.bridge.aclose()
        await kit.bridge.aclose()
        with pytest.raises(errors.ClosedError, match="make a new one"):
            await kit.bridge.startup()


def test_a_misspelt_setting_is_named():
    with pytest.raises(errors.InvalidArgumentError, match="no setting use_outbux"):
        BridgeKit(use_outbux=True)
