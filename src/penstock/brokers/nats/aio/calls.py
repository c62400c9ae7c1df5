"""A write of many messages, and the answer to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import TypeAlias, cast

from penstock.brokers.nats.aio.wire import WRITE_CHUNK
from penstock.errors import PenstockError
from penstock.message import Draft

Operation: TypeAlias = tuple[int, bytes, bytes]
"""The index of a draft, its subject and its header block."""

# What nearly every ack looks like: the call, the index, and the sequence it was stored at.
STORED = rb'(\d+)\.(\d{1,9}) %b \d+\r\n\{"stream":"[^"]*","seq":(\d{1,20})\}\r\n'

_INDEXED = 1000
_INDEXES = [b"%d" % at for at in range(_INDEXED)]


class Call:
    """Answers to one write, by index: the sequence a draft was stored at, whatever else came, as
    header block and payload, or why the server did not take it."""

    __slots__ = (
        "_by_subject", "answers", "done", "left", "repeated", "sent", "spared", "together", "until",
    )  # fmt: skip

    def __init__(
        self,
        sent: Sequence[tuple[object, bytes, bytes]],
        expected: int,
        total: int,
        *,
        together: bool = False,
    ):
        self.sent = sent
        self.together = together
        """One answer is for all of it."""
        self._by_subject: dict[bytes, list[int]] | None = None
        self.until = inf
        """When waiting for the answers ends."""
        self.spared = False
        """It was given more time, because nobody could look for answers."""
        self.answers: list[int | tuple[bytes, bytes] | PenstockError | None] = [None] * total
        self.left = expected
        self.repeated = False
        """There were more answers than messages."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stored(self, indexes: list[bytes], sequences: list[int]) -> None:
        """Plain acks, mostly in order and one each: then they are taken in one piece."""
        first = int(indexes[0])
        last = first + len(indexes)
        if indexes == _INDEXES[first:last] and last <= len(self.answers):
            new = self.answers[first:last].count(None)
            self.left -= new
            self.repeated |= new < len(indexes)
            self.answers[first:last] = sequences
            self._end_if_complete()
        else:
            for index, sequence in zip(indexes, sequences, strict=True):
                self.answer(int(index), sequence)

    def refuse(self, subject: bytes, error: PenstockError) -> None:
        """The server took nothing that was sent to this subject, and says so of each message."""
        if self._by_subject is None:
            self._by_subject = {}
            for at, to, _ in self.sent:
                self._by_subject.setdefault(to, []).append(0 if self.together else cast("int", at))
        for index in self._by_subject.pop(subject, ()):
            if self.answers[index] is None:
                self.answer(index, error)

    def answer(self, index: int, answer: int | tuple[bytes, bytes] | PenstockError) -> None:
        if index >= len(self.answers):
            self.repeated = True  # It is about what was sent under this name before.
            return
        before = self.answers[index]
        if before is None:
            self.left -= 1
        else:
            self.repeated = True
        if type(before) is not int:  # Stored is stored, whoever answers as well.
            self.answers[index] = answer
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: PenstockError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # Seen: whoever waits for it is told.


def written(reply: bytes, drafts: Sequence[Draft], operations: list[Operation]) -> list[bytes]:
    """The operations as they are sent, together if that is one write. To join what is there takes
    a third of the time of formatting it."""
    pieces: list[bytes] = []
    for at, subject, header in operations:
        data = drafts[at].data
        pieces += (
            b"HPUB " if header else b"PUB ",
            subject,
            reply,
            _INDEXES[at] if at < _INDEXED else b"%d" % at,
            _sizes(len(header), len(data)),
            header,
            data,
            b"\r\n",
        )
    whole = b"".join(pieces)
    if len(whole) <= WRITE_CHUNK:
        return [whole]
    each = len(pieces) // len(operations)
    return [b"".join(pieces[at : at + each]) for at in range(0, len(pieces), each)]


# Few sizes come again and again.
@lru_cache(maxsize=4096)
def _sizes(header: int, payload: int) -> bytes:
    return b" %d %d\r\n" % (header, header + payload) if header else b" %d\r\n" % payload
