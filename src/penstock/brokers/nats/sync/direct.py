"""Reading a stream with batched Direct Get: no consumer, nothing to clean up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.brokers.nats.protocol.configuration import NoDirectReadsError, check_direct
from penstock.brokers.nats.protocol.errors import odd_status
from penstock.brokers.nats.protocol.headers import (
    END_OF_BATCH,
    NO_MESSAGES,
    NO_RESPONDERS,
    encode_name,
)
from penstock.brokers.nats.protocol.parsing import DirectParser
from penstock.brokers.nats.protocol.records import moment_text
from penstock.brokers.nats.protocol.requests import direct_get, encode_request
from penstock.brokers.nats.sync.connection import LazyConnection
from penstock.columns import Columns
from penstock.errors import NotFoundError, TopicNotFoundError, UnavailableError

# What a server sends before it waits to be asked again: enough to keep it busy, and little enough
# to hold in memory.
BATCH = 10_000
BATCH_BYTES = 8 * 2**20


class DirectReader:
    """One topic. `headers`: keep all of a message's own."""

    def __init__(self, link: LazyConnection, topic: str, *, headers: bool = False) -> None:
        self._link = link
        self._topic = topic
        self._stream = encode_name(topic)
        self._headers = headers

    def info(self) -> dict[str, Any]:
        """The leader's own word."""
        with self._link.use() as connection:
            info = connection.request(
                f"STREAM.INFO.{self._stream}", missing=lambda: TopicNotFoundError(self._topic)
            )
        return info

    def first_since(self, moment_us: int) -> int | None:
        place = {"start_time": moment_text(moment_us * 1000)}
        try:
            found = self._get({**place, "batch": 1})
        except NoDirectReadsError:
            return self._next_on_leader(place, "")
        return found.sequences[0] if found else self._next_on_leader(place, "")

    def read(self, first: int, last: int, subject: str = "") -> Iterator[Columns]:
        """What there is of `first` to `last`, both included, in order; on a subject, if given."""
        at = first
        while at <= last:
            wanted = min(BATCH, last - at + 1)
            request: dict[str, Any] = {"seq": at, "batch": wanted, "max_bytes": BATCH_BYTES}
            if subject:
                request["next_by_subj"] = subject
            found = self._get(request)
            if not found:
                self.check_end(at, last, [subject])
                return
            at = found.sequences[-1] + 1
            # Direct Get has no upper end: it goes on past gaps.
            found, _ = found.cut(last)
            if found:
                yield found

    def check_end(self, at: int, last: int, subjects: Sequence[str]) -> None:
        """Raise if there is something from `at` to `last`; on these subjects, if any. A replica
        answers, and may be behind: the leader knows where the stream ends."""
        if at > last:
            return
        for subject in subjects or ("",):
            following = self._next_on_leader({"seq": at}, subject)
            if following is not None and following <= last:
                raise UnavailableError(
                    f"Topic {self._topic!r}: the replica that was asked is behind sequence "
                    f"{following}"
                )

    def _next_on_leader(self, place: dict[str, Any], subject: str) -> int | None:
        request = {**place, "next_by_subj": subject or ">"}
        with self._link.use() as connection:
            try:
                answer = connection.request(f"STREAM.MSG.GET.{self._stream}", request)
            except NotFoundError:
                self.info()  # It is there: what is missing is the message.
                return None
        return int(answer["message"]["seq"])

    def _get(self, request: dict[str, Any]) -> Columns:
        with self._link.use() as connection:
            reply = connection.send(direct_get(self._stream), b"", encode_request(request))
            parser = DirectParser(self._topic, reply, connection.control, headers=self._headers)
            status = connection.receive_into(parser)
        if status == NO_RESPONDERS:
            # The topic is gone, or takes no such requests; or its servers are choosing a leader.
            check_direct(self._topic, self.info())
        if status not in (END_OF_BATCH, NO_MESSAGES):
            raise odd_status(f"Reading topic {self._topic!r}", status)
        return parser.columns
