"""The one error of media work."""

from __future__ import annotations

import errno
from typing import Any, Literal

from penstock.errors import PenstockError

Reason = Literal[
    "bad_reference",  # the reference itself is not one we can follow
    "cancelled",  # somebody asked us to stop
    "configuration",  # an operator must change something
    "crashed",  # the guarded child died of the input
    "forbidden",  # a path, host or address that is not allowed
    "guard_unavailable",  # a guarded child could not be started: there is no room
    "malformed",  # the bytes are not what they claim to be
    "network",  # connecting or reading failed
    "no_audio",  # nothing to transcribe
    "no_recording",  # nobody said where the recording of a video is
    "no_video",  # no pictures where there should be some
    "not_found",
    "out_of_memory",  # the input wanted more memory than its limit
    "protected",  # encrypted: we have no password
    "quota",  # a service asks us to come back later
    "timeout",
    "too_large",
    "too_long",
    "unavailable",  # a service had a problem of its own
    "unsupported",  # a format we do not read
]

_CODES = {
    "cancelled": 1,
    "configuration": 9,
    "forbidden": 7,
    "guard_unavailable": 14,
    "network": 14,
    "not_found": 5,
    "quota": 8,
    "timeout": 4,
    "unavailable": 14,
}


class MediaError(PenstockError):
    """Media that cannot be had or used.

    `reason` is stable and safe to count by; `permanent` says that trying again is no use.
    """

    code: int  # type: ignore[misc]
    retryable: bool  # type: ignore[misc]

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        permanent: bool = True,
        retry_after: float | None = None,
    ) -> None:
        self.reason: Reason = reason
        self.message = message
        self.permanent = permanent
        self.retry_after = retry_after
        self.code = _CODES.get(reason, 3)
        self.retryable = not permanent
        super().__init__(f"{reason}: {message}" if message else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.reason, self.message, self.permanent, self.retry_after)


_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def cannot_open(error: OSError | ValueError) -> MediaError:
    """Of a file that is there. Where there is no room for one more, nothing is wrong with it."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        text = "No more files can be opened here now"
        return MediaError("guard_unavailable", text, permanent=False)
    return MediaError("forbidden", "The file cannot be opened")


def _rebuild(
    reason: Reason, message: str, permanent: bool, retry_after: float | None
) -> MediaError:
    return MediaError(reason, message, permanent=permanent, retry_after=retry_after)
