"""A fence around each batch, for sinks whose topics forget ids sooner than batches are run again.

A mark beside the topic says for each partition of each query which batch it is writing, from which
sequence of the topic on, and how that ended. A batch that is run again finds the mark and looks
through the topic from there for what is stored already. A batch older than the mark means that the
checkpoint went back in time, and is refused.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from penstock.broker import RangeLog
from penstock.errors import FailedPreconditionError
from penstock.message import Draft
from penstock.spark.options import SinkOptions
from penstock.spark.ranges import open_patiently


class Progress(msgspec.Struct):
    """How far a partition of a query is: what its mark says."""

    batch: int
    since: int
    """The topic's next sequence when the batch was first begun."""
    done: bool = False
    rows: int = 0
    digest: int = 0
    token: str = ""
    """Whose it is: no other attempt writes the same."""


@contextmanager
def open_fence(options: SinkOptions, query: str, partition: int, batch: int) -> Iterator[Fence]:
    log = open_patiently(options.url, options.server_timeout, proven=True)
    try:
        fence = Fence(log, options, query, partition, batch)
        fence.begin()
        yield fence
    finally:
        log.close()


class Fence:
    """The fence of one partition of one batch."""

    def __init__(
        self, log: RangeLog, options: SinkOptions, query: str, partition: int, batch: int
    ) -> None:
        self._log = log
        self._topic = options.topic
        self._marks = options.fence_topic
        self._name = f"{query}.{partition}"
        self._batch = batch
        self._version = 0
        self._progress = Progress(batch, 1)
        self._stored: set[str] = set()
        self._rows = 0
        self._digest = 0

    @property
    def is_done(self) -> bool:
        return self._progress.done

    def begin(self) -> None:
        """Find what an earlier attempt left, or make a mark of our own."""
        found = self._read()
        if found is not None and found.batch > self._batch:
            raise FailedPreconditionError(
                f"Batch {self._batch} of this query was written before, and {found.batch} after "
                "it: the checkpoint went back in time. Restore the newer one; or, if the rows may "
                "be published again, begin with a new checkpoint"
            )
        if found is not None and found.batch == self._batch:
            self._progress = found
            if not found.done:
                self._stored = self._ids(found.since)
            return
        self._write(Progress(self._batch, self._log.extent(self._topic).end))

    def count(self, drafts: list[tuple[str, Draft]]) -> None:
        """Remember what the batch is made of, in whatever order it comes."""
        self._rows += len(drafts)
        crc = zlib.crc32
        self._digest = (self._digest + sum(crc(draft.data) for _, draft in drafts)) % 2**63

    def not_stored(self, drafts: list[tuple[str, Draft]]) -> list[tuple[str, Draft]]:
        if not self._stored:
            return drafts
        return [pair for pair in drafts if pair[1].message_id not in self._stored]

    def check_same(self) -> None:
        before = self._progress
        if (self._rows, self._digest) != (before.rows, before.digest):
            raise FailedPreconditionError(
                f"Batch {self._batch} of this query was written with {before.rows} rows and now "
                f"has {self._rows} or others: the checkpoint went back in time, or the query does "
                "not give the same rows twice. Begin with a new checkpoint"
            )

    def seal(self) -> None:
        """Everything is stored."""
        self._write(
            Progress(
                self._batch, self._progress.since, done=True, rows=self._rows, digest=self._digest
            )
        )

    def _ids(self, since: int) -> set[str]:
        last = self._log.extent(self._topic).last
        return {
            name.decode(errors="replace")
            for columns in self._log.read(self._topic, since, last)
            for name in columns.ids
        }

    def _read(self) -> Progress | None:
        found = self._log.mark(self._marks, self._name)
        self._version = found.version if found is not None else 0
        return msgspec.json.decode(found.data, type=Progress) if found is not None else None

    def _write(self, progress: Progress) -> None:
        """Replace our mark, unless another attempt has in the meantime."""
        progress.token = secrets.token_hex(8)
        data = msgspec.json.encode(progress)
        try:
            self._version = self._log.set_mark(
                self._marks, self._name, data, replaces=self._version
            )
        except FailedPreconditionError:
            # Ours, if the answer to the first attempt was lost.
            if self._read() != progress:
                raise FailedPreconditionError(
                    f"Another attempt is writing batch {self._batch} of this query"
                ) from None
        self._progress = progress
