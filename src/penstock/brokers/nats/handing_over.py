"""Deliveries of what came, and giving them to whoever takes them at once."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.loans import needs_loans
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.records import Raw, parse_attempt, record_of
from penstock.config import SubscriptionConfig
from penstock.message import Delivery
from penstock.optional_verbs import Take


class HandingOver:
    """Gives what comes to whoever takes it, if nothing has to be done with it before."""

    __slots__ = ("_catalogue", "_consumer", "_is_plain", "_take", "began")

    def __init__(self, catalogue: Catalogue, consumer: Consumer, take: Take) -> None:
        self._catalogue = catalogue
        self._consumer = consumer
        self._is_plain = _is_plain(consumer.config)
        self._take = take
        self.began = False
        """Something was taken."""

    def __call__(self, raws: list[Raw]) -> bool:
        consumer = self._catalogue.latest(self._consumer)
        if consumer is not self._consumer:
            # It was configured anew while we waited.
            self._consumer, self._is_plain = consumer, _is_plain(consumer.config)
        if not self._is_plain:
            return False
        self.began = True
        self._take(deliveries_of(consumer, raws))
        return True


def _is_plain(config: SubscriptionConfig) -> bool:
    """Nothing has to be done with its messages before somebody takes them."""
    return not config.filter and not needs_loans(config)


def deliveries_of(consumer: Consumer, raws: Sequence[Raw]) -> list[Delivery]:
    topic, ack_deadline = consumer.config.topic, consumer.config.ack_deadline
    deliveries = []
    for subject, reply, block, payload in raws:
        delivered, sequence, published_ns = parse_attempt(reply)
        record = record_of(topic, subject, block, payload, sequence, published_ns)
        deliveries.append(Delivery(record, reply.decode(), delivered, ack_deadline))
    return deliveries


def delivery_of(consumer: Consumer, raw: Raw) -> Delivery:
    return deliveries_of(consumer, (raw,))[0]
