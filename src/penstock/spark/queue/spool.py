"""Segments on disk, for brokers that cannot be asked again.

A segment is written once, synced, given its name, and only then are its messages acked. From
there on it is what a log is for the others: it can be read as often as need be. It is deleted when
the batch that read it is committed; the ids in it are remembered for a while longer, because a
message whose ack was lost comes again.

    segment-000000000007.arrow     rows, in Arrow's stream format
    segment-000000000007.ids       ids and times of a segment that was deleted
    lock                           held by the one who writes here
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from penstock.errors import FailedPreconditionError
from penstock.message import Record

# A message may come again as long as its lease may last.
REMEMBERED = 1200.0
_LOCK_WITHIN = 10.0


class Spool:
    """The segments of one query. One process writes; another reads a segment once it is named."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._ids: dict[int, set[str]] = {}
        self._known: set[str] = set()
        self._changed = threading.Condition()
        self.rows: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.next = 1
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._locked()
        self._recover()

    def _locked(self) -> IO[str]:
        file = (self._folder / "lock").open("a")
        until = time.monotonic() + _LOCK_WITHIN
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    file.close()
                    raise FailedPreconditionError(
                        f"Another query spools to {self._folder}; give each one of its own"
                    ) from None
                time.sleep(0.05)
            else:
                return file

    def _recover(self) -> None:
        """Find what an earlier process left; what it had not finished never was."""
        for unfinished in self._folder.glob("*.new"):
            unfinished.unlink()
        for path in sorted(self._folder.glob("segment-*.arrow")):
            number = int(path.stem.partition("-")[2])
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                rows = stream.read_all()
            ids, times = rows.column("message_id"), rows.column("publish_time").cast(pa.int64())
            self._remember(number, set(map(_sign, ids.to_pylist(), times.to_pylist())))
            self.rows[number], self.sizes[number] = len(rows), path.stat().st_size
            self.next = max(self.next, number + 1)
        for path in self._folder.glob("segment-*.ids"):
            number = int(path.stem.partition("-")[2])
            self.next = max(self.next, number + 1)
            if number in self.rows:
                path.unlink()  # It was about to be deleted, and is not yet.
            else:
                self._remember(number, set(json.loads(path.read_text())))

    def _remember(self, number: int, ids: set[str]) -> None:
        self._ids[number] = ids
        self._known |= ids

    @property
    def first(self) -> int:
        """The oldest segment there is, or the next there will be."""
        return min(self.rows, default=self.next)

    @property
    def has_history(self) -> bool:
        return bool(self._ids)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def begin_at(self, number: int) -> None:
        """Numbers below are taken, as a checkpoint says."""
        self.next = max(self.next, number)

    def seal(self, records: Sequence[Record], topic: str) -> int:
        """Store what is new among `records`, durably; returns how many that were."""
        fresh: dict[str, Record] = {}
        for record in records:
            sign = _sign(record.message_id, record.publish_time_ns // 1000)
            if sign not in self._known:
                fresh.setdefault(sign, record)
        if not fresh:
            return 0
        path = self._path(self.next)
        temporary = path.with_suffix(".new")
        batch = _batch(self._schema, topic, list(fresh.values()))
        with temporary.open("wb") as file:
            with pa.ipc.new_stream(file, self._schema) as stream:
                stream.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        self._sync()
        with self._changed:
            self._remember(self.next, set(fresh))
            self.rows[self.next] = len(fresh)
            self.sizes[self.next] = path.stat().st_size
            self.next += 1
            self._changed.notify_all()
        return len(fresh)

    def forget(self, before: int) -> None:
        """Delete segments that nobody will ask for again, and ids that no message will have."""
        now = time.time()
        with self._changed:  # Whoever seals adds to them meanwhile.
            done = [number for number in self.rows if number < before]
        for number in done:
            path = self._path(number)
            ids = path.with_suffix(".ids")
            temporary = ids.with_suffix(".new")
            temporary.write_text(json.dumps(sorted(self._ids[number])))
            temporary.rename(ids)
            path.unlink()
            with self._changed:
                del self.rows[number], self.sizes[number]
        for path in self._folder.glob("segment-*.ids"):
            number = int(path.stem.partition("-")[2])
            # The newest stays: it says which numbers are taken.
            if number < self.next - 1 and path.stat().st_mtime < now - REMEMBERED:
                path.unlink()
                self._known -= self._ids.pop(number, set())

    def wait(self, beyond: int, seconds: float) -> bool:
        """Until there is a segment with number `beyond`, or for some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.next > beyond, seconds)

    def close(self) -> None:
        self._lock.close()

    def _path(self, number: int) -> Path:
        return segment_path(self._folder, number)

    def _sync(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _sign(message_id: str, published_us: int) -> str:
    """What tells a message from others: a publisher may use an id again, and a message that comes
    again was published when it was."""
    return f"{message_id}@{published_us}"


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:012d}.arrow"


def _batch(schema: pa.Schema, topic: str, records: list[Record]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "topic": [topic] * len(records),
        "sequence": [record.sequence for record in records],
        "subject": [record.subject for record in records],
        "message_id": [record.message_id for record in records],
        "ordering_key": [record.ordering_key for record in records],
        "attributes": [list(record.attributes.items()) for record in records],
        "data": [record.data for record in records],
        "publish_time": [record.publish_time_ns // 1000 for record in records],
    }
    arrays = [pa.array(columns[name], schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
