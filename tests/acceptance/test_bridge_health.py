"""The bridge's specification, "Health Checks": its shape, its cache, its truth."""

import asyncio
import json
import threading

import pytest

from penstock import errors
from penstock.bridge import health as looking
from penstock.testing.bridge import BridgeKit


async def failing(_):
    raise TypeError("x")


async def test_health_has_the_shape_of_the_specification():
    async with BridgeKit("api", "worker") as kit:
        health = await kit.bridge.health_check()
    assert health["healthy"] is True
    assert health["connection"]["status"] == "connected"
    assert health["connection"].keys() >= {"status", "servers", "connected_at"}
    assert health["jetstream"] == {
        "streams": 2, "consumers": 1, "memory_bytes": 0, "storage_bytes": 0,
    }  # fmt: skip
    assert health["config"] == {
        "stream_name": "jetstream-bridge-stream",
        "app_name": "api",
        "destination_app": "worker",
        "use_outbox": False,
        "use_inbox": False,
        "use_dlq": True,
    }
    assert health["performance"].keys() == {"message_processing_time_ms", "last_health_check_ms"}
    assert json.loads(json.dumps(health)) == health


async def test_lag_dead_letters_and_handler_time_are_told():
    async with BridgeKit() as kit:
        for n in range(3):
            await kit.tell(event_type="a.b", payload={"id": n})
        health = await kit.bridge.health_check(skip_cache=True)
        assert health["consumer"]["lag"] == 3 and not health["consumer"]["receiving"]
        assert health["performance"]["message_processing_time_ms"] is None
        async with kit.bridge.consumer(failing) as consumer:
            await kit.processed()
            health = await kit.bridge.health_check(skip_cache=True)
            assert health["consumer"]["receiving"]
            assert consumer.running
        assert health["consumer"]["lag"] == 0
        assert health["dead_letters"] == {"stream": "jetstream-bridge-stream-dlq", "messages": 3}
        assert health["performance"]["message_processing_time_ms"] >= 0


async def test_it_is_looked_at_once_in_30_seconds_unless_asked(monkeypatch):
    at = [1000.0]
    monkeypatch.setattr(looking.time, "monotonic", lambda: at[0])
    async with BridgeKit() as kit:
        first = await kit.bridge.health_check()
        await kit.tell(event_type="a.b", payload={})
        at[0] += 29
        assert await kit.bridge.health_check() is first
        fresh = await kit.bridge.health_check(skip_cache=True)
        assert fresh["consumer"]["lag"] == 1
        at[0] += 31
        await kit.tell(event_type="a.b", payload={})
        assert (await kit.bridge.health_check())["consumer"]["lag"] == 2


async def test_a_broker_that_is_away_is_unhealthy_and_not_an_exception():
    async with BridgeKit() as kit:
        kit.broker.unplug()
        health = await kit.bridge.health_check(skip_cache=True)
        assert (health["healthy"], health["live"], health["ready"]) == (False, True, False)
        assert health["connection"]["status"] == "reconnecting"
        assert "unplugged" in health["errors"][0]
        kit.broker.plug_in()
        assert (await kit.bridge.health_check(skip_cache=True))["healthy"]


async def test_a_consumer_that_ended_by_itself_is_not_live():
    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(failing)
        await consumer.start()
        await consumer.receiving.wait()
        await kit.broker.admin.delete_subscription("api-workers")
        while not consumer.failed:
            await asyncio.sleep(0.01)
        health = await kit.bridge.health_check(skip_cache=True)
        assert not health["live"] and not health["healthy"]
        assert any("api-workers" in one for one in health["errors"])
        await kit.bridge.provision()
        health = await kit.bridge.health_check(skip_cache=True)
        assert health["errors"] == ["consumer: api-workers ended by itself; start it again"]


async def test_what_we_may_not_know_is_unknown_and_not_unhealthy(monkeypatch):
    async def denied(*_, **__):
        raise errors.PermissionDeniedError("no")

    async with BridgeKit() as kit:
        for name in ("usage", "describe_subscription"):
            monkeypatch.setattr(kit.broker.admin, name, denied)
        health = await kit.bridge.health_check(skip_cache=True)
        assert health["healthy"] and health["jetstream"] is None and health["consumer"] is None


async def test_a_closed_bridge_is_neither_live_nor_ready():
    async with BridgeKit() as kit:
        await kit.bridge.aclose()
        health = await kit.bridge.health_check(skip_cache=True)
        assert not health["live"] and not health["ready"]
        assert health["connection"]["status"] == "closed"


@pytest.mark.real_time
async def test_other_threads_may_ask_at_the_same_time():
    async with BridgeKit() as kit:
        found, problems = [], []

        def ask():
            try:
                found.append(asyncio.run(kit.bridge.health_check(skip_cache=True)))
            except Exception as error:
                problems.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.01)
        assert problems == []
        assert [health["healthy"] for health in found] == [True] * 8


@pytest.mark.real_time
async def test_another_thread_may_ask_before_there_is_a_connection(tmp_path):
    """It looks where the bridge is, and leaves the connection to it."""
    found = []
    url = f"sqlite:///{tmp_path}/app.db"
    async with BridgeKit(
        use_outbox=True, use_inbox=True, database_url=url, lazy_connect=True
    ) as kit:
        await asyncio.to_thread(
            lambda: found.append(asyncio.run(kit.bridge.health_check(skip_cache=True)))
        )
        assert kit.bridge.connection.loop is asyncio.get_running_loop()
    assert found[0]["outbox"]["pending"] == found[0]["inbox"]["processed"] == 0


async def test_what_does_not_even_end_when_cancelled_is_no_answer(monkeypatch):
    """As a driver whose server was stopped."""
    released = asyncio.Event()

    async def stubborn(*_):
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with BridgeKit() as kit:
        monkeypatch.setattr(kit.broker.admin, "describe_subscription", stubborn)
        async with asyncio.timeout(3600):
            health = await kit.bridge.health_check(skip_cache=True)
        released.set()
        assert health["errors"] == ["consumer: no answer within 10 s"]
