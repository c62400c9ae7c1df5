"""Watches the users of a folder's server: when the last was killed, the server is stopped.

A process of its own waits for that, because whoever is killed can do nothing more. It runs this
file by its path and without Penstock, so that it weighs a few megabytes; only in the end it
becomes `abandoned.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path

# Seconds that a killed user has to be back, started again by whoever watches over it.
GRACE = 10.0
_LOOK_EVERY = 1.0
# One that is about to end lets go within these.
_ONE_BEFORE_ENDS_WITHIN = 5.0


def begin_watching(folder: Path) -> None:
    """Start a process that watches `folder`, unless there is one."""
    if not sys.executable or _is_watched(folder):
        return
    # Through a shell, which ends at once: nobody is left with a child to collect.
    watch = [sys.executable, "-I", "-S", __file__, str(folder), str(GRACE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    shell = os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *watch],
        environment,
        setsid=True,
    )
    os.waitpid(shell, 0)


def _is_watched(folder: Path) -> bool:
    with (folder / "watched").open("a") as file:
        return not _taken(file.fileno())


def main(folder: Path, grace: float) -> None:
    # Not made: whoever removes the folder, however soon, finds nothing that he has not seen.
    names = ("watched", "lock", "users")
    watched, lock, users = (os.open(folder / name, os.O_WRONLY) for name in names)
    until = time.monotonic() + _ONE_BEFORE_ENDS_WITHIN
    while not _taken(watched):
        if time.monotonic() > until:
            return
        time.sleep(0.05)
    used, pid = time.monotonic(), 0
    while True:
        # Where the folder was removed, nothing else is left to tell. Another may be in its place.
        if _is_here(folder, lock):
            pid = _server(folder, pid)
        time.sleep(min(_LOOK_EVERY, grace))
        now = time.monotonic()
        if _in_use(lock, users):
            used = now
        elif not (folder / "server.json").exists() and not is_running(pid):
            return  # It was stopped by the last who left.
        elif now - used >= grace:
            words = ["-m", "penstock.brokers.nats.local.abandoned", str(folder), str(pid)]
            os.execv(sys.executable, [sys.executable, *words])  # noqa: S606


def _is_here(folder: Path, lock: int) -> bool:
    try:
        return os.path.samestat((folder / "lock").stat(), os.fstat(lock))
    except OSError:
        return False


def _server(folder: Path, before: int) -> int:
    """The process that is to end with its users; 0: none is."""
    if (folder / "keep-running").exists():
        return 0
    try:
        return int(json.loads((folder / "server.json").read_bytes())["pid"])
    except (OSError, ValueError, LookupError, TypeError):
        return before


def is_running(pid: int) -> bool:
    """The process exists and has not ended. Here, because nothing of Penstock is loaded here."""
    if pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # One that has ended and that its parent has not collected yet does not run.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def _in_use(lock: int, users: int) -> bool:
    """Looked at when nobody else does: they would take us for a user."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        return not _taken(users)
    finally:
        fcntl.flock(users, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_UN)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
