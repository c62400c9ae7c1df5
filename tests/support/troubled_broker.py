"""Brokers in whatever trouble a test wants."""

import asyncio
from collections import defaultdict

from penstock import errors
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.message import PublishFault


class Troubled(MemoryBroker):
    """Fails as `trouble` says: called with each draft, it returns an error or None. Publishes
    wait while `open` is not set."""

    def __init__(self, trouble=lambda draft: None) -> None:
        super().__init__(Clock())
        self.trouble = trouble
        self.open = asyncio.Event()
        self.open.set()
        self.calls: list[list[str]] = []

    async def publish(self, topic, drafts):
        self.calls.append([draft.message_id for draft in drafts])
        await self.open.wait()
        answers = []
        for draft in drafts:
            error = self.trouble(draft)
            if error is not None:
                answers.append(PublishFault(error))
            else:
                answers += await super().publish(topic, [draft])
        return answers


class Away(MemoryBroker):
    """Out of reach for whoever publishes."""

    def __init__(self) -> None:
        super().__init__(Clock())

    async def publish(self, topic, drafts):
        raise errors.UnavailableError("The broker is away")


def failing(times, kind=errors.ResourceExhaustedError, only=()):
    """The first `times` attempts of each message fail."""
    seen = defaultdict(int)

    def trouble(draft):
        seen[draft.message_id] += 1
        hit = not only or draft.message_id in only
        return kind("not now") if hit and seen[draft.message_id] <= times else None

    return trouble
