"""The process in which bytes of strangers are read.

It has no environment, no files but the ones handed to it, no network where the kernel lets us say
so (`confine.py`), and limits on memory, processor time and output. It serves one job at a time from
the socket it was given, and ends when that socket closes.
"""

from __future__ import annotations

import errno
import importlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from penstock.media.errors import MediaError, Reason
from penstock.media.guard.confine import confine, limit

HELLO, DATA, RESULT, ERROR = b"h", b"d", b"r", b"e"
HEADER = struct.Struct("!cI")
REQUEST = struct.Struct("!I")
FRAME = 64 * 1024

# Libraries and thread stacks reserve address space they never touch; this much is let be.
_ADDRESS_SPACE_SLACK = 2 << 30


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one guarded call may use.

    `seconds` is wall time: of the whole call, or of the wait for the next piece of a stream.
    `cpu_seconds` is processor time of the whole call; None takes `seconds`.
    """

    seconds: float = 30.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    cpu_seconds: float | None = None


class Request(msgspec.Struct):
    module: str
    function: str
    args: list[Any]
    limits: Limits
    stream: bool
    media: bool


class Failure(msgspec.Struct):
    reason: Reason
    message: str
    permanent: bool


class _Channel:
    """Frames to the parent. Waiting for the parent to read does not count as our time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.seconds = 0.0

    def send(self, kind: bytes, body: bytes = b"") -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._connection.sendall(HEADER.pack(kind, len(body)) + body)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)


def main(descriptor: int) -> None:
    confine()
    connection = socket.socket(fileno=descriptor)
    channel = _Channel(connection)
    # A parent that dies is noticed: reading ends, writing fails.
    with suppress(OSError):
        channel.send(HELLO)
        while received := _receive(connection):
            _serve(channel, *received)
    os._exit(0)


def _serve(channel: _Channel, request: Request, descriptors: list[int]) -> None:
    try:
        answer = _call(channel, request, descriptors)
        kind = RESULT
        if len(answer) > request.limits.output_bytes:
            raise MediaError("too_large", "The result is larger than its limit")
    except Exception as error:
        kind, answer = ERROR, msgspec.json.encode(_describe(error))
    finally:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)
    channel.seconds = 0.0
    channel.send(kind, answer)


def _call(channel: _Channel, request: Request, descriptors: list[int]) -> bytes:
    function: Any = importlib.import_module(request.module)
    for name in request.function.split("."):
        function = getattr(function, name)
    _limit(request.limits)
    # One second more than the parent waits, so that it is the parent who says so.
    channel.seconds = request.limits.seconds + 1
    signal.setitimer(signal.ITIMER_REAL, channel.seconds)
    media: list[BinaryIO] = []
    if request.media:
        media.append(os.fdopen(descriptors[0], "rb", closefd=False))
    if not request.stream:
        return msgspec.json.encode(function(*media, *request.args))
    for block in function(*media, *request.args):
        for start in range(0, len(block), FRAME):
            channel.send(DATA, block[start : start + FRAME])
    return b"null"


def _describe(error: Exception) -> Failure:
    if isinstance(error, MediaError):
        return Failure(error.reason, error.message, error.permanent)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return Failure("out_of_memory", "It needs more memory than its limit", True)
    if isinstance(error, ImportError):
        return Failure("configuration", "A package is missing; install penstock[media]", True)
    # The type says enough; the text of a library's error may quote the media.
    return Failure("malformed", f"It cannot be read ({type(error).__name__})", True)


def _receive(connection: socket.socket) -> tuple[Request, list[int]] | None:
    first, descriptors, _, _ = socket.recv_fds(connection, REQUEST.size, 1)
    if not first:
        return None
    while len(first) < REQUEST.size:
        first += connection.recv(REQUEST.size - len(first))
    body = b""
    (size,) = REQUEST.unpack(first)
    while len(body) < size:
        piece = connection.recv(size - len(body))
        if not piece:
            return None
        body += piece
    return msgspec.json.decode(body, type=Request), descriptors


def _limit(limits: Limits) -> None:
    limit(resource.RLIMIT_DATA, limits.memory_bytes)
    limit(resource.RLIMIT_AS, limits.memory_bytes + _ADDRESS_SPACE_SLACK)
    allowed = limits.seconds if limits.cpu_seconds is None else limits.cpu_seconds
    limit(resource.RLIMIT_CPU, int(time.process_time() + allowed) + 2)


if __name__ == "__main__":
    main(int(sys.argv[-1]))
