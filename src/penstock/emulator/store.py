"""What Google keeps of a resource and a broker has no use for: labels, policies, schemas."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.errors import DataLossError, FailedPreconditionError

_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Store:
    """Bytes by key, in memory, and in one small file when it is given one.

    A change is on disk when the call returns: the file is written anew and put in place of the
    old one, so that a crash leaves either. Made for what operators change, not for messages. One
    process has it at a time: each writes all that it knows.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._kept: dict[str, bytes] = {}
        self._lock: BinaryIO | None = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(file)
            try:
                self._kept = _read(file)
            except DataLossError:
                self.close()
                raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def get(self, key: str) -> bytes | None:
        return self._kept.get(key)

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key in sorted(self._kept) if key.startswith(prefix))

    def put(self, key: str, value: bytes) -> None:
        if self._kept.get(key) != value:
            self._kept[key] = value
            self._save()

    def drop(self, *keys: str) -> None:
        gone = [self._kept.pop(key, None) for key in keys]
        if any(value is not None for value in gone):
            self._save()

    def clear(self) -> None:
        self._kept.clear()
        self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        fresh = self._file.with_suffix(".new")
        with fresh.open("wb") as out:
            out.write(msgspec.msgpack.encode(self._kept))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self._file)
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _locked(file: Path) -> BinaryIO:
    """Held while it is open; whoever is killed lets go of it."""
    lock = file.with_suffix(".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FailedPreconditionError(
            f"Another emulator has {file.parent}; connect to that one, or choose another folder"
        ) from None
    return lock


def _read(file: Path) -> dict[str, bytes]:
    try:
        return _decode(file.read_bytes()) if file.exists() else {}
    except msgspec.MsgspecError as error:
        raise DataLossError(
            f"{file} is damaged ({error}): it has labels, policies, schemas and push "
            "configurations. Put a copy of it there, or move it away to go on without them"
        ) from None
