"""Looking at subscriptions from time to time: how much waits, for how long, how full the window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Protocol

from penstock.broker import SubscriptionStatus
from penstock.errors import PenstockError
from penstock.observing.observer import Observer, Window

_log = logging.getLogger("penstock")

EVERY = 15.0


class Stream(Protocol):
    def statistics(self) -> Window: ...


class Watched(Protocol):
    """A subscription, as it is looked at."""

    @property
    def name(self) -> str: ...
    @property
    def stream(self) -> Stream | None: ...
    async def describe(self) -> SubscriptionStatus: ...


class Watchable(Protocol):
    @property
    def opened(self) -> Collection[Watched]: ...


async def watch(pubsub: Watchable, observer: Observer, *, every: float = EVERY) -> None:
    """Tell an observer of every open subscription of a client, until cancelled."""
    while True:
        await look(pubsub.opened, observer)
        await asyncio.sleep(every)


async def look(subscriptions: Iterable[Watched], observer: Observer) -> None:
    for subscription in subscriptions:
        try:
            status = await subscription.describe()
        except PenstockError as error:
            _log.debug("Looking at subscription %r: %s", subscription.name, error)
            continue
        stream = subscription.stream
        observer.watched(subscription.name, status, stream.statistics() if stream else None)
