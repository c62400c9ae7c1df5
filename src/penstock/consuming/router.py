"""Declaring handlers: decorators that write down, and check nothing before the app starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from penstock.callbacks import where
from penstock.config import RetryPolicy
from penstock.consuming.bodies import JSON, check_content_type
from penstock.consuming.declaration import (
    UNSAID,
    Function,
    Middleware,
    Publication,
    Subscriber,
    Unsaid,
)
from penstock.consuming.dependencies import Dependencies
from penstock.errors import InvalidArgumentError

F = TypeVar("F", bound=Callable[..., Any])


class Router:
    """Handlers that belong together, to be included in an app, perhaps under a prefix."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._publications: dict[Function, list[Publication]] = {}
        self._middleware: list[Middleware] = []
        self._included: list[tuple[Router, str]] = []
        self._dependencies = Dependencies()

    def subscriber(
        self,
        topic: str,
        subscription: str,
        *,
        retry: RetryPolicy | Unsaid | None = UNSAID,
        dead_letters: str | Unsaid | None = UNSAID,
        max_attempts: int | Unsaid | None = UNSAID,
        concurrency: int | Unsaid | None = UNSAID,
        batch_size: int | None = None,
        batch_wait: float | None = None,
        blocking: bool = False,
        middleware: Middleware | tuple[Middleware, ...] | list[Middleware] = (),
        **options: Any,
    ) -> Callable[[F], F]:
        """The function takes this subscription's messages. It is returned unchanged.

        Its parameters say what it gets: the decoded body, `Message`, `Attributes`,
        `Annotated[str, Attribute("key")]`, and by type what `provide` and `provider` offer. A body
        of `list[Order]` makes it a batch handler: up to `batch_size` bodies (100), once the first
        has waited `batch_wait` seconds (0.1).

        Returning acks; an exception brings the message back as `retry` says, and to `dead_letters`
        (a topic, or None for none) after `max_attempts` (None for no end). `Retry` and `Reject`,
        returned or raised, decide otherwise. `concurrency`: handlers at a time. `blocking`: a plain
        function that waits, to be run in a thread. Other options are those of a `Subscription`.
        """
        policies = {
            "retry": retry,
            "dead_letters": dead_letters,
            "max_attempts": max_attempts,
            "concurrency": concurrency,
        }
        said: dict[str, Any] = {k: v for k, v in policies.items() if v is not UNSAID}

        def declare(function: F) -> F:
            _check_names(function, topic, subscription, said.get("dead_letters"))
            self._subscribers.append(
                Subscriber(
                    function=function,
                    topic=topic,
                    subscription=subscription,
                    **said,
                    unsaid=frozenset(policies.keys() - said.keys()),
                    batch_size=100 if batch_size is None else batch_size,
                    batch_wait=0.1 if batch_wait is None else batch_wait,
                    sizes_batches=batch_size is not None or batch_wait is not None,
                    blocking=blocking,
                    middleware=_as_tuple(middleware),
                    options=options,
                )
            )
            return function

        return declare

    def publishes(self, topic: str, *, content_type: str = JSON) -> Callable[[F], F]:
        """What the function returns is published there before its message is acked.

        A list is one message each, None is none. Ids are derived from the message, the subscription
        and the place, so a redelivery publishes nothing twice within the duplicate window of the
        topic. The ordering key is the message's own.
        """
        check_content_type(content_type)
        if callable(topic):
            raise InvalidArgumentError(
                f'{where(topic)} does not say where to: write `@app.publishes("topic")`'
            )

        def declare(function: F) -> F:
            # Above or below `subscriber`: they meet when the app starts.
            self._publications.setdefault(function, []).insert(0, Publication(topic, content_type))
            return function

        return declare

    def use(self, *middleware: Middleware) -> None:
        """Around every handler, the first outermost; an app's around a router's."""
        self._middleware += middleware

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Its handlers too. The prefix goes before every topic and subscription they name."""
        if router is self:
            raise InvalidArgumentError("A router cannot include itself")
        self._included.append((router, prefix))

    def provide(self, kind: type[Any], value: object) -> None:
        """Handlers with a parameter of this type get this value."""
        self._dependencies.provide(kind, value)

    def provider(self, function: F | None = None, *, once: bool = False) -> Any:
        """Handlers with a parameter of the type it returns get what it makes, for each message or
        `once` for the app. Plain, async or yielding, which cleans up after; it may take `Message`
        and what others provide."""

        def declare(function: F) -> F:
            self._dependencies.add(function, once=once)
            return function

        return declare if function is None else declare(function)

    def declared(self) -> list[Subscriber]:
        """Every handler, its own and those included, with names and middleware as they will be."""
        published = self._publications
        own = [
            replace(one, publications=tuple(published.get(one.function, ())))
            for one in self._subscribers
        ]
        included = [
            one.prefixed(prefix) for router, prefix in self._included for one in router.declared()
        ]
        return [one.inside(tuple(self._middleware)) for one in own + included]

    def dependencies(self) -> Dependencies:
        """All providers, its own before those of what it includes."""
        found = self._dependencies
        for router, _ in self._included:
            found = found.joined(router.dependencies())
        return found

    def idle_publications(self) -> list[str]:
        """Functions that would publish, and take nobody's messages."""
        functions = {one.function for one in self._subscribers}
        idle = [where(function) for function in self._publications if function not in functions]
        return idle + [one for router, _ in self._included for one in router.idle_publications()]


def _as_tuple(
    middleware: Middleware | tuple[Middleware, ...] | list[Middleware],
) -> tuple[Middleware, ...]:
    return tuple(middleware) if isinstance(middleware, tuple | list) else (middleware,)


def _check_names(function: Function, topic: Any, subscription: Any, dead_letters: Any) -> None:
    """Prefixes go before them, before they are looked at."""
    for name in (topic, subscription, "" if dead_letters is None else dead_letters):
        if not isinstance(name, str):
            raise InvalidArgumentError(
                f"{where(function)}: a {type(name).__name__} is no name of a topic or subscription"
            )
