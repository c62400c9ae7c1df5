"""Ack ids as clients see them, and what settling them is answered.

An ack id says which subscription it belongs to, so that one of another subscription is refused
rather than taken for an old one; before that it says nothing to anybody but the broker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from penstock.broker import Broker
from penstock.emulator.refusals import AckIdsRefusedError
from penstock.message import AckResponse, Settlement, Verb

INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"
TRANSIENT = "TRANSIENT_FAILURE_INTERNAL"


class AckIds:
    """`salt` differs from one life of a broker to the next where its own ack ids do not last."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self.tag = lru_cache(maxsize=4096)(self._tag)

    def _tag(self, subscription: str) -> str:
        digest = hashlib.blake2b(f"{self._salt}/{subscription}".encode(), digest_size=6)
        return f"{digest.hexdigest()}:"

    def inner(self, subscription: str, ack_ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """What the broker calls them, and those that are not of this subscription."""
        tag = self.tag(subscription)
        at = len(tag)
        own: list[str] = []
        others: list[str] = []
        for ack_id in ack_ids:
            if ack_id.startswith(tag):
                own.append(ack_id[at:])
            else:
                others.append(ack_id)
        return own, others


async def settle(
    broker: Broker, subscription: str, ack_ids: Sequence[str], seconds: float | None
) -> dict[str, str]:
    """Ack, or with `seconds` extend (0: nack). Returns why, for those that failed."""
    if seconds is None:
        settlements = [Settlement(ack_id, Verb.ACK) for ack_id in ack_ids]
    elif seconds == 0:
        settlements = [Settlement(ack_id, Verb.NACK) for ack_id in ack_ids]
    else:
        settlements = [Settlement(ack_id, Verb.EXTEND, seconds) for ack_id in ack_ids]
    responses = await broker.settle(subscription, settlements)
    success = AckResponse.SUCCESS
    return {
        ack_id: INVALID if response is AckResponse.INVALID else TRANSIENT
        for ack_id, response in zip(ack_ids, responses, strict=True)
        if response is not success
    }


def refuse(tag: str, failures: Mapping[str, str], others: Sequence[str], *, exact: bool) -> None:
    """Tell the caller which ids failed, if any did."""
    if not failures and not others:
        return
    told = {tag + ack_id: why for ack_id, why in failures.items()}
    told.update(dict.fromkeys(others, INVALID))
    raise AckIdsRefusedError(told if exact else {})
