"""Reading ranges of a stream into columns: batched Direct Get, parsed where it arrives.

One regular expression takes the head of a message, and what it holds goes to the ends of a few
lists. There is no object per message, and messages without headers of their own, or with an id
alone, cost least.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.brokers.nats.protocol.headers import (
    HEADER_BLOCK,
    ORDERING_KEY,
    attributes_of,
    decode_header,
    encode_name,
    status_of,
)
from penstock.brokers.nats.sync.connection import BlockingConnection, Reconnecting
from penstock.clock import NS
from penstock.errors import (
    FailedPreconditionError,
    InternalError,
    TopicNotFoundError,
    UnavailableError,
)

BATCH = 10_000
BATCH_BYTES = 8 * 2**20
_END, _NONE, _NO_RESPONDERS = 204, 404, 503
_MICROS = 1_000_000

_MESSAGE = re.compile(
    rb"HMSG ([^ ]+) 1 (\d+) (\d+)\r\nNATS/1\.0\r\n(?:Nats-Msg-Id: ([^\r]*)\r\n)?"
    rb"Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\n"
    rb"Nats-Time-Stamp: ([^\r.Z]*)(?:\.(\d+))?Z\r\n"
)
_ADDED = re.compile(
    rb"Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\n"
    rb"Nats-Time-Stamp: ([^\r.Z]*)(?:\.(\d+))?Z\r\n"
)


class Columns:
    """Messages side by side. What few messages have is kept by row: `keys`, `headers`."""

    __slots__ = ("data", "headers", "ids", "keys", "published", "sequences", "size", "subjects")

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.ids: list[bytes] = []
        self.subjects: list[bytes] = []
        self.published: list[int] = []
        """Microseconds since the epoch."""
        self.data: list[bytes] = []
        self.keys: dict[int, str] = {}
        self.headers: dict[int, dict[str, str]] = {}
        """All headers of the message's own, reserved ones included."""
        self.size = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def add(
        self,
        topic: str,
        sequence: int,
        subject: bytes,
        published: int,
        headers: dict[str, str],
        payload: bytes,
    ) -> None:
        """A message with headers; the hot loops do the same for those without."""
        row = len(self)
        self.sequences.append(sequence)
        self.subjects.append(subject)
        self.published.append(published)
        self.data.append(payload)
        self.size += len(payload)
        self.ids.append((headers.get("Nats-Msg-Id") or f"{topic}-{sequence}").encode())
        self.headers[row] = headers
        if ORDERING_KEY in headers:
            self.keys[row] = headers[ORDERING_KEY]

    def attributes(self, row: int) -> dict[str, str]:
        found = self.headers.get(row)
        return attributes_of(found) if found else {}

    def extend(self, other: Columns) -> None:
        """Put another's rows after ours."""
        at = len(self)
        for name in ("sequences", "ids", "subjects", "published", "data"):
            getattr(self, name).extend(getattr(other, name))
        self.keys.update((at + row, key) for row, key in other.keys.items())
        self.headers.update((at + row, found) for row, found in other.headers.items())
        self.size += other.size

    def keep(self, rows: list[int]) -> Columns:
        """Only these rows."""
        kept = Columns()
        for name in ("sequences", "ids", "subjects", "published", "data"):
            column = getattr(self, name)
            setattr(kept, name, [column[row] for row in rows])
        for at, row in enumerate(rows):
            if row in self.keys:
                kept.keys[at] = self.keys[row]
            if row in self.headers:
                kept.headers[at] = self.headers[row]
        kept.size = sum(map(len, kept.data))
        return kept


class Stream:
    """A stream seen through a connection that is made again when lost."""

    def __init__(self, topic: str, connection: Reconnecting) -> None:
        self.topic = topic
        self.name = encode_name(topic)
        self.connection = connection

    def info(self) -> dict[str, Any]:
        """The leader's own word."""
        info: dict[str, Any] = self.connection.call(
            lambda connection: connection.request(
                f"STREAM.INFO.{self.name}", missing=lambda: TopicNotFoundError(self.topic)
            )
        )
        if not info["config"].get("allow_direct"):
            raise FailedPreconditionError(
                f"Topic {self.topic!r} cannot be read directly; set allow_direct on its stream"
            )
        return info

    def purge(self, before: int) -> None:
        """Forget everything below a sequence. Idempotent."""
        self.connection.call(
            lambda connection: connection.request(
                f"STREAM.PURGE.{self.name}",
                {"seq": before},
                missing=lambda: TopicNotFoundError(self.topic),
            )
        )

    def since(self, moment_us: int) -> int | None:
        """The first sequence stored at or after a moment, if there is one."""
        whole, below = divmod(max(moment_us, 0), _MICROS)
        text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        found = self._get({"start_time": f"{text}.{below:06d}Z", "batch": 1})
        return found.sequences[0] if found.sequences else None

    def read(self, first: int, last: int, subject: str = "") -> Iterator[Columns]:
        """What there is of `first` to `last`, both included, in order.

        Goes on where it was when the connection is lost. Waits for a replica that is behind.
        """
        at, waited = first, 0
        while at <= last:
            wanted = min(BATCH, last - at + 1)
            request: dict[str, Any] = {"seq": at, "batch": wanted, "max_bytes": BATCH_BYTES}
            if subject:
                request["next_by_subj"] = subject
            found = self._get(request)
            if found.sequences:
                at = found.sequences[-1] + 1
                waited = 0
                if at > last + 1:
                    # Direct Get has no upper end: it goes on past gaps.
                    rows = range(len(found))
                    found = found.keep([row for row in rows if found.sequences[row] <= last])
                if found.sequences:
                    yield found
                continue
            following = self._next_on_leader(at, subject)
            if following is None or following > last:
                return
            waited += 1
            if waited > 100:
                raise UnavailableError(
                    f"Topic {self.topic!r}: a replica stays behind sequence {following}"
                )
            time.sleep(0.05)

    def _next_on_leader(self, at: int, subject: str) -> int | None:
        """The next sequence there is, as the leader knows it: a replica may be behind."""
        try:
            answer = self.connection.call(
                lambda connection: connection.request(
                    f"STREAM.MSG.GET.{self.name}",
                    {"seq": at, "next_by_subj": subject or ">"},
                    missing=lambda: TopicNotFoundError(self.topic),
                )
            )
        except TopicNotFoundError:
            self.info()  # It is there: what is missing is the message.
            return None
        return int(answer["message"]["seq"])

    def _get(self, request: dict[str, Any]) -> Columns:
        payload = msgspec.json.encode(request)
        found: Columns = self.connection.call(lambda connection: self._sweep(connection, payload))
        return found

    def _sweep(self, connection: BlockingConnection, payload: bytes) -> Columns:
        columns = Columns()
        reply = connection.send(f"$JS.API.DIRECT.GET.{self.name}", b"", payload)
        parser = Parser(self.topic, reply, connection, columns)
        status = parser.run()
        if status == _NO_RESPONDERS:
            raise TopicNotFoundError(self.topic)
        if status not in (_END, _NONE):
            raise UnavailableError(
                f"Reading topic {self.topic!r}: the NATS server answered {status}"
            )
        return columns


