"""Telling an observer of every call of a handler, and of everything else the app does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.observing import Observer, Observers, OpenTelemetryObserver, PrometheusObserver

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Observe:
    """A middleware, and the observer that the app's client, publisher and streams tell too."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._handling = Observers(observer).handling

    async def __call__(self, call: Call, next: Next) -> Any:
        with self._handling(call.topic, call.subscription, call.messages):
            return await next(call)


def observe(observer: Observer) -> Middleware:
    """An observer of your own."""
    return Observe(observer)


def metrics(registry: CollectorRegistry | None = None) -> Middleware:
    """Prometheus: publishing, handlers, redeliveries, dead letters, windows and lag."""
    return Observe(PrometheusObserver.of(registry))


def tracing(**options: Any) -> Middleware:
    """OpenTelemetry: options are those of `OpenTelemetryObserver`."""
    return Observe(OpenTelemetryObserver(**options))
