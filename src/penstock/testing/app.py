"""An app under test: all in memory, and every message dealt with before `publish` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType, UnionType
from typing import Any, Self, Union, get_args, get_origin

from penstock.client import PubSub
from penstock.clock import Clock
from penstock.config import DAY
from penstock.consuming import App
from penstock.consuming.bodies import decoder_of
from penstock.consuming.calling import Binding
from penstock.consuming.declaration import Function
from penstock.consuming.signature import Body, is_async
from penstock.dead_letters import DeadLetter
from penstock.message import Record
from penstock.outcomes import Reject, Retry
from penstock.testing.clock import VirtualClock, VirtualTimeLoop
from penstock.testing.waiting import settled

_FIRST_STEP, _LONGEST_STEP = 0.01, 5.0


class TestApp:
    """Runs an app on a broker in memory, in virtual time where the loop's time is.

        async with TestApp(app) as shop:
            await shop.publish("orders", Order(id=1))
            assert shop.calls(bill) == [Order(id=1)]
            assert shop.published("invoices") == [Invoice(order=1)]
            assert not shop.dead()

    `provide`: values by type instead of what provides them. Functions declared `blocking` run on
    the loop, so that virtual time waits for them.
    """

    __test__ = False  # Not a test, whatever its name begins with.

    def __init__(self, app: App, *, provide: Mapping[Any, Any] | None = None) -> None:
        self.app = app
        self._bindings = [self._recorded(one) for one in app.bindings(provide)]
        self._calls: dict[Function, list[Any]] = {}
        self._records: dict[str, list[Record]] = {}
        self._letters: list[DeadLetter] = []

    async def __aenter__(self) -> Self:
        virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
        pubsub = PubSub(clock=VirtualClock() if virtual else Clock())
        for name in self._topics():
            await pubsub.topic(name).create(message_retention=DAY)
        await self.app.start_on(pubsub, self._bindings, "ensure")
        await self.idle()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.app.stop(timeout=0 if error else 60)

    async def publish(self, topic: str, body: Any, *, wait: bool = True, **options: Any) -> str:
        """`app.publish`, and then `idle` unless told not to wait."""
        message_id = await self.app.publish(topic, body, **options)
        if wait:
            await self.idle()
        return message_id

    async def idle(self, *, within: float = 3600.0) -> None:
        """Until every message is settled: handled with all that came of it, or dead.

        Retries are waited for; `AssertionError` when something is left after `within` seconds.
        """
        loop = asyncio.get_running_loop()
        until, step = loop.time() + within, _FIRST_STEP
        await settled()
        while left := await self._left():
            if loop.time() >= until:
                raise AssertionError(f"Not settled within {within:g} s: {left}")
            await asyncio.sleep(step)
            step = min(step * 1.5, _LONGEST_STEP)
            await settled()
        await self._look()

    def calls(self, handler: Function) -> list[Any]:
        """The bodies a handler was called with, in order: a list of them for each call of a batch
        handler, messages for one that takes no body."""
        if all(_original(one) is not handler for one in self._bindings):
            raise AssertionError(f"{handler!r} is not a handler of this app")
        return self._calls.get(handler, [])

    def published(self, topic: str, kind: Any = None) -> list[Any]:
        """The bodies in a topic, in order: of this kind, or of the one its publisher returns."""
        decode = decoder_of(kind or self._published_kind(topic))
        return [decode(record) for record in self.records(topic)]

    def records(self, topic: str) -> list[Record]:
        """The messages in a topic, in order, as its log held them when all was last idle."""
        if topic not in self._records:
            raise AssertionError(f"No topic {topic!r}; there are {', '.join(self._records)}")
        return self._records[topic]

    def dead(self, topic: str | None = None) -> list[DeadLetter]:
        """The dead letters in a topic, or in all of them, that nobody has dealt with."""
        return [one for one in self._letters if topic in (None, one.topic)]

    def _topics(self) -> set[str]:
        return {topic for one in self._bindings for topic in one.subscriber.topics}

    async def _look(self) -> None:
        pubsub = self.app.pubsub
        self._records = {name: await self._read(name) for name in await pubsub.topics()}
        dead = {str(one.subscriber.dead_letters) for one in self._bindings}
        there = sorted(dead & self._records.keys())
        letters = [pubsub.dead_letters(name) for name in there]
        self._letters = [one for topic in letters async for one in topic.read()]

    async def _read(self, topic: str) -> list[Record]:
        log = (await self.app.pubsub.broker()).log
        assert log is not None, "the memory broker has a log"
        extent = await log.extent(topic)
        batches = [batch async for batch in log.read(topic, extent.first, extent.last)]
        return [record for batch in batches for record in batch]

    async def _left(self) -> str:
        backlogs = [(await one.describe(), one.name) for one in self.app.subscriptions]
        told = [f"{status.backlog} in {name!r}" for status, name in backlogs if status.backlog]
        return ", ".join(told) or ("something is being published" if self.app.busy else "")

    def _published_kind(self, topic: str) -> Any:
        for one in self._bindings:
            if any(publication.topic == topic for publication in one.subscriber.publications):
                return _one_of(one.signature.returns)
        return bytes

    def _recorded(self, binding: Binding) -> Binding:
        function, signature = binding.subscriber.function, binding.signature
        names: list[int | str] = [*range(len(signature.places)), *signature.keywords]
        named = dict(zip(names, signature.sources, strict=True))
        body = next((name for name, one in named.items() if isinstance(one, Body)), None)
        body = body if body is not None else next(iter(named), None)

        def record(places: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
            given: dict[Any, Any] = {**dict(enumerate(places)), **keywords}
            self._calls.setdefault(function, []).append(given.get(body))

        async def waiting(*places: Any, **keywords: Any) -> Any:
            record(places, keywords)
            return await function(*places, **keywords)

        def plain(*places: Any, **keywords: Any) -> Any:
            record(places, keywords)
            return function(*places, **keywords)

        wrapper: Any = waiting if is_async(function) else plain
        wrapper.__wrapped__ = function
        wrapper.__qualname__ = binding.subscriber.name
        changed = replace(binding.subscriber, function=wrapper, blocking=False)
        return replace(binding, subscriber=changed)


def _original(binding: Binding) -> Any:
    return getattr(binding.subscriber.function, "__wrapped__", None)


def _one_of(returns: Any) -> Any:
    """The kind of one message, out of what a handler says it returns."""
    if get_origin(returns) is list:
        return _one_of(get_args(returns)[0])
    if get_origin(returns) in (Union, UnionType):
        kinds = [one for one in get_args(returns) if one not in (type(None), Retry, Reject)]
        return _one_of(kinds[0]) if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007
    return bytes if returns in (None, Any) else returns
