"""Stored messages into columns, from the bytes as they arrive.

One regular expression takes the head of a message, and what it holds goes to the ends of a few
lists: there is no object per message. Messages without headers of their own, or with an id alone,
cost least, what a consumer delivers with other headers a little more; all others take the longer
way through `records.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.brokers.nats.protocol.frames import (
    check_body,
    check_sizes,
    find_end,
    read_head,
)
from penstock.brokers.nats.protocol.headers import decode_header, describe, status_of
from penstock.brokers.nats.protocol.records import (
    ADDED,
    parse_ack_subject,
    parse_added,
    seconds_of,
    unnamed,
)
from penstock.columns import Columns

_DIRECT = re.compile(
    rb"HMSG ([^ ]+) 1 (\d+) (\d+)\r\nNATS/1\.0\r\n(?:Nats-Msg-Id: ([^\r]*)\r\n)?" + ADDED
)
_NOTHING = re.compile(rb"(?!)")
_MICROS = 1_000_000
# Of ours, where the server need not say that it was all: that many were asked for.
COMPLETE = 200


class AnswerParser:
    """Fills columns with the answers to one request, which come to the subject `reply`.

    Feed it with `take`, which returns how many bytes it is done with; give it the rest again with
    more behind it, at least `missing` bytes where it knows. It is over when `status` is not 0.
    `control` is called with each line that is no message. `headers`: keep all of a message's own.
    """

    def __init__(
        self, topic: str, reply: bytes, control: Callable[[bytes], None], *, headers: bool = False
    ) -> None:
        self.columns = Columns()
        self.status = 0
        self.missing = 0
        self._topic = topic
        self._reply = reply
        self._control = control
        self._headers = headers

    def take(self, data: bytes) -> int:
        raise NotImplementedError

    def _take_other(self, data: bytes, at: int) -> int:
        """Whatever does not look like most messages; -1 when it is not complete."""
        end = find_end(data, at)
        if end < 0:
            return -1
        words = data[at:end].split()
        if not words or words[0] not in (b"HMSG", b"MSG"):
            self._control(data[at:end])
            return end + 2
        reply, header, total = read_head(words)
        begin = end + 2
        end = begin + total
        if self._is_short(end, len(data)):
            return -1
        check_body(data, end)
        body = begin + header
        status = status_of(data[begin:body])[0] if header else 0
        if not status:
            self._add(words[1], reply, data[begin:body], data[body:end])
        elif words[1] == self._reply:
            self.status = status
        return end + 2

    def _is_short(self, end: int, size: int) -> bool:
        """The message that is over at `end` is still to come, in part."""
        self.missing = max(end + 2 - size, 0)
        return self.missing > 0

    def _add(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        raise NotImplementedError

    def _append(
        self, subject: bytes, sequence: int, published_ns: int, block: bytes, payload: bytes
    ) -> None:
        """Any message: what the fast ways do for those that need no decoding of headers."""
        columns, row = self.columns, len(self.columns)
        columns.sequences.append(sequence)
        columns.subjects.append(subject)
        columns.published_us.append(published_ns // 1000)
        columns.data.append(payload)
        message_id, ordering_key, attributes = describe(block)
        columns.ids.append((message_id or unnamed(self._topic, sequence)).encode())
        if attributes:
            columns.attributes[row] = attributes
        if ordering_key is not None:
            columns.keys[row] = ordering_key
        if self._headers and block:
            columns.headers[row] = decode_header(block)


class DirectParser(AnswerParser):
    """Answers to a batched Direct Get: each comes to the reply subject and says where it is from
    in its headers, and a status ends them."""

    def take(self, data: bytes) -> int:
        columns = self.columns
        sequence_of, id_of = columns.sequences.append, columns.ids.append
        subject_of, published_of = columns.subjects.append, columns.published_us.append
        data_of, topic, reply = columns.data.append, self._topic.encode(), self._reply
        match = (_NOTHING if self._headers else _DIRECT).match
        at, size = 0, len(data)
        self.missing = 0
        while at < size:
            found = match(data, at)
            if found is None:
                after = self._take_other(data, at)
                if after < 0:
                    break
                at = after
                if self.status:
                    break
                continue
            to, header, total, name, subject, sequence, moment, digits = found.groups()
            begin = found.end(3) + 2
            body, end = begin + int(header), begin + int(total)
            check_sizes(body - begin, end - begin)
            if self._is_short(end, size):
                break
            check_body(data, end)
            at = end + 2
            if to != reply:
                continue  # An answer that came too late for who had asked.
            number = int(sequence)
            sequence_of(number)
            id_of(name or b"%b-%d" % (topic, number))  # As `unnamed`.
            subject_of(subject)
            # The server leaves out zeros at the end of the fraction.
            below = int(digits[:6].ljust(6, b"0")) if digits else 0
            published_of(seconds_of(moment) * _MICROS + below)
            data_of(data[body:end])
        return at

    def _add(self, subject: bytes, _reply: bytes, block: bytes, payload: bytes) -> None:
        if subject == self._reply:
            place = parse_added(self._topic, block)
            self._append(place.subject, place.sequence, place.published_ns, place.block, payload)


class DeliveredParser(AnswerParser):
    """What a consumer delivers: messages come on the subjects they were published on and say where
    they are from in the subject that acks would go to. Complete with the `wanted`-th.

    `last` is how many the consumer had delivered with the last of them, since it was made.
    """

    def __init__(
        self,
        topic: str,
        reply: bytes,
        control: Callable[[bytes], None],
        *,
        consumer: DeliveredFrom,
        wanted: int,
        headers: bool = False,
    ) -> None:
        super().__init__(topic, reply, control, headers=headers)
        self._consumer = consumer
        self._wanted = wanted
        self.last = 0

    def take(self, data: bytes) -> int:
        columns, wanted = self.columns, self._wanted
        sequence_of, id_of = columns.sequences.append, columns.ids.append
        subject_of, published_of = columns.subjects.append, columns.published_us.append
        data_of = columns.data.append
        match = (_NOTHING if self._headers else self._consumer.pattern).match
        at, size = 0, len(data)
        self.missing = 0
        while at < size:
            found = match(data, at)
            if found is None:
                after = self._take_headed(data, at)
                if after < 0:
                    break
                at = after
                if self.status or len(columns) >= wanted:
                    break
                continue
            subject, sequence, nth, moment, total, name = found.groups()
            begin = found.end(5) + 2
            end = begin + int(total)
            check_sizes(found.end() - begin, end - begin)
            if self._is_short(end, size):
                break
            check_body(data, end)
            at = end + 2
            sequence_of(int(sequence))
            id_of(name)
            subject_of(subject)
            published_of(int(moment) // 1000)
            data_of(data[found.end() : end])
            self.last = int(nth)
        if len(columns) >= wanted:
            self.status = self.status or COMPLETE
        return at

    def _take_headed(self, data: bytes, at: int) -> int:
        """A message with headers of its own, as those that have attributes do; or another."""
        found = self._consumer.headed.match(data, at)
        if found is None:
            return self._take_other(data, at)
        subject, sequence, nth, moment, header, total = found.groups()
        begin = found.end(6) + 2
        body, end = begin + int(header), begin + int(total)
        check_sizes(body - begin, end - begin)
        if self._is_short(end, len(data)):
            return -1
        check_body(data, end)
        self._append(subject, int(sequence), int(moment), data[begin:body], data[body:end])
        self.last = int(nth)
        return end + 2

    def _add(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        if not reply.startswith(b"$JS.ACK."):
            return
        lent = parse_ack_subject(reply)
        if (lent.stream, lent.consumer) == (self._consumer.stream, self._consumer.name):
            self._append(subject, lent.sequence, lent.published_ns, block, payload)
            self.last = lent.nth


class DeliveredFrom:
    """A consumer by name, and what most of the messages that it delivers look like."""

    def __init__(self, stream: str, name: str) -> None:
        self.stream = stream
        self.name = name
        # $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.nth.time.pending[.token]
        head = (
            rb"HMSG ([^ ]+) 1 \$JS\.ACK\.(?:[^. ]+\.[^. ]+\.)?%b\.%b"
            rb"\.\d+\.(\d+)\.(\d+)\.(\d+)\.[^ ]+ "
            % (re.escape(stream.encode()), re.escape(name.encode()))
        )
        self.pattern = re.compile(
            head + rb"\d+ (\d+)\r\nNATS/1\.0\r\nNats-Msg-Id: ([^\r]+)\r\n\r\n"
        )
        # Whatever headers it has, but for a status.
        self.headed = re.compile(head + rb"(\d+) (\d+)\r\nNATS/1\.0\r\n")
