"""Functions that behave in a guarded child as hostile media makes decoders behave."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.media.errors import MediaError


def echo(value: str) -> str:
    return value


def own_pid() -> int:
    return os.getpid()


def read(file: BinaryIO) -> str:
    return file.read().decode()


def segfault() -> int:
    ctypes.string_at(0)
    return 0


def abort() -> int:
    os.abort()


def leave() -> int:
    os._exit(3)


def killed() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def forever() -> int:
    while True:
        time.sleep(1)


def spin() -> int:
    while True:
        pass


def hoard() -> int:
    kept = []
    while True:
        kept.append(bytearray(8 << 20))


def long_winded(size: int) -> str:
    return "x" * size


def wrong_type() -> int:
    return "not a number"  # type: ignore[return-value]


def garbage() -> int:
    for descriptor in _sockets():
        os.write(descriptor, b"\xff" * 100)
    time.sleep(60)
    return 0


def huge_frame() -> int:
    for descriptor in _sockets():
        os.write(descriptor, b"r\xff\xff\xff\xff")
    time.sleep(60)
    return 0


def unknown_error() -> int:
    raise KeyError("a secret of the media")


def known_error() -> int:
    raise MediaError("protected", "It asks for a password")


def leaves_a_process_behind() -> Iterator[bytes]:
    pid = os.fork()
    if not pid:
        os.closerange(3, 64)
        time.sleep(600)
    yield str(pid).encode()
    os.abort()


def reads(place: str) -> int:
    return len(Path(place).read_bytes())


def executes(program: str) -> int:
    return subprocess.run([program], check=False).returncode


def environment() -> list[str]:
    return sorted(set(os.environ) - {"LC_CTYPE"})


def descriptors() -> list[int]:
    return [fd for fd in range(64) if _is_open(fd)]


def limits() -> list[int]:
    kinds = (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    return [resource.getrlimit(kind)[1] for kind in kinds]


def writes_a_file(place: str) -> int:
    Path(place).write_bytes(b"x" * 100)
    return 0


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True


def can_unshare() -> bool:
    libc = ctypes.CDLL(None)
    return bool(libc.unshare(0x50000000) == 0 or libc.unshare(0x40000000) == 0)


def blocks(count: int, size: int) -> Iterator[bytes]:
    for n in range(count):
        yield bytes([n % 256]) * size


def blocks_then_crash(count: int) -> Iterator[bytes]:
    yield from blocks(count, 1000)
    os.abort()


def blocks_then_hang() -> Iterator[bytes]:
    yield b"first"
    time.sleep(600)


def blocks_then_error() -> Iterator[bytes]:
    yield b"first"
    raise MediaError("malformed", "The rest is damaged")


def _sockets() -> list[int]:
    found = []
    for fd in range(3, 64):
        try:
            socket.socket(fileno=os.dup(fd)).close()
        except OSError:
            continue
        found.append(fd)
    return found


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
