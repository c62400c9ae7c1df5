"""From a subscription to a spool, in a thread of its own with a loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from penstock.broker import Broker
from penstock.clock import NS
from penstock.connect import connect
from penstock.message import Delivery, Settlement, Verb
from penstock.retrying import Failures, Persistence, keep_doing
from penstock.rules.backoff import Backoff
from penstock.spark.options import SourceOptions
from penstock.spark.queue.spool import Spool

_log = logging.getLogger("penstock")
_BACKOFF = Backoff(initial=0.1, maximum=2.0)
_MESSAGES = 1000
# How long an empty pull takes before it says that there is nothing.
_EMPTY = 0.5
_FULL = 0.05


class Spooler:
    """Pull, spool, sync, ack; until closed. A failure that does not pass is kept for `check`."""

    def __init__(self, spool: Spool, options: SourceOptions) -> None:
        self._spool = spool
        self._options = options
        self._stopping = threading.Event()
        self._until_ns: int | None = None
        self._drained = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-spool", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Take what there is now, and no more. Returns when it is spooled."""
        self._until_ns = time.time_ns()
        while not self._drained.wait(0.1):
            self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._spool_all())
        except BaseException as error:
            self._error = error

    async def _spool_all(self) -> None:
        within = self._options.server_timeout
        failures = Failures(Persistence(backoff=_BACKOFF, within=within))

        async def spool() -> None:
            broker = await connect(self._options.url)
            try:
                status = await broker.admin.describe_subscription(self._options.subscription)
                failures.clear()
                await self._pump(broker, status.config.topic)
            finally:
                await broker.aclose()

        def tell(error: Exception, _: float) -> None:
            _log.warning("Spooling from %s: %s", self._options.subscription, error)

        await keep_doing(spool, failures, until=self._finished, on_failure=tell)

    def _finished(self) -> bool:
        return self._stopping.is_set() or self._drained.is_set()

    async def _pump(self, broker: Broker, topic: str) -> None:
        while not self._finished():
            if self._spool.size >= self._options.spool_bytes and self._until_ns is None:
                await asyncio.sleep(_FULL)
                continue
            deliveries, last = await self._gather(broker)
            if deliveries:
                records = [delivery.record for delivery in deliveries]
                await asyncio.to_thread(self._spool.seal, records, topic)
                await broker.settle(
                    self._options.subscription,
                    [Settlement(delivery.ack_id, Verb.ACK) for delivery in deliveries],
                )
            if last:
                self._drained.set()

    async def _gather(self, broker: Broker) -> tuple[list[Delivery], bool]:
        """A segment's worth; and whether this was the last that was there."""
        options = self._options
        found: list[Delivery] = []
        now = asyncio.get_running_loop().time
        size, ends = 0, 0.0
        while not self._stopping.is_set():
            draining = self._until_ns
            wait = _EMPTY if not found else max(0.0, min(_EMPTY, ends - now()))
            pulled = await broker.pull(
                options.subscription,
                max_messages=_MESSAGES,
                max_bytes=max(1, options.segment_bytes - size),
                wait=wait,
            )
            if pulled and not found:
                ends = now() + options.segment_seconds
            found += pulled
            size += sum(len(delivery.record.data) for delivery in pulled)
            if draining is not None:
                newest = max((d.record.publish_time_ns for d in pulled), default=0)
                if not pulled or newest > draining + NS:
                    return found, True
            if size >= options.segment_bytes or (found and now() >= ends):
                return found, False
        return found, False
