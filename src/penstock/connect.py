"""From an address to a broker: a registry of schemes, open to brokers from elsewhere.

A package adds a scheme with an entry point of the group `penstock.brokers`, whose name is the
scheme and whose value is a `BrokerKind`; a program adds one for itself with `register_broker`.
Adapters are imported only when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from penstock.broker import Broker, RangeLog
from penstock.clock import Clock
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)
from penstock.own_server import Hold, OwnServer

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
    ranges: Callable[[str], RangeLog] | None = None
    """Opens the topics' logs for readers that block; None when there is no such way in."""
    server: Callable[[str], OwnServer] | None = None
    """The server behind the address, where Penstock runs it; None where others do."""
    shared: bool = True
    """Other processes that open the address find the same topics."""
    check_everywhere: Callable[[str], None] = lambda _: None
    """Raises `InvalidArgumentError` unless they do so from whatever folder they work in."""
    protocol: str | None = None
    """What AsyncAPI calls it, where addresses name a host; None where there is no host to name."""


async def connect(url: str = "memory://", *, clock: Clock | None = None) -> Broker:
    """The broker at `url`, ready to use; `aclose()` it when done.

    memory://                inside this process
    local://DIR              a NATS server of our own, durable in DIR, shared by all who open it
    nats://HOST[:PORT]       NATS JetStream; tls:// with TLS
    pubsub://PROJECT         Google Pub/Sub, or the emulator at PUBSUB_EMULATOR_HOST
    SCHEME://…               whatever was registered for SCHEME
    """
    return await broker_kind(url).open(url, clock or Clock())


def open_ranges(url: str) -> RangeLog:
    """The log at `url` for readers that block; `close()` it when done. Nothing is connected yet."""
    ranges = broker_kind(url).ranges
    if ranges is None:
        raise UnimplementedError(
            f"What is behind {scheme_of(url)}:// keeps no log that other processes can read by "
            "range; read a subscription instead"
        )
    return ranges(url)


def own_server(url: str) -> OwnServer:
    """The server that Penstock runs behind `url`."""
    server = broker_kind(url).server
    if server is None:
        raise UnimplementedError(
            f"The server behind {scheme_of(url)}:// is not Penstock's to start and stop"
        )
    return server(url)


def hold_server(url: str) -> Hold | None:
    """Keep the server behind `url` running for as long as this process lives, however it ends, or
    until what is returned is closed. None where others run it: there is nothing to hold."""
    server = broker_kind(url).server
    return server(url).hold() if server is not None else None


def check_shared(url: str, *, everywhere: bool = False) -> None:
    """`InvalidArgumentError` unless other processes that open `url` find the same topics; with
    `everywhere`, from whatever folder they work in."""
    kind = broker_kind(url)
    if not kind.shared:
        raise InvalidArgumentError(
            f"{scheme_of(url)}:// is one process's own and cannot be shared with other "
            "processes; use local:///DIR, which starts a server by itself, or nats://HOST"
        )
    if everywhere:
        kind.check_everywhere(url)


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
    scheme = scheme_of(url)
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


def scheme_of(url: str) -> str:
    """All that is ever shown of an address: whatever else stands there may be a password."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator and _SCHEME.fullmatch(scheme.lower()) else ""


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
    with _extra("local"):
        from penstock.brokers.nats.local.broker import LocalBroker

    return await LocalBroker.open(url, clock)


def _local_ranges(url: str) -> RangeLog:
    with _extra("local"):
        from penstock.brokers.nats.local.ranges import LocalRangeLog

    return LocalRangeLog(url)


def _local_server(url: str) -> OwnServer:
    from penstock.brokers.nats.local.folder import folder_of
    from penstock.brokers.nats.local.hold import HoldableServer

    return HoldableServer(folder_of(url))


def _check_local(url: str) -> None:
    from penstock.brokers.nats.local.folder import check_everywhere

    check_everywhere(url)


async def _nats(url: str, clock: Clock) -> Broker:
    with _extra("nats"):
        from penstock.brokers.nats.broker import NatsBroker

    return await NatsBroker.connect(url, clock)


def _nats_ranges(url: str) -> RangeLog:
    with _extra("nats"):
        from penstock.brokers.nats.protocol.address import NatsOptions
        from penstock.brokers.nats.sync.ranges import NatsRangeLog

    options = NatsOptions.of(url)
    return NatsRangeLog(lambda: options)


async def _google(url: str, clock: Clock) -> Broker:
    with _extra("google"):
        from penstock.brokers.google import GoogleBroker

    return await GoogleBroker.connect(url, clock)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Imports of an adapter, which needs packages that Penstock itself does not."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        raise FailedPreconditionError(
            f"This broker needs {missing}, which is not installed: pip install 'penstock[{name}]'"
        ) from error


_NATS = BrokerKind(_nats, _nats_ranges, protocol="nats")
_KINDS = {
    "memory": BrokerKind(_memory, shared=False),
    "local": BrokerKind(_local, _local_ranges, _local_server, check_everywhere=_check_local),
    "nats": _NATS,
    "tls": _NATS,
    "pubsub": BrokerKind(_google, protocol="googlepubsub"),
}
