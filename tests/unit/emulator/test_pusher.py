"""One push subscription, and endpoints that do what they should not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from penstock import Draft
from penstock.brokers.memory import MemoryBroker
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.emulator.backend import Backend
from penstock.emulator.pushing.pusher import Pusher
from penstock.emulator.pushing.pushers import Pushers
from penstock.emulator.pushing.tokens import Tokens
from penstock.emulator.store import Store
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.googlepubsub.messages import PushConfig
from penstock.googlepubsub.names import Names
from penstock.testing import VirtualClock, eventually


class Scene:
    """A subscription that is pushed to what `answer` says; `requests` counts its requests."""

    def __init__(self, answer: Callable[[httpx.Request], Any]) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(self.clock)
        self.backend = Backend(self.broker, Names("p"), Store(), self.clock)
        self.requests = 0
        self._answer = answer

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return self._answer(request)

    @asynccontextmanager
    async def pushing(self, messages: int = 1) -> AsyncIterator[asyncio.Task[None]]:
        await self.broker.admin.create_topic(TopicConfig(name="topic"))
        config = SubscriptionConfig(name="sub", topic="topic", ack_deadline=10)
        await self.broker.admin.create_subscription(config)
        await self.broker.publish("topic", [Draft.of(b"x")] * messages)
        async with httpx.AsyncClient(transport=httpx.MockTransport(self._handle)) as client:
            where = PushConfig(push_endpoint="http://endpoint/")
            pusher = Pusher(self.backend, client, Tokens(self.clock), "sub", where)
            running = asyncio.ensure_future(pusher.run())
            yield running
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def backlog(self) -> int:
        return (await self.broker.admin.describe_subscription("sub")).backlog


class Endless(httpx.AsyncByteStream):
    """A body of which there is always more."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(1)
            yield b"x"


async def test_an_endpoint_that_refuses_is_asked_ever_more_slowly():
    scene = Scene(lambda _: httpx.Response(500))
    async with scene.pushing():
        await asyncio.sleep(600)
    # 0.1, 0.2, 0.4 … 60 seconds at most, half of it on average.
    assert 10 < scene.requests < 100


async def test_an_endpoint_that_cannot_even_be_asked_is_one_that_refuses():
    def fail(_: httpx.Request) -> httpx.Response:
        raise OverflowError("port must be 0-65535")

    scene = Scene(fail)
    async with scene.pushing():
        await asyncio.sleep(600)
    assert 10 < scene.requests < 100
    assert await scene.backlog() == 1


async def test_an_answer_that_never_ends_keeps_nothing_back():
    scene = Scene(lambda _: httpx.Response(200, stream=Endless()))
    async with scene.pushing(messages=5):
        await asyncio.sleep(5)
    assert (scene.requests, await scene.backlog()) == (5, 0)


async def test_pushing_goes_on_when_the_broker_is_back_and_ends_when_there_is_nothing_left():
    scene = Scene(lambda _: httpx.Response(204))
    real, failures = scene.broker.pull, 3

    async def pull(*args: Any, **options: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise UnavailableError("the broker is away")
        return await real(*args, **options)

    scene.broker.pull = pull  # type: ignore[method-assign]
    async with scene.pushing() as running:
        await eventually(lambda: scene.requests == 1)
        await scene.broker.admin.detach_subscription("sub")
        await asyncio.wait_for(running, 100)


@pytest.mark.parametrize(
    "endpoint", ["ftp://x", "nowhere", "http://", "http://x:99999/", "http://x:port/", "http://["]
)
async def test_what_cannot_be_an_endpoint_is_refused_by_its_field(endpoint):
    scene = Scene(lambda _: httpx.Response(204))
    pushers = Pushers(scene.backend, Tokens(scene.clock))
    with pytest.raises(InvalidArgumentError, match=r"push_config\.push_endpoint"):
        await pushers.check(PushConfig(push_endpoint=endpoint))
