"""A broker and handlers whose observer is told. Used only where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any

from penstock.broker import Broker
from penstock.message import (
    AckResponse,
    Delivery,
    Draft,
    Message,
    PublishFault,
    Receipt,
    Settlement,
)
from penstock.observing.observer import Observer
from penstock.optional_verbs import OnSent, Take, publish_telling, pull_to


class ObservedBroker:
    """Another broker, and somebody who is told of what moves through it. It changes nothing."""

    def __init__(self, broker: Broker, observer: Observer) -> None:
        self._broker = broker
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        return await self._told(topic, drafts, self._broker.publish(topic, drafts))

    async def publish_telling(
        self, on_sent: OnSent, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        publishing = publish_telling(self._broker, on_sent, topic, drafts)
        return await self._told(topic, drafts, publishing)

    async def _told(
        self,
        topic: str,
        drafts: Sequence[Draft],
        publishing: Awaitable[Sequence[Receipt | PublishFault]],
    ) -> Sequence[Receipt | PublishFault]:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            answers = await publishing
        except BaseException as error:
            self._observer.published(topic, drafts, error, clock() - began)
            raise
        self._observer.published(topic, drafts, answers, clock() - began)
        return answers

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        deliveries = await self._broker.pull(
            subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
        )
        if deliveries:
            self._observer.received(subscription, deliveries)
        return deliveries

    async def pull_to(
        self, take: Take, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        def tell_and_take(deliveries: Sequence[Delivery]) -> None:
            self._observer.received(subscription, deliveries)
            take(deliveries)

        deliveries = await pull_to(
            self._broker,
            tell_and_take,
            subscription,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait=wait,
        )
        if deliveries:
            self._observer.received(subscription, deliveries)
        return deliveries

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        clock = asyncio.get_running_loop().time
        began = clock()
        responses = await self._broker.settle(subscription, settlements)
        self._observer.settled(subscription, settlements, clock() - began)
        return responses


def observed_handler(
    observer: Observer, topic: str | None, subscription: str, handler: Callable[[Message], Any]
) -> Callable[[Message], Any]:
    """A handler of a bare subscription, inside what its observer puts around."""

    async def waiting(message: Message) -> Any:
        with observer.handling(topic, subscription, (message,)):
            return await handler(message)

    def plain(message: Message) -> Any:
        with observer.handling(topic, subscription, (message,)):
            work = handler(message)
        return work

    return waiting if iscoroutinefunction(handler) else plain
