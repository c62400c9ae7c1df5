"""Where a Spark Connect server is, seen before PySpark is asked: it tries for ten minutes to reach
one that is not there, and says nothing meanwhile."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from penstock.errors import InvalidArgumentError, UnavailableError

_PORT = 15_002
_PATIENCE = 10.0


def check_remote(remote: str) -> None:
    """Raise unless it is the address of a server that can be reached, or one to start here."""
    if remote.startswith("local"):
        return
    if not remote.startswith("sc://"):
        raise InvalidArgumentError(
            f"A Spark Connect server is at sc://HOST:PORT, or local[2] to start one, not {remote!r}"
        )
    host, port = _place_of(remote)
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        raise UnavailableError(
            f"No Spark Connect server can be reached at {host} port {port} ({_reason(error)}); "
            "is it running there?"
        ) from None


def _place_of(remote: str) -> tuple[str, int]:
    # Behind the address there may be parameters, a token for instance: they are not repeated.
    address = urlsplit(remote.partition(";")[0])
    try:
        host, port = address.hostname, address.port
    except ValueError:
        host, port = None, None
    if not host:
        raise InvalidArgumentError("A Spark Connect server is at sc://HOST:PORT; that has no host")
    return host, port or _PORT


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
