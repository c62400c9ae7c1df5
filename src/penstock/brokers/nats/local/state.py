"""What a folder knows of its server, and how the server is told what to do."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.brokers.nats.local import process as server

# Ten megabytes of data and the largest headers.
_MAX_PAYLOAD = 11 * 2**20
# Bytes after which a new log is begun.
_LOG_SIZE = 10 * 2**20

_CONFIG = """\
# Written by penstock; a change here is overwritten at the next start.
listen: "127.0.0.1:{port}"
server_name: "penstock-local"
ports_file_dir: {run}
log_file: {log}
logfile_size_limit: {log_size}
logfile_max_num: 3
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
    """0 before it was ready for the first time."""
    password: str = field(repr=False)
    folder: str
    """Where it was started. A folder can be moved, and copied."""

    @property
    def lives(self) -> bool:
        """It was started and has not ended; it may not be ready."""
        return server.is_server(self.pid, config_file(Path(self.folder)))

    @property
    def running(self) -> bool:
        return self.lives and server.answers(self.port)

    @property
    def address(self) -> str:
        return f"nats://penstock:{self.password}@127.0.0.1:{self.port}"


def read_state(folder: Path) -> ServerState | None:
    """What was written last; the server may have died since."""
    with suppress(OSError, ValueError, TypeError):
        return ServerState(**{"folder": str(folder)} | json.loads(_state_file(folder).read_text()))
    return None


def write_state(folder: Path, state: ServerState) -> None:
    _write_private(_state_file(folder), json.dumps(vars(state)))


def forget_state(folder: Path) -> None:
    _state_file(folder).unlink(missing_ok=True)


def _state_file(folder: Path) -> Path:
    return folder / "server.json"


def config_file(folder: Path) -> Path:
    return folder / "server.conf"


def write_config(folder: Path, *, port: int, password: str) -> None:
    """`port`: -1 for any that is free."""
    text = _CONFIG.format(
        port=port,
        run=_quoted(folder / "run"),
        log=_quoted(folder / "server.log"),
        store=_quoted(folder / "data"),
        log_size=_LOG_SIZE,
        max_payload=_MAX_PAYLOAD,
        password=password,
    )
    _write_private(config_file(folder), text)


def _quoted(path: Path) -> str:
    """A path as the server's configuration takes it, whatever is in its name: it knows escapes of
    bytes, and none of characters."""
    return '"' + "".join(map(_escaped, os.fsencode(path))) + '"'


def _escaped(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
    return chr(byte) if plain else f"\\x{byte:02X}"


def _write_private(path: Path, text: str) -> None:
    """Only its owner may read it, from the first moment on."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
