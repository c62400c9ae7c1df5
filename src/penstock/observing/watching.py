"""Looking at subscriptions from time to time: how much waits, for how long, how full the window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from penstock.broker import Broker
from penstock.errors import PenstockError
from penstock.observing.observer import Observer, Window

_log = logging.getLogger("penstock")

EVERY = 15.0


class Named(Protocol):
    name: str


class Stream(Protocol):
    """A stream of a subscription, as it is looked at."""

    @property
    def source(self) -> Named: ...
    def statistics(self) -> Window: ...


class Watchable(Protocol):
    @property
    def streams(self) -> Collection[Stream]: ...
    async def broker(self) -> Broker: ...


async def watch(pubsub: Watchable, observer: Observer, *, every: float = EVERY) -> None:
    """Tell an observer of every open subscription of a client, until cancelled."""
    while True:
        for stream in pubsub.streams:
            await _look(await pubsub.broker(), stream, observer)
        await asyncio.sleep(every)


async def _look(broker: Broker, stream: Stream, observer: Observer) -> None:
    name = stream.source.name
    try:
        status = await broker.admin.describe_subscription(name)
    except PenstockError as error:
        _log.debug("Looking at subscription %r: %s", name, error)
    else:
        observer.watched(name, status, stream.statistics())
