"""The flights of a publisher: which are in the air, how each ends, which is tried again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from penstock.errors import DeadlineExceededError, FailedPreconditionError, PenstockError
from penstock.message import PublishFault, Receipt
from penstock.publishing.admission import Admission
from penstock.publishing.flight import Flight, FlightState
from penstock.publishing.listener import Announcer
from penstock.publishing.options import PublishRetry
from penstock.rules.deadlines import Deadlines

_log = logging.getLogger("penstock")
# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_IN_FLIGHT, _ACKED = FlightState.IN_FLIGHT, FlightState.ACKED
_DUPLICATE = FlightState.DUPLICATE

Answers: TypeAlias = Sequence[Receipt | PublishFault]


class Flights:
    """Every flight enters once and ends once, and the listener is told. Time is an argument.

    What ends may make it another's turn, of the same key: it is returned, and whoever called
    sends it.
    """

    def __init__(
        self,
        admission: Admission,
        announcer: Announcer,
        retry: PublishRetry | None,
        *,
        pause_failed_keys: bool,
    ) -> None:
        self._admission = admission
        self._announcer = announcer
        self._retry = retry
        self._pause_failed_keys = pause_failed_keys
        self._by_id: dict[str, Flight] = {}
        self._retries: Deadlines[str] = Deadlines()
        self.failed: list[Flight] | None = None
        """What was not delivered, once somebody collects it."""
        self.over = False
        """Nothing is tried again any more."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._by_id.values()))

    def enter(self, flight: Flight) -> Flight | None:
        """Count it in, when there is no hold; the flight whose turn it is, if it is anybody's."""
        admission = self._admission
        self._by_id[flight.id] = flight
        may_go = admission.enter(flight)
        if admission.holding:
            self._announcer.tell("held")
        if not may_go:
            return None
        return self._unless_paused(flight) if self._pause_failed_keys else flight

    def next_retry(self) -> float | None:
        return self._retries.next()

    def due(self, now: float) -> list[Flight]:
        """Those whose next attempt is due."""
        return [self._by_id[flight_id] for flight_id in self._retries.pop_due(now)]

    def land(
        self, flights: list[Flight], attempts: list[int], answers: Answers, now: float
    ) -> list[Flight]:
        """End what was answered; those whose turn it is then.

        Most flights are stored, have no key, nobody listening and no retry waiting: for them
        this does all that `end` would, without the steps.
        """
        plain = not self._announcer.has_listener and not self._retries
        by_id, landed, size = self._by_id, 0, 0
        turns: list[Flight] = []
        for flight, attempt, answer in zip(flights, attempts, answers, strict=True):
            if flight.state is not _IN_FLIGHT:
                continue
            if not isinstance(answer, Receipt):
                following = self._refused(flight, attempt, answer, now)
            elif plain and flight._draft.ordering_key is None:
                del by_id[flight.id]
                flight.state = _DUPLICATE if answer.duplicate else _ACKED
                flight._result = answer
                if flight._ack is not None:
                    flight._settle_ack()
                landed += 1
                size += len(flight._draft.data)
                continue
            else:
                state = _DUPLICATE if answer.duplicate else _ACKED
                following = self.end(flight, state, answer)
            if following is not None:
                turns.append(following)
        self._admission.window.release(landed, size)
        return turns

    def _refused(
        self, flight: Flight, attempt: int, fault: PublishFault, now: float
    ) -> Flight | None:
        if not fault.definite:
            flight._in_doubt = True
        if attempt != flight.attempts or flight.id in self._retries:
            return None  # An attempt that was given up failed after all; a later one decides.
        delay = None
        if self._retry is not None and not self.over:
            delay = self._retry.delay(flight.attempts, now - flight._began, fault.error)
        if delay is None:
            return self.end(flight, _state_of(flight, fault), fault.error)
        self._retries.add(now + delay, [flight.id])
        return None

    def end(
        self, flight: Flight, state: FlightState, result: Receipt | PenstockError
    ) -> Flight | None:
        """End one; the next of its key, whose turn it is then."""
        del self._by_id[flight.id]
        self._retries.discard(flight.id)
        flight.finish(state, result)
        if isinstance(result, Receipt):
            if self._announcer.has_listener:
                self._announcer.tell("acked", flight)
        else:
            if self._pause_failed_keys and not self.over:
                self._admission.close_key(flight, result)
            self._tell_failed(flight)
        following = self._admission.leave(flight)
        return None if following is None or self.over else self._unless_paused(following)

    def _unless_paused(self, flight: Flight) -> Flight | None:
        """It, or the first of its key after it that may go: what is paused ends here."""
        waiting: Flight | None = flight
        while waiting is not None:
            cause = self._admission.why_closed(waiting)
            if cause is None:
                return waiting
            del self._by_id[waiting.id]
            waiting.finish(FlightState.REJECTED, _paused(waiting, cause))
            self._tell_failed(waiting)
            waiting = self._admission.leave(waiting)
        return None

    def _tell_failed(self, flight: Flight) -> None:
        if self.failed is not None:
            self.failed.append(flight)
        if flight.state is FlightState.TIMED_OUT:
            self._announcer.tell("timeout", flight)
        else:
            self._announcer.tell("completed_exceptionally", flight)
        if flight._ack is None and not self._announcer.has_listener and self.failed is None:
            _log.warning("%r: %s", flight, flight.error)


def _state_of(flight: Flight, fault: PublishFault) -> FlightState:
    """What can be said of a flight whose last attempt ended with this fault."""
    if isinstance(fault.error, DeadlineExceededError):
        return FlightState.TIMED_OUT
    return FlightState.UNKNOWN if flight._in_doubt else FlightState.REJECTED


def _paused(flight: Flight, cause: PenstockError) -> PenstockError:
    key = flight._draft.ordering_key
    error = FailedPreconditionError(
        f"Ordering key {key!r} of topic {flight.topic!r} is paused, because a message of it "
        f"failed ({cause}); message {flight.id!r} was not sent. Publish what failed again if it is "
        f"needed, then call resume_key({flight.topic!r}, {key!r})"
    )
    error.__cause__ = cause
    return error
