"""Taking away from this process what it will not need. Linux; best effort, and no way back.

Each step that a kernel refuses is passed over: limits on time and memory hold everywhere, the rest
is a second wall behind them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_OPEN_FILES = 64

# Landlock: the same call numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_ALL_FILES_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_FILES_LATEST = 16
_ALL_TCP = 0b11
# What interpreters, loaders and decoders look at.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
)


def confine() -> None:
    """Before any thread starts: the kernel refuses a new user namespace later."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        limit(kind, most, hard=True)
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            libc.unshare(_CLONE_NEWNET)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _only_read_code(libc)


def limit(kind: int, value: int, *, hard: bool = False) -> None:
    """Set a resource limit, no higher than what the process was given."""
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        value = min(value, ceiling)
    resource.setrlimit(kind, (value, value if hard else ceiling))


def landlock_version() -> int:
    """What the kernel offers; 0 when nothing."""
    with suppress(OSError, AttributeError):
        return max(0, int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, 1)))
    return 0


def _only_read_code(libc: ctypes.CDLL) -> None:
    """No file may be opened but the interpreter's, the libraries' and ours, and these only read;
    nothing can be executed; and no TCP connection made."""
    version = landlock_version()
    if not version:
        return
    files = (1 << _ALL_FILES_BY_VERSION.get(version, _ALL_FILES_LATEST)) - 1
    attributes = struct.pack("QQ", files, _ALL_TCP) if version >= 4 else struct.pack("Q", files)
    rules = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return
    try:
        for place in {*_SYSTEM, sys.prefix, sys.base_prefix, *sys.path}:
            _allow(libc, rules, place)
        libc.syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, place: str) -> None:
    try:
        descriptor = os.open(Path(place), os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        access = _READ_FILE | (_READ_DIR if folder else 0)
        libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)
