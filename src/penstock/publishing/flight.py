"""A flight: one draft between acceptance and its terminal state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.message import Draft, Expect, Receipt


class FlightState(Enum):
    """Where a flight is. It leaves IN_FLIGHT for one of the last five, once."""

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    ACKED = "acked"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    TIMED_OUT = "timed out"
    UNKNOWN = "unknown"

    @property
    def terminal(self) -> bool:
        return self not in (FlightState.WAITING, FlightState.IN_FLIGHT)

    @property
    def delivered(self) -> bool:
        """The broker has it."""
        return self in (FlightState.ACKED, FlightState.DUPLICATE)


class PublishOptions(Struct, frozen=True):
    """How a message was asked to be published."""

    message_id: str
    ordering_key: str | None = None
    expect: Expect | None = None
    ttl: float | None = None


class Flight(Struct, eq=False, gc=False):
    """A message on its way.

    `await flight.ack` gives its receipt, or raises what became of it. `state` says the same at
    any time. DUPLICATE: the broker had it already. REJECTED: it is not stored. TIMED_OUT and
    UNKNOWN: some attempt was not answered, so it may or may not be stored; publishing it again
    with the same message id is safe within the topic's duplicate window. `publish_time`: when it
    was last sent, in seconds since the epoch; None while nothing of it has left.
    """

    # Without the garbage collector: what might refer back to a flight, a task that waits for its
    # ack, lets go when the flight ends, and every flight ends.
    id: str
    topic: str
    _draft: Draft
    state: FlightState = FlightState.WAITING
    publish_time: float | None = None
    attempts: int = 0
    _began: float = 0.0
    _in_doubt: bool = False
    _result: Receipt | PenstockError | None = None
    _ack: asyncio.Future[Receipt] | None = None
    _turn: asyncio.Future[None] | None = None

    @property
    def subject(self) -> str:
        return self._draft.subject or self.topic

    @property
    def headers(self) -> Mapping[str, str]:
        return self._draft.attributes

    @property
    def body(self) -> bytes:
        return self._draft.data

    @property
    def options(self) -> PublishOptions:
        draft = self._draft
        return PublishOptions(
            draft.message_id or self.id, draft.ordering_key, draft.expect, draft.ttl
        )

    @property
    def error(self) -> PenstockError | None:
        """What became of it, when it was not delivered."""
        return self._result if isinstance(self._result, PenstockError) else None

    @property
    def ack(self) -> asyncio.Future[Receipt]:
        """The receipt, to be awaited. Made when first asked for: most flights never are."""
        if self._ack is None or self._ack.cancelled():
            self._ack = asyncio.get_running_loop().create_future()
            self._settle_ack()
        return self._ack

    def finish(self, state: FlightState, result: Receipt | PenstockError) -> None:
        """The one way into a terminal state."""
        self.state = state
        self._result = result
        if self._ack is not None:
            self._settle_ack()
        self.take_turn()

    async def turn(self) -> None:
        """Until those of its key before it have ended, or it has."""
        self._turn = asyncio.get_running_loop().create_future()
        await self._turn

    def take_turn(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def _settle_ack(self) -> None:
        if self._ack is None or self._result is None or self._ack.done():
            return
        if isinstance(self._result, Receipt):
            self._ack.set_result(self._result)
        else:
            self._ack.set_exception(self._result)
            self._ack.exception()  # Seen: the listener and `drain` report it as well.

    def __repr__(self) -> str:
        return f"<Flight {self.id!r} to {self.topic!r}, {self.state.value}>"