class Parser:
    """Fills columns with the answers to one request."""

    def __init__(
        self, topic: str, reply: bytes, connection: BlockingConnection, columns: Columns
    ) -> None:
        self._topic = topic
        self._reply = reply
        self._connection = connection
        self._columns = columns
        self._missing = 0
        self._status = 0

    def run(self) -> int:
        """Until the server says that this was all; returns what it said."""
        connection = self._connection
        rest = connection.take_rest()
        while not self._status:
            if self._missing > 0:
                chunks = [rest]
                while self._missing > 0:
                    chunk = connection.receive()
                    self._missing -= len(chunk)
                    chunks.append(chunk)
                data = b"".join(chunks)
            else:
                data = rest + connection.receive()
            rest = data[self._consume(data) :]
        connection.give_back(rest)
        return self._status

    def _consume(self, data: bytes) -> int:
        """Take every complete message; returns where the first incomplete one begins."""
        columns = self._columns
        sequence_of, id_of = columns.sequences.append, columns.ids.append
        subject_of, published_of = columns.subjects.append, columns.published.append
        data_of = columns.data.append
        match, topic, reply = _MESSAGE.match, self._topic.encode(), self._reply
        at, size = 0, len(data)
        self._missing = taken = 0
        while at < size:
            found = match(data, at)
            if found is None:
                after = self._other(data, at)
                if after < 0:
                    break
                at = after
                if self._status:
                    break
                continue
            to, header, total, name, subject, sequence, moment, digits = found.groups()
            begin = found.end(3) + 2
            end = begin + int(total)
            if end + 2 > size:
                self._missing = end + 2 - size
                break
            at = end + 2
            if to != reply:
                continue
            payload = data[begin + int(header) : end]
            taken += len(payload)
            number = int(sequence)
            sequence_of(number)
            id_of(name or b"%b-%d" % (topic, number))
            subject_of(subject)
            published_of(_seconds(moment) + _fraction(digits))
            data_of(payload)
        columns.size += taken
        return at

    def _other(self, data: bytes, at: int) -> int:
        """Whatever does not look like most messages; -1 when it is not complete."""
        end = data.find(b"\r\n", at)
        if end < 0:
            return -1
        line = data[at:end]
        if not line.startswith((b"HMSG", b"MSG")):
            self._connection.control(line)
            return end + 2
        words = line.split()
        begin, total = end + 2, int(words[-1])
        end = begin + total
        if end + 2 > len(data):
            self._missing = end + 2 - len(data)
            return -1
        body = begin + int(words[-2]) if words[0] == b"HMSG" else begin
        status = status_of(data[begin:body])[0] if body > begin else 0
        if not status:
            self._full(words, data[begin:body], data[body:end])
        elif words[1] == self._reply:
            self._status = status
        return end + 2

    def _full(self, words: list[bytes], block: bytes, payload: bytes) -> None:
        """A message with headers of its own."""
        if words[1] != self._reply:
            return
        at = block.rfind(b"\r\nNats-Stream: ") + 2
        added = _ADDED.match(block, at)
        if added is None:
            raise InternalError(
                f"The NATS server sent a message of topic {self._topic!r} without its place"
            )
        subject, sequence, moment, digits = added.groups()
        headers = decode_header(block[:at] + b"\r\n") if at > len(HEADER_BLOCK) else {}
        published = _seconds(moment) + _fraction(digits)
        self._columns.add(self._topic, int(sequence), subject, published, headers, payload)


_known_seconds: dict[bytes, int] = {}


def _seconds(text: bytes) -> int:
    """`2026-01-02T03:04:05` in microseconds since the epoch. Neighbours share them."""
    known = _known_seconds.get(text)
    if known is None:
        if len(_known_seconds) > 10_000:
            _known_seconds.clear()
        moment = datetime.fromisoformat(f"{text.decode()}+00:00")
        known = _known_seconds[text] = int(moment.timestamp()) * (NS // 1000)
    return known


def _fraction(digits: bytes | None) -> int:
    """The fraction of a second in microseconds; the server leaves out zeros at the end."""
    return int(digits[:6].ljust(6, b"0")) if digits else 0
