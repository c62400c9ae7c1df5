"""The folder of `local://DIR`: a NATS server of our own on loopback, durable in DIR.

Every process that opens the same DIR finds the running server; the last to leave stops it. Two
lock files say who is there, and the system releases them when a process ends, however it ends:
`lock` is held for the moment of starting or stopping, `users` is shared by all who use the server.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from penstock.brokers.nats.local import process as server
from penstock.errors import FailedPreconditionError, InvalidArgumentError, PenstockError

_log = logging.getLogger("penstock")

# Ten megabytes of data and the largest headers.
_MAX_PAYLOAD = 11 * 2**20

_CONFIG = """\
# Written by penstock; a change here is overwritten at the next start.
listen: "127.0.0.1:{port}"
server_name: "penstock-local"
ports_file_dir: {run}
max_payload: {max_payload}
jetstream {{
  store_dir: {store}
  sync_interval: always
}}
authorization {{ user: "penstock", password: "{password}" }}
"""


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """What `server.json` says: where the server is and how to get in."""

    pid: int
    port: int
    password: str = field(repr=False)

    @property
    def running(self) -> bool:
        return server.alive(self.pid) and server.answers(self.port)

    @property
    def address(self) -> str:
        return f"nats://penstock:{self.password}@127.0.0.1:{self.port}"


class LocalServer:
    """The server of one directory, from the view of one user of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._users: IO[Any] | None = None

    @property
    def _state_file(self) -> Path:
        return self.directory / "server.json"

    @property
    def _kept_file(self) -> Path:
        return self.directory / "keep-running"

    def state(self) -> ServerState | None:
        """The running server; None when there is none."""
        found = self._last_state()
        return found if found is not None and found.running else None

    def _last_state(self) -> ServerState | None:
        with suppress(OSError, ValueError, TypeError):
            return ServerState(**json.loads(self._state_file.read_text()))
        return None

    def enter(self) -> ServerState:
        """Find the server or start it, and be counted among its users."""
        with self._made(), self._locked():
            state = self.state() or self._start()
            self._users = (self.directory / "users").open("a")
            fcntl.flock(self._users, fcntl.LOCK_SH)
        return state

    def leave(self) -> None:
        """Stop the server if nobody else uses it and nobody asked to keep it."""
        with self._locked():
            if self._users is None:
                return
            # Said explicitly: a forked child may hold the same file open.
            fcntl.flock(self._users, fcntl.LOCK_UN)
            self._users.close()
            self._users = None
            if not self._kept_file.exists() and not self._in_use():
                self._stop()

    def keep(self) -> ServerState:
        """Start it if need be, and let it run on when everybody has left."""
        with self._made(), self._locked():
            self._kept_file.touch(mode=0o600)
            return self.state() or self._start()

    def stop(self) -> bool:
        """Stop it, whoever uses it; False when it was not running."""
        if not self.directory.is_dir():
            return False
        with self._locked():
            self._kept_file.unlink(missing_ok=True)
            return self._stop()

    def _start(self) -> ServerState:
        run, store = self.directory / "run", self.directory / "data"
        for folder in (run, store):
            folder.mkdir(mode=0o700, exist_ok=True)
        for stale in run.glob("*.ports"):
            stale.unlink(missing_ok=True)
        # A server that died is started where it was, so that its users find it again.
        last = self._last_state()
        password = last.password if last is not None else secrets.token_urlsafe(24)
        config = self.directory / "server.conf"
        wanted = last.port if last is not None and _is_free(last.port) else -1
        _write_private(
            config,
            _CONFIG.format(
                port=wanted,
                run=json.dumps(str(run)),
                store=json.dumps(str(store)),
                max_payload=_MAX_PAYLOAD,
                password=password,
            ),
        )
        pid, port = server.start(config, self.directory / "server.log", run)
        state = ServerState(pid=pid, port=port, password=password)
        _write_private(self._state_file, json.dumps(vars(state)))
        _log.info(
            "Started a NATS server for %s on 127.0.0.1:%d. It syncs every write to disk: what it "
            "acknowledged survives a crash of any process and a power failure.",
            self.directory,
            port,
        )
        return state

    def _stop(self) -> bool:
        state = self.state()
        if state is not None:
            server.stop(state.pid)
        self._state_file.unlink(missing_ok=True)
        return state is not None

    def _in_use(self) -> bool:
        with (self.directory / "users").open("a") as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _made(self) -> Iterator[None]:
        """While files are written in the folder, which is made if need be."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield
        except PenstockError:  # Some of them are errors of the system, too.
            raise
        except OSError as error:
            raise FailedPreconditionError(
                f"{self.directory} cannot be the folder of a local:// broker: {error.strerror}; "
                "give it one that this user may make and write to"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


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


def _is_free(port: int) -> bool:
    """Nobody listens there; a server that has just died may need a moment to let go."""
    until = time.monotonic() + 1.0
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                if time.monotonic() > until:
                    return False
            else:
                return True
        time.sleep(0.02)


def _write_private(path: Path, text: str) -> None:
    """Only its owner may read it, from the first moment on."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
