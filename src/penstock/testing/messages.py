"""Messages for tests of handlers: made by hand, and asked afterwards what became of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import datetime

from penstock.clock import Clock, PreciseTime
from penstock.message import AckResponse, Message, Settlement, Verb

_numbers = itertools.count(1)


class MadeMessage(Message):
    """A message that no broker delivered. It remembers how it was settled."""

    __slots__ = ()

    @property
    def settlements(self) -> list[Settlement]:
        """What a broker would have been told, in order."""
        return self._records.settlements

    @property
    def outcome(self) -> str | None:
        """'ack', 'nack' or 'reject'; None while it is not settled."""
        ended = [one.verb.value for one in self.settlements if one.verb is not Verb.EXTEND]
        return ended[0] if ended else None

    @property
    def _records(self) -> _Records:
        assert isinstance(self._owner, _Records)
        return self._owner


def make_message(
    data: bytes = b"",
    attributes: Mapping[str, str] | None = None,
    ordering_key: str | None = None,
    *,
    id: str | None = None,
    delivery_attempt: int = 1,
    publish_time: datetime | None = None,
    subject: str = "test",
    response: AckResponse = AckResponse.SUCCESS,
) -> MadeMessage:
    """A message as a handler is given one; `message.outcome` says what the handler did with it.

    `response`: what `ack_with_response` and `nack_with_response` answer the first time.
    """
    number = next(_numbers)
    return MadeMessage(
        id or f"test-{number}",
        f"ack-{number}",
        data,
        attributes or {},
        publish_time or PreciseTime.from_ns(Clock().time_ns()),
        _Records(response),
        ordering_key,
        delivery_attempt=delivery_attempt,
        subject=subject,
    )


class _Records:
    """The owner of one message: writes down what it is told."""

    def __init__(self, response: AckResponse) -> None:
        self.settlements: list[Settlement] = []
        self._response = response

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None:
        self.settlements.append(Settlement(message.ack_id, verb, seconds))

    async def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> AckResponse:
        if not first:
            return AckResponse.INVALID
        self.settle(message, verb, None)
        return self._response

    def modify_ack_deadline(self, message: Message, seconds: float) -> None:
        self.settle(message, Verb.EXTEND, seconds)
