"""An application: handlers, what is around them, and one start and one end for all of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import isasyncgenfunction
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

from penstock.callbacks import underlying, where
from penstock.client import PubSub
from penstock.config import RetryPolicy, check_kind
from penstock.consuming.binding import bind_all
from penstock.consuming.bodies import JSON, check_content_type
from penstock.consuming.calling import Binding
from penstock.consuming.declaration import (
    DEFAULT_RETRY,
    Defaults,
    Provision,
    Subscriber,
)
from penstock.consuming.middleware.observe import Observe, observe
from penstock.consuming.results import draft_of
from penstock.consuming.router import Router
from penstock.consuming.running import Running
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.observing import Observer
from penstock.subscribing import CloseReport, Subscription

F = TypeVar("F", bound=Callable[..., Any])


class App(Router):
    """Handlers of messages, from one process to many.

    `retry`, `dead_letters`, `max_attempts` and `concurrency` are for handlers that do not say
    otherwise. `provision`: 'ensure' makes topics and subscriptions that are missing and changes a
    subscription to what its handler says, 'check' only looks at them. Use it with `async with`,
    which drains at the end, or `await app.run()`, or `penstock run module:app`. It may be started
    again after it was stopped.
    """

    def __init__(
        self,
        url: str = "memory://",
        *,
        retry: RetryPolicy | None = DEFAULT_RETRY,
        dead_letters: str | None = "{topic}-dead",
        max_attempts: int | None = 5,
        concurrency: int | None = None,
        provision: Provision = "ensure",
        title: str | None = None,
        version: str = "1.0.0",
    ) -> None:
        super().__init__()
        if provision not in get_args(Provision):
            raise InvalidArgumentError(f"provision is 'ensure' or 'check', not {provision!r}")
        if not isinstance(url, str):
            raise InvalidArgumentError(
                f"An app's address is text, such as 'nats://HOST', not {type(url).__name__}; is it "
                "a variable that is not set?"
            )
        if not isinstance(dead_letters, str | None):
            raise InvalidArgumentError(
                f"dead_letters is a topic, perhaps of '{{topic}}-…', or None, not {dead_letters!r}"
            )
        check_kind("title", title, str | None, "text or None")
        check_kind("version", version, str, "text")
        self.url = url
        self.provision: Provision = provision
        self.title = title
        self.version = version
        self._defaults = Defaults(
            retry=retry,
            dead_letters=dead_letters,
            max_attempts=max_attempts,
            concurrency=concurrency,
        )
        self._topics: dict[str, Mapping[str, Any]] = {}
        self._lifespan: list[Callable[[], Any]] = []
        self._running: Running | None = None
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        """Tell it of everything the app does, its calls of handlers outside of all middleware."""
        self._observers.append(observer)

    def observers(self) -> list[Observer]:
        """Who is told: those of `observe`, and those that middleware brings along."""
        brought = [each for one in self.declared() for each in _brought_by(one)]
        return list(dict.fromkeys([*self._observers, *brought]))

    def topic(self, name: str, **options: Any) -> None:
        """A topic the app needs, and how to make it: options are those of `Topic.create`."""
        self._topics[name] = options

    def lifespan(self, function: F) -> F:
        """An async generator that yields once: what is before it runs when the app starts, what is
        after it when everything is drained. The first declared is the first in and the last out."""
        if not isasyncgenfunction(underlying(function)):
            raise InvalidArgumentError(
                f"{where(function)} must be an async function with one `yield` in it: before it "
                "the app starts, after it the app has stopped"
            )
        self._lifespan.append(asynccontextmanager(function))
        return function

    def subscribers(self) -> list[Subscriber]:
        """Every handler as it will run."""
        observers = dict.fromkeys(self._observers)
        return [
            one.settled(self._defaults).inside(
                tuple(observe(each) for each in observers if each not in _brought_by(one))
            )
            for one in self.declared()
        ]

    def bindings(self, provide: Mapping[Any, Any] | None = None) -> list[Binding]:
        """Everything checked and ready to run; `InvalidArgumentError` says what is wrong.

        `provide`: values by type instead of what provides them.
        """
        dependencies = self.dependencies().with_values(provide or {})
        return bind_all(self.subscribers(), dependencies, self.idle_publications())

    # Life.

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def ready(self) -> bool:
        """Started, and every subscription receives."""
        return self._running is not None and self._running.ready

    @property
    def busy(self) -> bool:
        """Something is being published, or waits in a batch."""
        return self._running is not None and self._running.busy

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The subscriptions it receives from, while it runs."""
        return tuple(self._running.subscriptions) if self._running is not None else ()

    @property
    def pubsub(self) -> PubSub:
        """The client, while the app runs."""
        return self._started().pubsub

    async def start(self) -> None:
        """Check everything, connect, make what is missing, receive."""
        await self.start_on(PubSub(self.url), self.bindings())

    async def start_on(
        self, pubsub: PubSub, bindings: Sequence[Binding], provision: Provision | None = None
    ) -> None:
        """`start`, with a client that the app will close, and bindings perhaps changed."""
        if self._running is not None:
            raise FailedPreconditionError("This app is running; stop it first")
        self._running = Running(
            pubsub,
            bindings,
            provision=provision or self.provision,
            topics=self._topics,
            lifespan=self._lifespan,
            observers=self.observers(),
            on_end=self._ended,
        )
        await self._running.start()

    async def stop(self, *, timeout: float | None = None) -> CloseReport:
        """Take nothing more, finish what is in hand, close; says what was left.

        After `timeout` seconds handlers are cancelled and their messages come back. Idempotent.
        Cancelling the caller does not stop the closing: call it again to wait for the end. A
        handler may call it, and is not waited for: what it has not settled before comes back.
        """
        running = self._running
        return CloseReport() if running is None else await running.stop(timeout)

    def _ended(self) -> None:
        self._running = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def run(self, *, drain: float = 30.0) -> CloseReport:
        """Run until SIGINT or SIGTERM, then drain within so many seconds.

        Raises what ended a subscription that was not asked to end.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        try:
            await self.start()
            try:
                await self.wait(stop)
            finally:
                report = await self.stop(timeout=drain)
            return report
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def wait(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; raises what ended a subscription before that."""
        failure = self._started().failure
        failure.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if failure.done():
            raise failure.result()

    # Publishing.

    async def publish(
        self,
        topic: str,
        body: Any,
        *,
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        message_id: str | None = None,
        content_type: str = JSON,
    ) -> str:
        """Publish a body of any kind a handler could take; returns its id once it is stored."""
        draft = draft_of(
            body,
            attributes,
            content_type=check_content_type(content_type),
            ordering_key=ordering_key,
            message_id=message_id,
        )
        return (await self._started().send(topic, draft)).message_id

    def _started(self) -> Running:
        if self._running is None:
            raise FailedPreconditionError(
                "This app is not running; use `async with app:`, or publish with a PubSub"
            )
        return self._running


def _brought_by(subscriber: Subscriber) -> list[Observer]:
    return [one.observer for one in subscriber.middleware if isinstance(one, Observe)]
