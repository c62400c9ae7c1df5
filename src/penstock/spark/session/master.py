"""Where Spark's master is, seen before its JVM is started: that takes its time, tries for a minute
to reach a master that is not there, and then says so in pages."""

from __future__ import annotations

import re
import socket

from penstock.errors import InvalidArgumentError, UnavailableError

# As Spark reads them. Of addresses it takes those that begin like one of its own; it may have been
# taught more of them.
_KNOWN = re.compile(
    r"local(\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn|(spark|k8s|local)[^:]*://.+"
)
_STANDALONE = "spark://"
_PLACE = re.compile(r"(?P<host>[^:]+|\[[^]]+\]):(?P<port>\d{1,5})")
_PATIENCE = 10.0


def check_master(master: str) -> None:
    """Raise unless it is a master for Spark; a standalone one must be reachable, or one of several
    that stand in for each other."""
    if not _KNOWN.fullmatch(master):
        raise InvalidArgumentError(
            f"Spark's master is local[2], local[*], spark://HOST:PORT, yarn or the like, not "
            f"{master!r}"
        )
    if not master.startswith(_STANDALONE):
        return
    failures = [_try(place) for place in master.removeprefix(_STANDALONE).split(",")]
    if all(failures):
        raise UnavailableError(
            f"No Spark master can be reached at {master} ({failures[0]}); is it running there?"
        )


def _try(place: str) -> str | None:
    """Why it cannot be reached, if it cannot."""
    match = _PLACE.fullmatch(place)
    if match is None or int(match["port"]) > 65_535:
        raise InvalidArgumentError(
            f"A standalone master is at spark://HOST:PORT, or spark://HOST:PORT,HOST:PORT, and "
            f"{place!r} is no HOST:PORT"
        )
    try:
        address = (match["host"].strip("[]"), int(match["port"]))
        socket.create_connection(address, _PATIENCE).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    except UnicodeError:
        return "that is no name of a host"
    return None
