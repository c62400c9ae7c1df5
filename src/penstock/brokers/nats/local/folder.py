"""The folder of `local://DIR`: a NATS server of our own on loopback, durable in DIR.

Every process that opens the same DIR finds the running server; the last to leave stops it. Lock
files say who is there, and the system releases them when a process ends, however it ends:

    lock      held for the moment of starting or stopping
    users     shared by all who use the server
    serving   held by the server itself: nobody else may open the store
    watched   held by a process that stops the server when its last user was killed
"""

from __future__ import annotations

import fcntl
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import IO, Any

from penstock.brokers.nats.local import process as server
from penstock.brokers.nats.local.locks import flocked, is_free
from penstock.brokers.nats.local.state import (
    ServerState,
    config_file,
    forget_state,
    read_state,
    write_config,
    write_state,
)
from penstock.brokers.nats.local.watch import begin_watching
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PenstockError,
    PermissionDeniedError,
    UnavailableError,
)

_log = logging.getLogger("penstock")

_TELL_EVERY = 5.0
# A process that has ended lets go of its files and ports a moment later.
_LETS_GO_WITHIN = 2.0


class LocalServer:
    """The server of one directory, from the view of one user of it. Every method blocks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._users: IO[Any] | None = None
        self._last: ServerState | None = None
        self._given_up = threading.Event()

    def state(self) -> ServerState | None:
        """The running server; None when there is none."""
        found = read_state(self.directory)
        return found if found is not None and self._is_ours(found) and found.running else None

    def enter(self) -> ServerState:
        """Find the server or start it, and be counted among its users."""
        with self._locked():
            # Before it starts: who watches it must find somebody.
            users = self._file("users")
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                self._last = self._found() or self._start()
                begin_watching(self.directory)
            except BaseException:
                users.close()
                raise
            self._users = users
        return self._last

    def revive(self) -> ServerState | None:
        """The server, started again if it has died; None when somebody stopped it."""
        with self._locked(make=False):
            if read_state(self.directory) is None:
                return None
            self._last = self._found() or self._start()
        return self._last

    def give_up(self) -> None:
        """Let a call in another thread end at once, with `UnavailableError`."""
        self._given_up.set()

    def leave(self) -> None:
        """Stop the server if nobody else uses it and nobody asked to keep it."""
        if self._users is None:
            return
        self._given_up.clear()
        try:
            with self._locked(make=False):
                self._let_go()
                self._stop_unless_needed()
        except PenstockError as error:
            _log.warning("%s", error)
            self._leave_without_folder()

    def stop_if_abandoned(self) -> bool:
        """Stop the server if nobody uses it and nobody asked to keep it; False: it is in use."""
        with self._locked(make=False):
            return self._stop_unless_needed()

    def keep(self) -> ServerState:
        """Start it if need be, and let it run on when everybody has left."""
        with self._locked():
            self._kept_file.touch(mode=0o600)
            return self._found() or self._start()

    def stop(self) -> bool:
        """Stop it, whoever uses it; False when it was not running."""
        if not self.directory.is_dir():
            return False
        with self._locked(make=False):
            self._kept_file.unlink(missing_ok=True)
            return self._stop()

    @property
    def _kept_file(self) -> Path:
        return self.directory / "keep-running"

    def _file(self, name: str) -> IO[Any]:
        return (self.directory / name).open("a")

    # Starting.

    def _found(self) -> ServerState | None:
        """The server that was started before, once it is ready; None when there is none."""
        last = read_state(self.directory)
        if last is None or not self._is_ours(last) or not last.lives:
            return None
        if not Path(last.folder).is_dir():
            raise FailedPreconditionError(
                f"{self.directory} was moved while its server was running in {last.folder}; stop "
                f"that with: penstock server stop {quote(str(self.directory))}"
            )
        if last.port and server.answers(last.port):
            return last
        # Whoever started it is gone, or it does not answer now, or it is about to die. A second one
        # on the same store would ruin it.
        try:
            return self._when_ready(last)
        except UnavailableError:
            self._check_wanted()
            if last.lives:
                raise
            return None

    def _is_ours(self, state: ServerState) -> bool:
        """False for the server of the folder that this one is a copy of."""
        there = Path(state.folder)
        return not there.is_dir() or there.samefile(self.directory)

    def _start(self) -> ServerState:
        run = self.directory / "run"
        for folder in (run, self.directory / "data"):
            folder.mkdir(mode=0o700, exist_ok=True)
        for stale in run.glob("*.ports"):
            stale.unlink(missing_ok=True)
        # A server that died is started where it was, so that its users find it again.
        last = read_state(self.directory)
        password = last.password if last is not None else secrets.token_urlsafe(24)
        port = last.port if last is not None and last.port and is_free(last.port) else 0
        write_config(self.directory, port=port or -1, password=password)
        with self._serving() as serving:
            pid = server.spawn(config_file(self.directory), self._log_file, serving)
        state = ServerState(pid=pid, port=port, password=password, folder=str(self.directory))
        try:
            # Known before it is ready: if we are killed meanwhile, the next one waits for it.
            write_state(self.directory, state)
            state = self._when_ready(state)
        except BaseException:
            server.stop(pid, timeout=0)
            raise
        _log.info(
            "Started a NATS server for %s on 127.0.0.1:%d. It syncs every write to disk: what it "
            "acknowledged survives a crash of any process and a power failure.",
            self.directory,
            state.port,
        )
        return state

    @property
    def _log_file(self) -> Path:
        return self.directory / "server.log"

    def _when_ready(self, state: ServerState) -> ServerState:
        run = self.directory / "run"
        port = server.ready(state.pid, self._log_file, run, self._check_wanted)
        state = replace(state, port=port)
        write_state(self.directory, state)
        return state

    @contextmanager
    def _serving(self) -> Iterator[int]:
        """The lock that a server is given to hold."""
        with self._file("serving") as file:
            if not flocked(file, _LETS_GO_WITHIN):
                raise UnavailableError(
                    f"A NATS server that was not started from here uses {self.directory}, in "
                    "another container perhaps; end it, then open the folder again"
                )
            yield file.fileno()

    # Stopping.

    def _let_go(self) -> None:
        if self._users is not None:
            # Said explicitly: a forked child may hold the same file open.
            fcntl.flock(self._users, fcntl.LOCK_UN)
            self._users.close()
            self._users = None

    def _stop_unless_needed(self) -> bool:
        """False when somebody uses it."""
        if self._in_use():
            return False
        if not self._kept_file.exists():
            self._stop()
        return True

    def _stop(self) -> bool:
        state = read_state(self.directory)
        lives = state is not None and self._is_ours(state) and state.lives
        if state is not None and lives:
            server.stop(state.pid)
        forget_state(self.directory)
        return lives

    def _in_use(self) -> bool:
        with self._file("users") as users:
            return not flocked(users, 0)

    def _leave_without_folder(self) -> None:
        """The folder was moved or removed under us; its server is still ours to stop."""
        users, last = self._users, self._last
        if users is None:
            return
        alone = flocked(users, 0)
        self._let_go()
        if alone and last is not None and last.lives:
            server.stop(last.pid)

    # Locking.

    @contextmanager
    def _locked(self, *, make: bool = True) -> Iterator[None]:
        """One at a time. Whatever is wrong with the folder is told in one line."""
        try:
            if make:
                self._make()
            with self._file("lock") as lock:
                self._await_turn(lock)
                yield
        except PenstockError:  # Some of ours are the system's, too.
            raise
        except OSError as error:
            raise _unusable(self.directory, error, made=make) from error

    def _make(self) -> None:
        if read_state(self.directory) is None:
            server.find_binary()  # It will have to be started; without one nothing is made.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _await_turn(self, lock: IO[Any]) -> None:
        """Another process may be waiting for the server to recover its store."""
        began = time.monotonic()
        while not flocked(lock, _TELL_EVERY, self._check_wanted):
            _log.warning(
                "Waiting for another process that starts or stops the NATS server in %s, for %d s",
                self.directory,
                time.monotonic() - began,
            )

    def _check_wanted(self) -> None:
        if self._given_up.is_set():
            raise UnavailableError(f"Opening {self.directory} was given up")


def folder_of(url: str) -> Path:
    """The folder that `local://DIR` names."""
    directory = url.partition("://")[2]
    if not directory:
        raise InvalidArgumentError("local:// needs a folder, for example local://./data")
    return Path(directory).expanduser().absolute()


def check_everywhere(url: str) -> None:
    """Raise unless `url` names the same folder wherever a process works."""
    if not url.partition("://")[2].startswith(("/", "~")):
        raise InvalidArgumentError(
            "These processes work in different folders: give local:// an absolute path, as in "
            "local:///var/data"
        )


def _unusable(folder: Path, error: OSError, *, made: bool) -> PenstockError:
    """What the system says of a folder, in one line. `made`: it was to be made if it was not
    there."""
    reason = error.strerror or str(error)
    match error:
        case FileExistsError() | NotADirectoryError():
            return InvalidArgumentError(f"{folder} cannot hold a local server: it is not a folder")
        case FileNotFoundError() if not made:
            return FailedPreconditionError(f"{folder} is gone: it was moved or removed")
        case PermissionError():
            kind: type[PenstockError] = PermissionDeniedError
        case _:
            kind = FailedPreconditionError
    return kind(
        f"{folder} cannot hold a local server: {error.filename or folder}: {reason}; give a folder "
        "that this user may write to"
    )
