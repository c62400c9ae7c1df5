"""What the server is being told of messages, until it has confirmed that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.records import parse_ack_subject
from penstock.message import Delivery


class Confirming:
    """Messages that are done when the server has said that it knows, by consumer and sequence."""

    def __init__(self) -> None:
        self._sequences: dict[tuple[str, str], dict[int, asyncio.Future[bool]]] = {}

    async def without_done(self, consumer: Consumer, deliveries: list[Delivery]) -> list[Delivery]:
        """Without those that came again while the server was being told that they are done: whoever
        hears that this is so must not see them again."""
        confirmed = self._sequences.get(consumer.key, {})
        kept: list[Delivery] = []
        for delivery in deliveries:
            done = confirmed.get(delivery.record.sequence)
            if done is None or not await asyncio.shield(done):
                kept.append(delivery)
        return kept

    @contextmanager
    def of(self, consumer: Consumer, acks: list[tuple[bytes, bytes]]) -> Iterator[None]:
        """Around telling the server; what is not confirmed by the end of it is not done."""
        confirmed = self._sequences.setdefault(consumer.key, {})
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        sequences = [sequence for sequence, answer in told(acks) if answer == b"+ACK"]
        confirmed.update(dict.fromkeys(sequences, done))
        try:
            yield
            done.set_result(True)
        finally:
            if not done.done():
                done.set_result(False)
            for sequence in sequences:
                if confirmed.get(sequence) is done:
                    del confirmed[sequence]
            if not confirmed:
                self._sequences.pop(consumer.key, None)


def told(acks: list[tuple[bytes, bytes]]) -> list[tuple[int, bytes]]:
    """Which messages the server is told of, by sequence, and what."""
    return [
        (parse_ack_subject(to).sequence, answer)
        for to, answer in acks
        if to.startswith(b"$JS.ACK.")
    ]
