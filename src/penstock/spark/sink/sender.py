"""Publishing in a task: pipelined, in order, and again with the same ids when it failed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from penstock.broker import Broker
from penstock.connect import connect
from penstock.errors import PenstockError
from penstock.message import Draft, PublishFault, Receipt
from penstock.retrying import Failures, Persistence, retry
from penstock.rules.backoff import Backoff
from penstock.spark.options import SinkOptions

_BACKOFF = Backoff(initial=0.1, maximum=2.0)
_FLYING = 8


async def connected(options: SinkOptions) -> Broker:
    """The broker, waited for: a task may begin while the server is being restarted."""
    return await retry(lambda: connect(options.url), _persistence(options))


def _persistence(options: SinkOptions) -> Persistence:
    return Persistence(backoff=_BACKOFF, within=options.server_timeout)


class Sender:
    """Several calls are under way at a time, on one connection, in order.

    When it breaks, what the server stored is the beginning of what was sent. So everything that
    was not answered is sent again in the same order, before anything new.
    """

    def __init__(self, broker: Broker, options: SinkOptions) -> None:
        self._broker = broker
        self._persistence = _persistence(options)
        self._flying: deque[
            tuple[list[tuple[str, Draft]], asyncio.Task[list[PenstockError | None]]]
        ]
        self._flying = deque()
        self.duplicates = 0
        self.unexpected = 0
        """Duplicates among what was sent for the first time."""

    async def send(self, drafts: list[tuple[str, Draft]]) -> None:
        # What is known to have failed goes again before anything new.
        while self._flying and (len(self._flying) >= _FLYING or self._flying[0][1].done()):
            await self._land()
        # Owned here: each is awaited in _land.
        call = asyncio.get_running_loop().create_task(self._call(drafts))
        self._flying.append((drafts, call))
        await asyncio.sleep(0)

    async def finish(self) -> None:
        while self._flying:
            await self._land()

    async def _land(self) -> None:
        failed = await self._failed()
        if not failed:
            return
        while self._flying:
            failed += await self._failed()
        failures = Failures(self._persistence)
        while failed:
            error = failed[0][1]
            pause = failures.pause_after(error, asyncio.get_running_loop().time())
            if pause is None:
                raise error
            await asyncio.sleep(pause)
            drafts = [draft for draft, _ in failed]
            failed = _faults(drafts, await self._call(drafts, again=True))

    async def _failed(self) -> list[tuple[tuple[str, Draft], PenstockError]]:
        drafts, call = self._flying.popleft()
        return _faults(drafts, await call)

    async def _call(
        self, drafts: list[tuple[str, Draft]], *, again: bool = False
    ) -> list[PenstockError | None]:
        """One call a topic; None for what is stored. They are made side by side: one that waited
        for another would be overtaken by what is sent after it."""
        rows: dict[str, list[int]] = {}
        for row, (topic, _) in enumerate(drafts):
            rows.setdefault(topic, []).append(row)
        calls = (self._publish(topic, [drafts[row][1] for row in rows[topic]]) for topic in rows)
        outcome: list[PenstockError | None] = [None] * len(drafts)
        for some, answers in zip(rows.values(), await asyncio.gather(*calls), strict=True):
            for row, answer in zip(some, answers, strict=True):
                if isinstance(answer, PublishFault):
                    outcome[row] = answer.error
                else:
                    self.duplicates += answer.duplicate
                    self.unexpected += answer.duplicate and not again
        return outcome

    async def _publish(self, topic: str, drafts: list[Draft]) -> Sequence[Receipt | PublishFault]:
        try:
            return await self._broker.publish(topic, drafts)
        except PenstockError as error:
            return [PublishFault(error)] * len(drafts)


def _faults(
    drafts: list[tuple[str, Draft]], outcome: list[PenstockError | None]
) -> list[tuple[tuple[str, Draft], PenstockError]]:
    """What is to be sent again; what is not worth it is raised."""
    if not any(outcome):
        return []
    found = [(draft, error) for draft, error in zip(drafts, outcome, strict=True) if error]
    for _, error in found:
        if not error.retryable:
            raise error
    return found
