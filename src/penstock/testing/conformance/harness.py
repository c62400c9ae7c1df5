"""What a behaviour is given: a client of the broker under test, and names nobody else uses."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import pytest

from penstock import Message, PubSub, Subscription, Topic
from penstock.broker import Broker
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.message import AckResponse, Delivery, Settlement, Verb
from penstock.testing.clock import VirtualClock, run_real, run_virtual
from penstock.testing.waiting import eventually

_numbers = itertools.count(1)

Made = TypeVar("Made", Topic, Subscription)


class Harness:
    """One broker under test.

    `virtual` runs the behaviours in virtual time, which only a broker inside this process can
    follow. `second` is the unit of time they use: longer where the broker is coarse.
    """

    def __init__(self, url: str, *, virtual: bool = False, second: float = 1.0) -> None:
        self.url = url
        self.virtual = virtual
        self.second = second
        self.run_id = secrets.token_hex(3)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        (run_virtual if self.virtual else run_real)(main)

    def clock(self) -> Clock:
        return VirtualClock() if self.virtual else Clock()

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        async with PubSub(self.url, clock=self.clock()) as pubsub:
            scene = Scene(self, pubsub, await pubsub.broker())
            yield scene
            await scene.clean_up()


class Scene:
    """A client and what a behaviour makes with it."""

    def __init__(self, harness: Harness, pubsub: PubSub, broker: Broker) -> None:
        self.pubsub = pubsub
        self.broker = broker
        self.second = harness.second
        self._run_id = harness.run_id
        self._made: list[Topic | Subscription] = []

    def name(self, base: str) -> str:
        return f"{base}-{self._run_id}-{next(_numbers)}"

    async def topic(self, **options: Any) -> Topic:
        return await self.made(self.pubsub.topic(self.name("topic")), **options)

    async def subscription(self, topic: Topic, **options: Any) -> Subscription:
        return await self.made(topic.subscription(self.name("sub"), **options))

    async def made(self, handle: Made, **options: Any) -> Made:
        """Create it; it is deleted when the behaviour has been tried."""
        await handle.create(**options)
        self._made.append(handle)
        return handle

    async def pair(self, **options: Any) -> tuple[Topic, Subscription]:
        """A topic and a subscription on it."""
        topic = await self.topic()
        return topic, await self.subscription(topic, **options)

    def receive(
        self, subscription: Subscription, handle: Callable[[Message], Any] | None = None
    ) -> list[Message]:
        """Open it; the messages it delivers appear in the list, acked unless `handle` is given."""
        received: list[Message] = []

        def take(message: Message) -> Any:
            received.append(message)
            return message.ack() if handle is None else handle(message)

        subscription.on("message", take)
        subscription.open()
        return received

    async def pull(self, subscription: Subscription, count: int = 10) -> Sequence[Delivery]:
        """Straight from the port, waiting up to a second for the first."""
        return await self.broker.pull(
            subscription.name, max_messages=count, max_bytes=10**9, wait=self.second
        )

    async def settle(
        self,
        subscription: Subscription,
        delivery: Delivery,
        verb: Verb,
        seconds: float | None = None,
    ) -> AckResponse:
        settlement = Settlement(delivery.ack_id, verb, seconds)
        [response] = await self.broker.settle(subscription.name, [settlement])
        return response

    async def backlog_becomes(self, subscription: Subscription, count: int) -> None:
        """A broker may take a moment to count what was settled."""
        for _ in range(50):
            status = await subscription.describe()
            if status.backlog == count:
                return
            await self.seconds(0.05)
        raise AssertionError(f"The backlog is {status.backlog}, not {count}")

    async def seconds(self, count: float) -> None:
        """Let time pass."""
        await asyncio.sleep(count * self.second)

    async def eventually(self, condition: Callable[[], object], within: float = 10.0) -> None:
        await eventually(condition, within=within * self.second)

    async def clean_up(self) -> None:
        for made in reversed(self._made):
            if isinstance(made, Subscription):
                await made.close(timeout=0)
            with suppress(PenstockError):
                await made.delete()


Behaviour = Callable[[Any, Scene], Awaitable[None]]


def behaviour(*needs: str) -> Callable[[Behaviour], Callable[[Any, Harness], None]]:
    """A test of every broker whose capabilities include `needs`."""

    def decorate(test: Behaviour) -> Callable[[Any, Harness], None]:
        async def main(self: object, harness: Harness) -> None:
            async with harness.scene() as scene:
                capabilities = scene.broker.capabilities
                missing = [need for need in needs if not getattr(capabilities, need)]
                if missing:
                    pytest.skip(f"the broker does not claim {', '.join(missing)}")
                await test(self, scene)

        def run(self: object, harness: Harness) -> None:
            harness.run(main(self, harness))

        run.__name__ = test.__name__
        run.__qualname__ = test.__qualname__
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        return run

    return decorate
