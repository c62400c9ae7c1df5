"""What callers hold of one subscription: until when, and in which order it came. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from penstock.message import Delivery
from penstock.rules.deadlines import Deadlines

_MOST_REMEMBERED = 100_000


class Lending:
    """Deliveries that were handed over and are neither settled nor expired, by ack id."""

    def __init__(self) -> None:
        self._held: dict[str, Delivery] = {}
        self.bytes = 0
        """Of those that were held when they were last counted."""
        self._ends: Deadlines[str] = Deadlines()

    def begin(self, deliveries: Sequence[Delivery], now: float) -> None:
        """They are counted as held until the first of them expires: they came together."""
        held = {delivery.ack_id: delivery for delivery in deliveries}
        for ack_id in held.keys() & self._held.keys():
            self._drop(ack_id)
        self._held.update(held)
        self.bytes += sum(delivery.record.size for delivery in held.values())
        self._ends.add(now + min(d.ack_deadline for d in deliveries), list(held))

    def count(self, now: float) -> int:
        for ack_id in self._ends.pop_due(now):
            self._drop(ack_id)
        return len(self._held)

    def find(self, ack_id: str) -> Delivery | None:
        return self._held.get(ack_id)

    def extended(self, ack_ids: Iterable[str], until: float) -> None:
        held = [ack_id for ack_id in ack_ids if ack_id in self._held]
        if held:
            self._ends.add(until, held)

    def settled(self, ack_ids: Iterable[str]) -> None:
        for ack_id in ack_ids:
            if self._drop(ack_id):
                self._ends.discard(ack_id)

    def _drop(self, ack_id: str) -> bool:
        delivery = self._held.pop(ack_id, None)
        if delivery is not None:
            self.bytes -= delivery.record.size
        return delivery is not None


class Arrivals:
    """Numbers messages as they first arrive; one that comes again keeps its number.

    Google delivers the messages of a key in order but does not number them, and whoever keeps
    that order on our side has to know where a redelivery belongs.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._last = 0

    def number(self, message_id: str) -> int:
        known = self._numbers.get(message_id)
        if known is None:
            self._last = known = self._last + 1
            self._numbers[message_id] = known
            if len(self._numbers) > _MOST_REMEMBERED:
                self._numbers.popitem(last=False)
        return known
