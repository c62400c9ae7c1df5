"""A fence around each batch, for sinks whose topics forget ids sooner than batches are run again.

A mark beside the topic says for each query which batch it is writing, from which sequence of the
topic on, whose attempt that is, and how it ended. A batch that is run again takes the mark over and
looks through the topic from there for what is stored already, however its rows are shared out this
time; the attempt before it, should it still be alive, is refused from then on. A batch older than
the mark means that the checkpoint went back in time, and is refused.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from penstock.broker import RangeLog
from penstock.errors import FailedPreconditionError
from penstock.spark.options import SinkOptions
from penstock.spark.ranges import open_patiently
from penstock.spark.sink.rows import Addressed


@dataclass(frozen=True)
class Attempt:
    """A run of a batch of a query; `name` is its own, whichever of its tasks says it."""

    query: str
    batch: int
    name: str


class Progress(msgspec.Struct):
    """How far a query is: what its mark says."""

    batch: int
    since: int
    """The topic's next sequence when the batch was first begun."""
    attempt: str = ""
    first: bool = True
    """Nobody had begun the batch before this attempt."""
    done: bool = False
    rows: int = 0
    digest: int = 0
    token: str = ""
    """No other writer writes the same."""


class Tally:
    """What rows there were, in whatever order they came: those of tasks can be added up."""

    def __init__(self, rows: int = 0, digest: int = 0) -> None:
        self.rows = rows
        self.digest = digest

    def count(self, drafts: Sequence[Addressed]) -> None:
        crc = zlib.crc32
        self.add(len(drafts), sum(crc(draft.data) for _, draft in drafts))

    def add(self, rows: int, digest: int) -> None:
        self.rows += rows
        self.digest = (self.digest + digest) % 2**63


@contextmanager
def open_fence(options: SinkOptions, attempt: Attempt) -> Iterator[Fence]:
    log = open_patiently(options.url, options.server_timeout, proven=True)
    try:
        yield Fence(log, options, attempt)
    finally:
        log.close()


class Fence:
    """The fence around one batch, for each of its tasks and for who ends it."""

    def __init__(self, log: RangeLog, options: SinkOptions, attempt: Attempt) -> None:
        self._log = log
        self._topic = options.topic
        self._marks = options.fence_topic
        self._attempt = attempt
        self._version = 0
        self._progress = Progress(attempt.batch, 1)
        self._stored: set[str] = set()

    @property
    def is_done(self) -> bool:
        """An earlier attempt stored everything."""
        return self._progress.done

    @property
    def is_first(self) -> bool:
        return self._progress.first

    def begin(self, *, task_again: bool = False, named: str = "") -> None:
        """Find what earlier attempts left, and make the batch ours. `task_again`: this task was run
        before in this attempt. `named`: what the ids of its rows begin with, if that is known: then
        what others have stored since need not be remembered."""
        while not self._is_ours():
            pass
        if not self.is_done and (task_again or not self.is_first):
            ids = self._ids(self._progress.since)
            self._stored = {name for name in ids if name.startswith(named)}

    def not_stored(self, drafts: list[Addressed]) -> list[Addressed]:
        if not self._stored:
            return drafts
        return [pair for pair in drafts if pair[1].message_id not in self._stored]

    def check(self) -> None:
        """Raise if another attempt has taken the batch over."""
        found = self._read()
        if found is None or (found.batch, found.attempt) != self._own():
            raise self._taken_over()
        self._progress = found

    def seal(self, tally: Tally) -> None:
        """Every task has stored what it had; or, if the batch was sealed before, the rows are the
        same."""
        found = self._read()
        if found is not None and found.batch == self._attempt.batch and found.done:
            self._check_same(found, tally)
            return
        self.check()
        sealed = msgspec.structs.replace(
            self._progress, done=True, rows=tally.rows, digest=tally.digest
        )
        if not self._write(sealed):
            raise self._taken_over()

    def _is_ours(self) -> bool:
        """Whether the mark is for our attempt now; False: somebody else was faster, look again."""
        found, batch = self._read(), self._attempt.batch
        if found is not None and found.batch > batch:
            raise FailedPreconditionError(
                f"Batch {batch} of this query was written before, and {found.batch} after "
                "it: the checkpoint went back in time. Restore the newer one; or, if the rows may "
                "be published again, begin with a new checkpoint"
            )
        if found is not None and found.batch == batch:
            if found.done or found.attempt == self._attempt.name:
                self._progress = found
                return True
            return self._write(Progress(batch, found.since, self._attempt.name, first=False))
        end = self._log.extent(self._topic).end
        return self._write(Progress(batch, end, self._attempt.name))

    def _check_same(self, before: Progress, now: Tally) -> None:
        if (now.rows, now.digest) != (before.rows, before.digest):
            raise FailedPreconditionError(
                f"Batch {before.batch} of this query was written with {before.rows} rows and now "
                f"has {now.rows} or others: the checkpoint went back in time, or the query does "
                "not give the same rows twice. Begin with a new checkpoint"
            )

    def _own(self) -> tuple[int, str]:
        return self._attempt.batch, self._attempt.name

    def _taken_over(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"Another attempt has taken batch {self._attempt.batch} of this query over; let only "
            "one driver use a checkpoint"
        )

    def _ids(self, since: int) -> Iterable[str]:
        last = self._log.extent(self._topic).last
        for columns in self._log.read(self._topic, since, last):
            yield from (name.decode(errors="replace") for name in columns.ids)

    def _read(self) -> Progress | None:
        found = self._log.mark(self._marks, self._attempt.query)
        self._version = found.version if found is not None else 0
        return msgspec.json.decode(found.data, type=Progress) if found is not None else None

    def _write(self, progress: Progress) -> bool:
        """Replace the mark, unless somebody else has in the meantime."""
        progress.token = secrets.token_hex(8)
        data = msgspec.json.encode(progress)
        try:
            self._version = self._log.set_mark(
                self._marks, self._attempt.query, data, replaces=self._version
            )
        except FailedPreconditionError:
            # Ours, if the answer to the first attempt was lost.
            if self._read() != progress:
                return False
        self._progress = progress
        return True
