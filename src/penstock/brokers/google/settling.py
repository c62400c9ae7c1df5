"""Answers to deliveries: acks and deadlines in as few calls as Google allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.brokers.google.connection import Connection
from penstock.brokers.google.faults import ack_id_failures
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.googlepubsub.messages import message
from penstock.message import AckResponse
from penstock.retrying import Persistence, retry
from penstock.rules.backoff import Backoff

_AcknowledgeRequest = message("AcknowledgeRequest")
_ModifyAckDeadlineRequest = message("ModifyAckDeadlineRequest")
# Google takes 512 KB a request; its ack ids have some 200 bytes.
_MOST_IDS, _MOST_BYTES = 2500, 500_000
_PERMANENT, _TRANSIENT = "PERMANENT_", "TRANSIENT_"
_BACKOFF = Backoff(initial=0.1, maximum=5.0)


class _NotYetError(UnavailableError):
    """Some ack ids failed for a reason that Google says will pass."""


async def settle(
    connection: Connection,
    resource: str,
    ack_ids: Sequence[str],
    seconds: int | None,
    *,
    patience: float,
    exactly_once: bool,
) -> dict[str, AckResponse]:
    """Ack, or with `seconds` extend (0: give back). Returns those that failed.

    Google answers for each id only with exactly-once delivery. What it says will pass is tried
    again for `patience` seconds: by then the deliveries have expired. Where it refuses a call as
    a whole, because of an id that it never gave, each half is tried, until that id is alone.
    """
    failed: dict[str, AckResponse] = {}
    persistence = Persistence(backoff=_BACKOFF, within=patience, worth_it=_will_pass)
    waiting = deque(_chunks(ack_ids))
    while waiting:
        chunk = waiting.popleft()
        attempt = _Attempt(connection, resource, chunk, seconds, failed)
        try:
            await retry(attempt.make, persistence)
        except _NotYetError:
            failed.update(dict.fromkeys(attempt.left, AckResponse.OTHER))
        except InvalidArgumentError:
            if len(chunk) > 1:
                half = len(chunk) // 2
                waiting += (chunk[:half], chunk[half:])
            elif exactly_once:
                failed[chunk[0]] = AckResponse.INVALID
    return failed


class _Attempt:
    """One chunk of ack ids, of which fewer are left each time."""

    def __init__(
        self,
        connection: Connection,
        resource: str,
        ack_ids: list[str],
        seconds: int | None,
        failed: dict[str, AckResponse],
    ) -> None:
        self.left = ack_ids
        self._connection = connection
        self._resource = resource
        self._seconds = seconds
        self._failed = failed

    async def make(self) -> None:
        name, request = _request(self._resource, self.left, self._seconds)
        try:
            await self._connection.call(name, request)
        except InvalidArgumentError as error:
            reasons = ack_id_failures(error.__cause__)
            if not reasons:
                raise
            for ack_id in self.left:
                reason = reasons.get(ack_id, "")
                if not reason.startswith(_TRANSIENT):
                    # An id that a failed call says nothing about has not succeeded for sure.
                    invalid = reason.startswith(_PERMANENT)
                    self._failed[ack_id] = AckResponse.INVALID if invalid else AckResponse.OTHER
            self.left = [i for i in self.left if reasons.get(i, "").startswith(_TRANSIENT)]
            if self.left:
                raise _NotYetError(f"{len(self.left)} acks of {self._resource} failed") from None


def _will_pass(error: Exception) -> bool:
    return isinstance(error, _NotYetError)


def _request(resource: str, ack_ids: list[str], seconds: int | None) -> tuple[str, Any]:
    if seconds is None:
        return "Acknowledge", _AcknowledgeRequest(subscription=resource, ack_ids=ack_ids)
    return "ModifyAckDeadline", _ModifyAckDeadlineRequest(
        subscription=resource, ack_ids=ack_ids, ack_deadline_seconds=seconds
    )


def _chunks(ack_ids: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    room = _MOST_BYTES
    for ack_id in ack_ids:
        room -= len(ack_id) + 4
        if chunk and (room < 0 or len(chunk) == _MOST_IDS):
            yield chunk
            chunk, room = [], _MOST_BYTES - len(ack_id)
        chunk.append(ack_id)
    if chunk:
        yield chunk
