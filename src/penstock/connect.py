"""From an address to a broker: a registry of schemes, open to brokers from elsewhere.

A package adds a scheme with an entry point of the group `penstock.brokers`, whose name is the
scheme and whose value is a `BrokerKind`; a program adds one for itself with `register_broker`.
Adapters are imported only when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.errors import AlreadyExistsError, InvalidArgumentError

ENTRY_POINTS = "penstock.brokers"
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*")
_HOW_TO_ADD = (
    f"another broker is added by installing a package with an entry point of the group "
    f"{ENTRY_POINTS!r}, or with register_broker()"
)


@dataclass(frozen=True, slots=True)
class BrokerKind:
    """What stands behind a scheme. Every function is given the whole address."""

    open: Callable[[str, Clock], Awaitable[Broker]]
    """Returns a broker that is ready to use and keeps time by the clock."""
    ranges: Callable[[str], Any] | None = None
    """Opens the topics' logs for readers that block; None when there is no such way in."""


async def connect(url: str = "memory://", *, clock: Clock | None = None) -> Broker:
    """The broker at `url`, ready to use; `aclose()` it when done.

    memory://                inside this process
    local://DIR              a NATS server of our own, durable in DIR, shared by all who open it
    nats://HOST[:PORT]       NATS JetStream; tls:// with TLS
    SCHEME://…               whatever was registered for SCHEME
    """
    return await broker_kind(url).open(url, clock or Clock())


def register_broker(scheme: str, kind: BrokerKind) -> None:
    """Let `scheme://…` lead to `kind`, in this process. Again with the same kind does nothing."""
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme):
        raise InvalidArgumentError(
            f"A broker cannot be registered for {scheme!r}: a scheme is a small letter, then small "
            "letters, digits or any of + . -, and comes without '://'"
        )
    if not isinstance(kind, BrokerKind):
        raise InvalidArgumentError(
            f"{scheme}:// must lead to a BrokerKind, not to a {type(kind).__name__}"
        )
    if _KINDS.get(scheme, kind) != kind or scheme in _installed():
        raise AlreadyExistsError(f"There is a broker for {scheme}:// already; take another scheme")
    _KINDS[scheme] = kind


def broker_kind(url: str) -> BrokerKind:
    """What is registered for the scheme of `url`. Nothing is opened."""
    if not isinstance(url, str):
        raise InvalidArgumentError(f"A broker's address must be text, not {type(url).__name__}")
    # Only the scheme is ever shown: the rest may hold a password.
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower() if separator else ""
    kind, installed = _KINDS.get(scheme), _installed().get(scheme, ())
    if len(installed) + (kind is not None) > 1:
        raise AlreadyExistsError(
            f"More than one broker for {scheme}://: {_sources(kind, installed)}; uninstall all but "
            "one"
        )
    if installed:
        return _load(installed[0])
    if kind is None:
        known = ", ".join(f"{name}://" for name in sorted({*_KINDS, *_installed()}))
        raise InvalidArgumentError(
            f"No broker for {scheme or 'no'}://; known: {known}; {_HOW_TO_ADD}"
        )
    return kind


@cache
def _installed() -> dict[str, tuple[EntryPoint, ...]]:
    """Once: looking takes milliseconds, and what is installed does not change under a program."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        scheme = point.name.lower()
        found[scheme] = (*found.get(scheme, ()), point)
    return found


@cache
def _load(point: EntryPoint) -> BrokerKind:
    try:
        kind = point.load()
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(
            f"The broker for {point.name}://, of {_package(point)}, does not load: {error}"
        ) from error
    if not isinstance(kind, BrokerKind):
        raise InvalidArgumentError(
            f"The entry point {point.name} of {_package(point)} must name a BrokerKind, not a "
            f"{type(kind).__name__}"
        )
    return kind


def _sources(kind: BrokerKind | None, installed: tuple[EntryPoint, ...]) -> str:
    own = ["penstock, or register_broker()"] if kind is not None else []
    return " and ".join(own + [_package(point) for point in installed])


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name}" if point.dist is not None else repr(point.value)


async def _memory(_url: str, clock: Clock) -> Broker:
    from penstock.brokers.memory import MemoryBroker

    return MemoryBroker(clock)


async def _local(url: str, clock: Clock) -> Broker:
    from penstock.brokers.nats.local.folder import LocalBroker

    return await LocalBroker.open(url.partition("://")[2], clock)


async def _nats(url: str, clock: Clock) -> Broker:
    from penstock.brokers.nats import NatsBroker

    return await NatsBroker.connect(url, clock)


_KINDS = {
    "memory": BrokerKind(_memory),
    "local": BrokerKind(_local),
    "nats": BrokerKind(_nats),
    "tls": BrokerKind(_nats),
}
