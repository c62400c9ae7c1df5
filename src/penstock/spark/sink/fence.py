"""A fence around each batch, for sinks whose topics forget ids sooner than batches are run again.

A stream beside the topic keeps one small record for each partition of each query: which batch it
is writing, from which sequence of the topic on, and how it ended. A batch that is run again finds
its record and looks through the topic from there for what is stored already. A batch older than
the record means that the checkpoint went back in time, and is refused.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.brokers.nats.aio.connection import api_error
from penstock.brokers.nats.protocol.headers import HEADER_BLOCK, encode_name
from penstock.brokers.nats.sync.connection import BlockingConnection
from penstock.brokers.nats.sync.ranges import Stream
from penstock.errors import (
    FailedPreconditionError,
    NotFoundError,
    TopicNotFoundError,
)
from penstock.message import Draft
from penstock.spark.source.door import Door
from penstock.spark.source.options import SinkOptions

_DAY_NS = 86_400 * 10**9


class Mark(msgspec.Struct):
    """What the fence says of a partition of a query."""

    batch: int
    since: int
    """The topic's next sequence when the batch was first begun."""
    done: bool = False
    rows: int = 0
    digest: int = 0
    token: str = ""


@contextmanager
def open_fence(options: SinkOptions, query: str, partition: int, batch: int) -> Iterator[Fence]:
    door = Door(options.url, options.server_timeout, first=True)
    try:
        fence = Fence(door, options, query, partition, batch)
        fence.begin()
        yield fence
    finally:
        door.close()


class Fence:
    """The fence of one partition of one batch."""

    def __init__(
        self, door: Door, options: SinkOptions, query: str, partition: int, batch: int
    ) -> None:
        self._connection = door.connection
        self._topic = Stream(options.topic, door.connection)
        self._name = options.fence_topic
        self._subject = f"{options.fence_topic}.{query}.{partition}"
        self._batch = batch
        self._sequence = 0
        self._mark = Mark(batch, 1)
        self._stored: set[str] = set()
        self._rows = 0
        self._digest = 0

    @property
    def is_done(self) -> bool:
        return self._mark.done

    def begin(self) -> None:
        """Find what an earlier attempt left, or make a mark of our own."""
        self._create()
        found, self._sequence = self._last()
        if found is not None and found.batch > self._batch:
            raise FailedPreconditionError(
                f"Batch {self._batch} of this query was written before, and {found.batch} after "
                "it: the checkpoint went back in time. Restore the newer one; or, if the rows may "
                "be published again, begin with a new checkpoint"
            )
        if found is not None and found.batch == self._batch:
            self._mark = found
            if not found.done:
                self._stored = self._ids(found.since)
            return
        end = self._topic.info()["state"]["last_seq"] + 1
        self._mark = Mark(self._batch, end)
        self._write(self._mark)

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
        if (self._rows, self._digest) != (self._mark.rows, self._mark.digest):
            raise FailedPreconditionError(
                f"Batch {self._batch} of this query was written with {self._mark.rows} rows and "
                f"now has {self._rows} or others: the checkpoint went back in time, or the query "
                "does not give the same rows twice. Begin with a new checkpoint"
            )

    def seal(self) -> None:
        """Everything is stored."""
        self._write(
            Mark(self._batch, self._mark.since, done=True, rows=self._rows, digest=self._digest)
        )

    def _ids(self, since: int) -> set[str]:
        last = self._topic.info()["state"]["last_seq"]
        return {
            name.decode(errors="replace")
            for columns in self._topic.read(since, last)
            for name in columns.ids
        }

    def _last(self) -> tuple[Mark | None, int]:
        """The leader's word: a replica may be behind."""

        def get(connection: BlockingConnection) -> dict[str, Any]:
            return connection.request(
                f"STREAM.MSG.GET.{encode_name(self._name)}",
                {"last_by_subj": self._subject},
                missing=lambda: NotFoundError("no mark yet"),
            )

        try:
            message = self._connection.call(get)["message"]
        except NotFoundError:
            return None, 0
        data = msgspec.json.decode(f'"{message["data"]}"', type=bytes)
        return msgspec.json.decode(data, type=Mark), int(message["seq"])

    def _write(self, mark: Mark) -> None:
        """Replace our record, unless another attempt has in the meantime."""
        mark.token = secrets.token_hex(8)
        header = b"%bNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (
            HEADER_BLOCK,
            self._sequence,
        )
        payload = msgspec.json.encode(mark)

        def put(connection: BlockingConnection) -> dict[str, Any]:
            _, answer = connection.ask(self._subject, header, payload)
            decoded: dict[str, Any] = msgspec.json.decode(answer)
            if "error" in decoded:
                raise api_error(decoded["error"])
            return decoded

        try:
            self._sequence = int(self._connection.call(put)["seq"])
        except FailedPreconditionError:
            # Ours, if the answer to the first attempt was lost.
            found, self._sequence = self._last()
            if found is None or found.token != mark.token:
                raise FailedPreconditionError(
                    f"Another attempt is writing batch {self._batch} of this query"
                ) from None
        self._mark = mark

    def _create(self) -> None:
        stream = encode_name(self._name)

        def look(connection: BlockingConnection) -> None:
            try:
                connection.request(
                    f"STREAM.INFO.{stream}", missing=lambda: TopicNotFoundError(self._name)
                )
            except TopicNotFoundError:
                connection.request(f"STREAM.CREATE.{stream}", _fences(self._name))

        self._connection.call(look)


def _fences(name: str) -> dict[str, Any]:
    """A record a subject; one that nobody has touched for a month belongs to nobody."""
    return {
        "name": encode_name(name),
        "subjects": [name, f"{name}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_msgs_per_subject": 1,
        "max_age": 31 * _DAY_NS,
        "allow_direct": True,
    }
