"""What Google keeps of a resource and a broker has no use for: labels, policies, schemas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Store:
    """Bytes by key, in memory, and in one small file when it is given one.

    A change is on disk when the call returns: the file is written anew and put in place of the
    old one, so that a crash leaves either. Made for what operators change, not for messages.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._kept: dict[str, bytes] = {}
        if file is not None and file.exists():
            self._kept = _decode(file.read_bytes())

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
        self._file.parent.mkdir(parents=True, exist_ok=True)
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
