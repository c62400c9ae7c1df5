"""What was declared: which function takes which subscription's messages, and what it publishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from penstock.callbacks import where
from penstock.config import RetryPolicy
from penstock.consuming.bodies import JSON

Function: TypeAlias = Callable[..., Any]
Middleware: TypeAlias = Callable[..., Any]
Provision: TypeAlias = Literal["ensure", "check"]

DEFAULT_RETRY = RetryPolicy(minimum_backoff=1.0, maximum_backoff=60.0)


class Unsaid:
    """Left to the app."""

    def __repr__(self) -> str:
        return "(as the app says)"


UNSAID = Unsaid()


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What subscribers have that do not say otherwise; `dead_letters` may name the `{topic}`."""

    retry: RetryPolicy | None
    dead_letters: str | None
    max_attempts: int | None
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Publication:
    """What a handler returns goes to this topic."""

    topic: str
    content_type: str = JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscriber:
    """A function and the subscription whose messages it takes; see `Router.subscriber`.

    `unsaid` names what is left to the app; `sizes_batches`: something was said about batches.
    """

    function: Function
    topic: str
    subscription: str
    retry: RetryPolicy | None = None
    dead_letters: str | None = None
    max_attempts: int | None = None
    concurrency: int | None = None
    unsaid: frozenset[str] = frozenset()
    batch_size: int = 100
    batch_wait: float = 0.1
    sizes_batches: bool = False
    blocking: bool = False
    middleware: tuple[Middleware, ...] = ()
    publications: tuple[Publication, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    @property
    def where(self) -> str:
        return where(self.function)

    @property
    def asked(self) -> set[str]:
        """What of its subscription it says itself; all else is a default of ours, and no reason to
        change what somebody made otherwise."""
        return {*self.options, *(["retry_policy"] if self.retry != DEFAULT_RETRY else [])}

    @property
    def topics(self) -> list[str]:
        """Every topic it has to do with."""
        dead = [self.dead_letters] if self.dead_letters is not None else []
        return [self.topic, *(one.topic for one in self.publications), *dead]

    def inside(self, middleware: tuple[Middleware, ...]) -> Subscriber:
        """With more middleware around."""
        return replace(self, middleware=(*middleware, *self.middleware))

    def settled(self, defaults: Defaults) -> Subscriber:
        """With nothing left to the app."""
        said = {name: getattr(defaults, name) for name in self.unsaid}
        dead = said.get("dead_letters")
        if dead is not None:
            said["dead_letters"] = dead.replace("{topic}", self.topic)
        return replace(self, unsaid=frozenset(), **said)

    def prefixed(self, prefix: str) -> Subscriber:
        """With the names of a router that is included."""
        dead = self.dead_letters
        return replace(
            self,
            topic=prefix + self.topic,
            subscription=prefix + self.subscription,
            dead_letters=prefix + dead if dead is not None else None,
            publications=tuple(replace(one, topic=prefix + one.topic) for one in self.publications),
        )
