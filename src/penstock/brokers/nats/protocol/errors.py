"""The server's refusals, and those of the network, as errors of ours. Said once for both ways to
reach it."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Mapping
from typing import TypeAlias

from penstock.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)

Missing: TypeAlias = Callable[[], PenstockError]
"""What to say when that which was asked for is not there."""

_REFUSED = re.compile(r'permissions violation for publish to ("(?:[^"\\]|\\.)*")', re.IGNORECASE)
_NOT_FOUND = {10059, 10014, 10037}
_EXISTS = {10058, 10148, 10013}
_EXPECTATION = {10060, 10070, 10071, 10164}
_FULL = {10002, 10023, 10028, 10047, 10122, 10167}
_TOO_LARGE = {10054, 10097}
# Said in passing: by a cluster that is choosing a leader, of servers that are away (10118, 10119),
# and of a message id that another attempt is storing right now, or has stored (10158).
_PASSING = {10004, 10007, 10008, 10009, 10118, 10119, 10158}

_NOT_CLUSTERED = 10074
_SUBJECTS_TAKEN = 10065
_NO_ROOM_FOR_REPLICAS = 10005


class NotClusteredError(FailedPreconditionError):
    """The server is alone: it can keep one copy of what it stores and no more."""


class SubjectsTakenError(FailedPreconditionError):
    """Another stream stores some of these subjects."""


def api_error(error: Mapping[str, object], missing: Missing | None = None) -> PenstockError:
    """An error answer of JetStream."""
    number, text = _int(error, "err_code", 0), str(error.get("description", "unknown error"))
    code = _int(error, "code", 500)
    said = f"{text} (JetStream error {number})"
    if number in _NOT_FOUND:
        return missing() if missing is not None else NotFoundError(said)
    if number in _EXISTS:
        return AlreadyExistsError(said)
    if number in _EXPECTATION:
        return FailedPreconditionError(f"Message not stored: {said}")
    if number in _PASSING:
        return UnavailableError(said)
    if number == _NOT_CLUSTERED:
        return NotClusteredError(f"{said}: the server is alone; leave replicas out, or ask for 1")
    if number == _SUBJECTS_TAKEN:
        return SubjectsTakenError(said)
    if number == _NO_ROOM_FOR_REPLICAS:
        return UnavailableError(
            f"{said}: not as many of its servers are there as replicas are asked for; wait for "
            "them, or ask for fewer"
        )
    if number in _FULL or "maximum" in text:
        return ResourceExhaustedError(said)
    if number in _TOO_LARGE:
        return InvalidArgumentError(said)
    if code == 403:
        return PermissionDeniedError(said)
    if code == 503:
        return UnavailableError(said)
    return FailedPreconditionError(said) if code < 500 else InternalError(said)


def _int(error: Mapping[str, object], name: str, default: int) -> int:
    found = error.get(name, default)
    return found if isinstance(found, int) else default


def no_responders() -> UnavailableError:
    """Nobody answers an API request (503). That says nothing about what was asked for."""
    return UnavailableError(
        "The NATS server has no JetStream for this user now; if that does not pass, enable it, or "
        "check permissions"
    )


def no_answer(seconds: float, to: str = "") -> DeadlineExceededError:
    return DeadlineExceededError(
        f"The NATS server did not answer {f'{to!r} ' if to else ''}within {seconds:g} s; check the "
        "connection and this user's permissions"
    )


def connection_lost(cause: object = None) -> UnavailableError:
    return UnavailableError(
        "The connection to the NATS server was lost" + (f": {cause}" if cause else "")
    )


def not_reached(hosts: str, cause: object) -> UnavailableError:
    return UnavailableError(
        f"Cannot connect to a NATS server at {hosts}: {cause or 'no answer'}; is it running?"
    )


def login_refused(hosts: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"The NATS server at {hosts} refused these credentials")


def unusable_files(error: BaseException) -> InvalidArgumentError:
    """Certificates and keys that cannot be read or do not fit."""
    return InvalidArgumentError(
        f"The files of this address cannot be used: {type(error).__name__}: {error}"
    )


def is_denial(text: str) -> bool:
    """What the server says when this user may not use a subject."""
    return "permissions violation" in text.lower()


def refused_subject(text: str) -> str:
    """Where this user may not publish, if that is what the server says; else nothing. Of what may
    not be subscribed to it names other things too, such as a queue that is called like a topic."""
    found = _REFUSED.search(text)
    if found is None:
        return ""
    quoted = found[1]
    # It quotes as Go does, whose escapes are Python's as well.
    return str(literal_eval(quoted)) if "\\" in quoted else quoted[1:-1]


def denied(text: str) -> PermissionDeniedError:
    """`text` is what the server said, or the subject it was about."""
    return PermissionDeniedError(
        f"The NATS server does not allow this user to do that: {text}; grant it, see docs/nats.conf"
    )


def odd_status(what: str, code: int, text: str = "") -> UnavailableError:
    """A status that says nothing about what was asked for."""
    return UnavailableError(f"{what}: the NATS server answered {f'{code} {text}'.strip()}")
