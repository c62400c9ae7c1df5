"""Sending jobs again whose next attempt is due: what a broker's redelivery is to other runners."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import TracebackType
from typing import Self

from penstock.client import PubSub
from penstock.errors import PenstockError
from penstock.jobs.model.codec import encode_job
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.store import ProcessingJobStore
from penstock.message import PublishFault
from penstock.transactional import Database

_log = logging.getLogger("penstock.spark")
_EVERY = 0.5


class Retrier:
    """Runs in a thread of the driver while it is entered. Sends first and notes it after: whoever
    is killed between sends the same message id again."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="penstock-retries", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def _main(self) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._run())
            except (PenstockError, OSError) as error:
                _log.warning("Jobs cannot be sent again now: %s", error)
                self._stop.wait(5)

    async def _run(self) -> None:
        async with (
            PubSub(self._settings.url) as pubsub,
            Database(self._settings.database) as database,
            ProcessingJobStore(database) as store,
        ):
            while not self._stop.is_set():
                if not await send_due(pubsub, store, self._settings):
                    await asyncio.to_thread(self._stop.wait, _EVERY)


async def send_due(pubsub: PubSub, store: ProcessingJobStore, settings: JobSettings) -> int:
    """Send what is due; returns how many."""
    due = await store.to_retry()
    broker = await pubsub.broker()
    for topic in {settings.topics.of(record.job.media_type) for record in due}:
        records = [r for r in due if settings.topics.of(r.job.media_type) == topic]
        drafts = [encode_job(record.job, record.attempts) for record in records]
        for answer in await broker.publish(topic, drafts):
            if isinstance(answer, PublishFault):
                raise answer.error
        await store.sent_again(records)
    return len(due)
