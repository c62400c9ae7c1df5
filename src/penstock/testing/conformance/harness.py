"""What a behaviour is given: a client of the broker under test, and names nobody else uses."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pytest

from penstock import Message, PubSub, Subscription, Topic
from penstock.broker import Broker
from penstock.clock import Clock
from penstock.connect import connect
from penstock.errors import ClosedError, InvalidArgumentError, NotFoundError
from penstock.message import AckResponse, Delivery, Settlement, Verb
from penstock.testing.clock import VirtualClock, run_hasty, run_real, run_virtual
from penstock.testing.waiting import eventually

_numbers = itertools.count(1)

Made = TypeVar("Made", Topic, Subscription)


Connect = Callable[[Clock], Awaitable[Broker]]


class Harness:
    """One broker under test: where it is (`url`), or how to reach it.

    `connect` is called with the clock to keep time by, and returns a broker that is ready. It is
    called for each behaviour, and again by those that look whether a broker is durable: what it
    returns must then be the same topics and subscriptions.

    `virtual` runs the behaviours in virtual time, which only a broker inside this process can
    follow. `second` is the unit of time they use: longer where the broker is coarse. `speed` makes
    time pass that much faster, for a broker that does the same. `lacks`: capabilities that an
    adapter claims and the server behind it does not have.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        connect: Connect | None = None,
        virtual: bool = False,
        second: float = 1.0,
        speed: float = 1.0,
        lacks: Collection[str] = (),
    ) -> None:
        if url is not None and connect is None:
            connect = partial(_connect_to, url)
        elif url is not None or connect is None:
            raise InvalidArgumentError("A harness takes an address or a `connect`, one of the two")
        self._connect = connect
        self.virtual = virtual
        self.speed = speed
        self.lacks = lacks
        self.second = second
        self.run_id = secrets.token_hex(3)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        if self.speed != 1:
            run_hasty(main, self.speed)
        else:
            (run_virtual if self.virtual else run_real)(main)

    def clock(self) -> Clock:
        return VirtualClock() if self.virtual or self.speed != 1 else Clock()

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        clock = self.clock()
        async with self.opened(clock) as broker, PubSub(broker=broker, clock=clock) as pubsub:
            scene = Scene(self, pubsub, broker)
            yield scene
            await scene.clean_up()

    @asynccontextmanager
    async def opened(self, clock: Clock) -> AsyncIterator[Broker]:
        """One more connection."""
        broker = await self._connect(clock)
        try:
            yield broker
        finally:
            await broker.aclose()


async def _connect_to(url: str, clock: Clock) -> Broker:
    return await connect(url, clock=clock)


class Scene:
    """A client and what a behaviour makes with it."""

    def __init__(self, harness: Harness, pubsub: PubSub, broker: Broker) -> None:
        self.pubsub = pubsub
        self.broker = broker
        self.second = harness.second
        self._harness = harness
        self._run_id = harness.run_id
        self._made: list[Topic | Subscription] = []

    def another(self) -> AbstractAsyncContextManager[Broker]:
        """A second connection to the same broker."""
        return self._harness.opened(self.pubsub.clock)

    def name(self, base: str) -> str:
        return f"{base}-{self._run_id}-{next(_numbers)}"

    async def topic(self, **options: Any) -> Topic:
        return await self.made(self.pubsub.topic(self.name("topic")), **options)

    async def subscription(self, topic: Topic, **options: Any) -> Subscription:
        return await self.made(topic.subscription(self.name("sub"), **options))

    async def made(self, handle: Made, **options: Any) -> Made:
        """Create it; it is deleted when the behaviour has been tried."""
        await handle.create(**options)
        self.clean(handle)
        return handle

    def clean(self, handle: Topic | Subscription) -> None:
        """Delete it when the behaviour has been tried."""
        self._made.append(handle)

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
        for made in self._made:
            if isinstance(made, Subscription):
                await made.close(timeout=0)
        try:
            await self._delete_all(self.broker)
        except ClosedError:
            if self.broker.capabilities.durable:
                async with self.another() as broker:
                    await self._delete_all(broker)

    async def _delete_all(self, broker: Broker) -> None:
        while self._made:
            made = self._made[-1]
            is_topic = isinstance(made, Topic)
            delete = broker.admin.delete_topic if is_topic else broker.admin.delete_subscription
            with suppress(NotFoundError):
                await delete(made.name)
            self._made.pop()


Behaviour = Callable[[Any, Scene], Awaitable[None]]


def behaviour(
    *needs: str, lacks: str = ""
) -> Callable[[Behaviour], Callable[[Any, Harness], None]]:
    """A test of every broker whose capabilities include `needs`, and not what it `lacks`."""

    def decorate(test: Behaviour) -> Callable[[Any, Harness], None]:
        async def main(self: object, harness: Harness) -> None:
            async with harness.scene() as scene:
                capabilities = scene.broker.capabilities
                missing = [
                    need
                    for need in needs
                    if need in harness.lacks or not getattr(capabilities, need)
                ]
                if missing:
                    pytest.skip(f"the broker does not claim {', '.join(missing)}")
                if lacks and getattr(capabilities, lacks):
                    pytest.skip(f"the broker claims {lacks}")
                await test(self, scene)

        def run(self: object, harness: Harness) -> None:
            harness.run(main(self, harness))

        run.__name__ = test.__name__
        run.__qualname__ = test.__qualname__
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        run.needs, run.lacks = needs, lacks  # type: ignore[attr-defined]
        return run

    return decorate
