"""From an address to a broker. Adapters are imported only when asked for."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.errors import InvalidArgumentError


async def connect(url: str = "memory://", *, clock: Clock | None = None) -> Broker:
    """The broker at `url`, ready to use; `aclose()` it when done.

    memory://                inside this process
    local://DIR              a NATS server of our own, durable in DIR, shared by all who open it
    nats://HOST[:PORT]       NATS JetStream; tls:// with TLS
    """
    clock = clock or Clock()
    if not isinstance(url, str):
        raise InvalidArgumentError(f"A broker's address must be text, not {type(url).__name__}")
    scheme = urlsplit(url).scheme
    match scheme:
        case "memory":
            from penstock.brokers.memory import MemoryBroker

            return MemoryBroker(clock)
        case "local":
            from penstock.brokers.nats.local.folder import LocalBroker

            return await LocalBroker.open(url.partition("://")[2], clock)
        case "nats" | "tls":
            from penstock.brokers.nats import NatsBroker

            return await NatsBroker.connect(url, clock)
        case _:
            # Only the scheme is shown: the rest may hold a password.
            raise InvalidArgumentError(
                f"No broker for {scheme or 'no'}://; known: memory://, local://DIR, nats://, tls://"
            )
