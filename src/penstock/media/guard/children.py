"""A warm guarded process, as its parent sees it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.media.errors import MediaError, cannot_open
from penstock.media.guard.child_main import HEADER, HELLO, REQUEST, Request

_BOOT = (
    "import sys; n = int(sys.argv.pop(1)); sys.path[:] = sys.argv[1:]; "
    "from penstock.media.guard.child_main import main; main(n)"
)
_START_SECONDS = 30.0
_ENDING_SECONDS = 5.0
# Signals by which a child's own limits end it.
_OUT_OF_TIME = {signal.SIGXCPU, signal.SIGALRM}


def open_regular(path: Path | str) -> int:
    """A read-only descriptor of a regular file; never blocks on a pipe or touches a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise MediaError("not_found", "There is no such file") from None
        raise cannot_open(error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MediaError("forbidden", "Only regular files are read")
    return descriptor


class Child:
    """One warm process and the socket to it. Not thread-safe, except for `abort`."""

    def __init__(self) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _unavailable() from error
        self._socket = ours
        self.jobs = 0
        try:
            with theirs:
                paths = [str(Path(path).absolute()) for path in sys.path]
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-IBc", _BOOT, str(theirs.fileno()), *paths],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise _unavailable() from error
        try:
            kind, _ = self.receive(monotonic() + _START_SECONDS, 0)
        except MediaError:
            self.kill()
            raise _unavailable() from None
        if kind != HELLO:
            self.kill()
            raise _unavailable()

    def ask(self, request: Request, descriptor: int | None) -> None:
        body = msgspec.json.encode(request)
        self._socket.settimeout(_START_SECONDS)
        self.jobs += 1
        try:
            head = REQUEST.pack(len(body))
            socket.send_fds(self._socket, [head], [] if descriptor is None else [descriptor])
            self._socket.sendall(body)
        except OSError:
            raise self._died() from None

    def receive(self, deadline: float, most: int) -> tuple[bytes, bytearray]:
        kind, size = HEADER.unpack(self._exactly(HEADER.size, deadline))
        if size > most:
            raise MediaError("crashed", "The child sent more than it may")
        return kind, self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytearray:
        body = bytearray(size)
        view, got = memoryview(body), 0
        while got < size:
            left = deadline - monotonic()
            if left <= 0:
                raise _timeout()
            try:
                self._socket.settimeout(left)
                count = self._socket.recv_into(view[got:])
            except TimeoutError:
                raise _timeout() from None
            except OSError:
                count = 0
            if not count:
                raise self._died()
            got += count
        return body

    def _died(self) -> MediaError:
        status = self._status()
        if status is None:
            return MediaError("crashed", "The child closed its socket")
        if -status in _OUT_OF_TIME:
            return _timeout()
        if -status == signal.SIGKILL:
            # Most likely the kernel was short of memory, which need not be this file's fault.
            return MediaError("out_of_memory", "The child was killed", permanent=False)
        return MediaError("crashed", f"The child ended with status {status}")

    def _status(self) -> int | None:
        """How it ended, without reaping it: its process group is ours to kill until then."""
        until = monotonic() + _ENDING_SECONDS
        while monotonic() < until:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                exited = ended.si_code == os.CLD_EXITED
                return ended.si_status if exited else -ended.si_status
            time.sleep(0.005)
        return None

    def kill(self) -> None:
        self.abort()
        self._process.wait()
        self._socket.close()

    def abort(self) -> None:
        """Any thread may: end the process and its group; whoever reads sees the end."""
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def forget(self) -> None:
        """After a fork: the process is somebody else's, our copy of the socket is not needed."""
        self._socket.close()
        self._process.returncode = 0


def monotonic() -> float:
    # Not the loop's clock: this runs in threads, and the child's time is real.
    return time.monotonic()


def _timeout() -> MediaError:
    return MediaError("timeout", "It took longer than its limit", permanent=False)


def _unavailable() -> MediaError:
    return MediaError("guard_unavailable", "A guarded process did not start", permanent=False)
