"""A broker that passes everything on: what stands in front of one begins with it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker import Admin, Broker, Capabilities, Log
from penstock.message import AckResponse, Delivery, Draft, PublishFault, Receipt, Settlement


class PassingOn:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.project = broker.project

    @property
    def name(self) -> str:
        return self.broker.name

    @property
    def capabilities(self) -> Capabilities:
        return self.broker.capabilities

    @property
    def admin(self) -> Admin:
        return self.broker.admin

    @property
    def log(self) -> Log | None:
        return self.broker.log

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        return await self.broker.publish(topic, drafts)

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        return await self.broker.pull(
            subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
        )

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        return await self.broker.settle(subscription, settlements)

    async def ping(self) -> float:
        return await self.broker.ping()

    def forget(self, subscription: str) -> None:
        """What was lent of it is nobody's any more: it was moved, or is gone."""
        if isinstance(self.broker, PassingOn):
            self.broker.forget(subscription)

    async def stop(self) -> None:
        """End what runs here, and leave the broker open."""
        if isinstance(self.broker, PassingOn):
            await self.broker.stop()

    async def aclose(self) -> None:
        await self.stop()
        await self.broker.aclose()
