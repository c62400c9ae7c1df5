"""From the event topic to the read model, and to whoever watches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from msgspec.structs import replace

from penstock.batching import GroupCommit
from penstock.broker import Extent, Log
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    PenstockError,
    PermissionDeniedError,
    TopicNotFoundError,
)
from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.messaging.keeping import make_again
from penstock.jobs.messaging.subscriber import Subscriber
from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.stage import Done
from penstock.jobs.views.view import JobView, Position, Views
from penstock.message import Record
from penstock.retrying import Failures, Outage, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff

_log = logging.getLogger("penstock.jobs")
# What a watcher may be behind before it is told to look again at everything.
_WATCHER_BUFFER = 1000
# Seconds between looks at the event topic: what a live page is behind at most, or nearly. Where
# nobody watches and nothing happens the pause grows, until something does. What this process itself
# has sent is looked for at once, but for a breath; where there is much it can wait, so that what
# comes together is taken in together.
_POLL = 0.1
_IDLE_POLL = 1.0
_BREATH = 0.02
_MUCH = 20
# Seconds that whoever asks how it is waits for a broker that is away.
_ANSWERS_WITHIN = 2.0
# Whatever the trouble is: a read model that stands still in silence is worse.
_TROUBLE = Persistence(backoff=Backoff(initial=0.5, maximum=10.0), worth_it=always)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """How far the read model is behind: events not yet taken in, and the age of the oldest. None
    where the broker does not say, or cannot. `trouble`: why nothing is taken in at present."""

    events: int | None = None
    seconds: float | None = None
    trouble: str | None = None


class Projection:
    """Keeps a read model up to date, and tells watchers what changes.

    Every process follows the whole event topic by its log, so each can tell its own watchers; the
    model does not mind that several write to it. When entered it first takes in what it has not
    seen, so a model in memory is whole before it answers. A broker without a log is followed
    through `subscription`, which only one process may use.

    It knows which log it follows. One that was made again, or restored from an earlier time, is
    followed from its beginning; a topic that is gone is made again, with all that jobs need.
    """

    def __init__(self, client: PubSubClient, views: Views, subscription: str = "job-views") -> None:
        self._client = client
        self._views = views
        self._subscription = subscription
        self._topic = client.settings.topics.events
        self.pipeline = client.settings.pipeline
        self._decode = self.pipeline.codec.decode_event
        self._watchers: set[Watcher] = set()
        self._at = Position()
        self._recognised = False
        self._outage = Outage(_log, f"The read model cannot follow topic {self._topic!r}")
        self._trouble: str | None = None
        self._caught_up = asyncio.get_running_loop().time()
        self._following: asyncio.Task[None] | None = None
        self._subscriber: Subscriber[StageEvent] | None = None
        self._taking = GroupCommit(self._take_all, all_or_none=True)
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        log = (await self._client.pubsub.broker()).log
        if log is None:
            await self._subscribe()
            return self
        self._at = await self._views.position(self._topic)
        taken = await self._catch_up(log)
        if taken:
            _log.info("The read model took in %d events of %r", taken, self._topic)
        # Owned here: leaving ends it.
        self._following = asyncio.get_running_loop().create_task(self._follow(log))
        return self

    async def __aexit__(self, *_: object) -> None:
        for watcher in list(self._watchers):
            watcher.end()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        if self._subscriber is not None:
            await self._subscriber.aclose()
        await self._taking.aclose()

    async def lag(self) -> Lag:
        broker = await self._client.pubsub.broker()
        if broker.log is None:
            status = await self._client.pubsub.subscription(self._subscription).describe()
            waits = status.unsettled
            # Google does not count: what it says in its monitoring is not for us to ask.
            return Lag(events=waits.messages, seconds=waits.oldest_age) if waits else Lag()
        since = asyncio.get_running_loop().time() - self._caught_up
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                extent = await broker.log.extent(self._topic)
        except (PenstockError, TimeoutError) as error:
            return Lag(seconds=since, trouble=self._told(error))
        if self._is_another(extent):
            return Lag(seconds=since, trouble=f"Topic {self._topic!r} is another one than before")
        behind = extent.last - self._at.sequence
        return Lag(events=behind, seconds=since if behind else 0.0, trouble=self._trouble)

    def wake(self) -> None:
        """Something was said of a job: look at once, however long it was quiet."""
        self._news.set()

    def watch(self, user_id: str | None = None, job_id: str | None = None) -> Watcher:
        """Changes from now on, of one user or one job or all."""
        self.wake()
        return Watcher(self._watchers, user_id, job_id)

    async def _follow(self, log: Log) -> None:
        pause = _POLL

        async def catch_up() -> None:
            nonlocal pause
            try:
                taken = await self._catch_up(log)
            except TopicNotFoundError:
                await make_again(self._client)
                raise
            self._outage.over()
            self._trouble = None
            pause = _POLL if taken or self._watchers else min(_IDLE_POLL, pause * 1.2)
            rest = _POLL if taken >= _MUCH else _BREATH
            await asyncio.sleep(rest)
            if await self._told_within(pause - rest):
                pause = _POLL

        await keep_doing(catch_up, Failures(_TROUBLE), on_failure=self._meet)

    async def _told_within(self, seconds: float) -> bool:
        """Whether it was woken since it was asked last, or is within so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        told = self._news.is_set()
        self._news.clear()
        return told

    def _meet(self, error: Exception, pause: float = 0.0) -> None:
        self._trouble = self._told(error)
        # What comes back may not be what went away.
        self._recognised = False
        self._outage.met(error, pause)

    def _told(self, error: Exception) -> str:
        """In words that name no host."""
        if isinstance(error, TopicNotFoundError):
            return f"Topic {self._topic!r} is missing"
        return f"Topic {self._topic!r} cannot be followed; the log of the API says why"

    async def _catch_up(self, log: Log) -> int:
        """Take in what the topic holds and we have not seen; returns how many messages."""
        taken = 0
        extent = await log.extent(self._topic)
        await self._recognise(log, extent)
        first = self._at.sequence + 1
        if extent.last >= first:
            stored = ""
            async for records in log.read(self._topic, first, extent.last):
                await self._take_records(records)
                last = records[-1]
                stored = str(last.publish_time_ns) if last.sequence == extent.last else ""
                self._at = replace(self._at, sequence=last.sequence, stored=stored)
                taken += len(records)
            self._at = replace(self._at, sequence=extent.last, stored=stored)
            await self._views.reached(self._topic, self._at)
        self._caught_up = asyncio.get_running_loop().time()
        return taken

    async def _recognise(self, log: Log, extent: Extent) -> None:
        """Begin anew in a log that is another one than so far."""
        known = not self._is_another(extent)
        if known and not self._recognised:
            known = await self._is_where_it_was(log)
        if not known:
            _log.warning(
                "Topic %r is another one than the read model has followed, made again or restored; "
                "it is followed from its beginning",
                self._topic,
            )
            self._at = Position(log=extent.identity)
            # Else the old position stands until the log is longer, and each start begins anew.
            await self._views.reached(self._topic, self._at)
            for watcher in list(self._watchers):
                watcher.look_again()
        self._at = replace(self._at, log=extent.identity)
        self._recognised = True

    def _is_another(self, extent: Extent) -> bool:
        """By its looks: it says so, or it ends before what was read of it."""
        renamed = "" not in (self._at.log, extent.identity) and self._at.log != extent.identity
        return renamed or extent.last < self._at.sequence

    async def _is_where_it_was(self, log: Log) -> bool:
        """Whether the message that was read last is still that one. A log that was restored has
        its old name and may have grown beyond it; one that dropped the message cannot say."""
        at = self._at
        async for records in log.read(self._topic, at.sequence, at.sequence):
            return at.stored in ("", str(records[0].publish_time_ns))
        return True

    async def _take_records(self, records: Sequence[Record]) -> None:
        events = []
        for record in records:
            try:
                events.append(self._decode(record.data, record.attributes))
            except InvalidMessageError as error:
                _log.warning(
                    "Message %d of %r is no event: %s", record.sequence, self._topic, error.reason
                )
        await self._take_all(events)

    async def _take_all(self, events: Sequence[StageEvent]) -> Sequence[Done]:
        changed = list(await self._views.apply(events))
        if self._watchers:
            # What another process was faster to write is news to our watchers all the same.
            ours = {view.job_id for view in changed}
            for job_id in {event.job_id for event in events} - ours:
                # A view that cannot be read was told of when its event was skipped.
                with suppress(FailedPreconditionError):
                    view = await self._views.get(job_id)
                    if view is not None:
                        changed.append(view)
            for watcher in list(self._watchers):
                watcher.tell(changed)
        return [Done()] * len(events)

    async def _subscribe(self) -> None:
        handle = self._client.events(self._subscription)
        with suppress(AlreadyExistsError, PermissionDeniedError):
            await handle.create()
        if (await self._client.pubsub.broker()).capabilities.seek:
            await handle.seek(datetime.fromtimestamp(0, UTC))
        self._subscriber = Subscriber(
            handle,
            self._decode,
            self._take,
            self._client.observer,
            name="projection",
            publisher=self._client.publisher,
            dead_letters=self._client.settings.topics.dead_events,
        )
        await self._subscriber.__aenter__()

    async def _take(self, event: StageEvent, _attempt: int) -> Done:
        return await self._taking.do(event)


class Watcher:
    """Changes of views, as they come: `async for view in watcher`. None among them means that
    some were missed because the reader was too slow: look at everything again."""

    def __init__(self, among: set[Watcher], user_id: str | None, job_id: str | None) -> None:
        self._among = among
        self._user_id = user_id
        self._job_id = job_id
        self._news: deque[JobView | None] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        among.add(self)

    def tell(self, changed: Sequence[JobView]) -> None:
        wanted = [
            view
            for view in changed
            if self._user_id in (None, view.user_id) and self._job_id in (None, view.job_id)
        ]
        if not wanted:
            return
        self._news.extend(wanted)
        if len(self._news) > _WATCHER_BUFFER:
            self.look_again()
        self._wake.set()

    def look_again(self) -> None:
        """Something may have been missed."""
        self._news.clear()
        self._news.append(None)
        self._wake.set()

    def more(self) -> list[JobView | None]:
        """What has come besides, for readers who take it together."""
        news = list(self._news)
        self._news.clear()
        return news

    def end(self) -> None:
        self._ended = True
        self._among.discard(self)
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[JobView | None]:
        try:
            while True:
                while self._news:
                    yield self._news.popleft()
                if self._ended:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self.end()
