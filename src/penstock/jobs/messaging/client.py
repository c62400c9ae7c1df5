"""The messaging half of the job system: where jobs and events are sent, and how they are received.

`Publisher` sends what a stored job has to say of its stage. `Subscriber` decodes, calls a handler
and settles by what it returns. Topics and subscriptions are made by `provision`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar

from penstock.client import PubSub
from penstock.errors import AlreadyExistsError, PenstockError
from penstock.jobs.model.codec import InvalidMessageError, encode_event, encode_job
from penstock.jobs.model.job import JobEvent, JobStage, MediaType, ProcessingJob
from penstock.jobs.pipeline.stage import Done, Outcome, Reject, Retry
from penstock.jobs.settings import JobSettings, StageSettings, Topics
from penstock.jobs.store.records import JobRecord
from penstock.jobs.telemetry import LoggingObserver, Observer, Observers, Subject
from penstock.message import Draft, Message
from penstock.publishing import ManagedPublisher, PublishRetry
from penstock.rules.backoff import Backoff
from penstock.rules.window import FlowControl
from penstock.subscribing import LeaseExtension, Streaming, Subscription

_log = logging.getLogger("penstock.jobs")
T = TypeVar("T")
Decode: TypeAlias = Callable[[bytes, Mapping[str, str]], T]
Handle: TypeAlias = Callable[[T, int], Awaitable[Outcome]]
"""Takes what was decoded and the delivery attempt."""

ROUTED = ("stage", "mediaType")
_WINDOW = 1000
_REOPEN = Backoff(initial=1.0, maximum=30.0)


def messages_of(
    record: JobRecord, topics: Topics, after: JobStage | None = None
) -> list[tuple[str, Draft]]:
    """What a job says when it has reached its stage: an event, and work for the next stage if
    there is one. Always the same for the same stage, so saying it twice is harmless.

    `after`: the stage a runner took it from. When it has gone on twice since, somebody may have
    died before the first of the two was said, so that is said as well.
    """
    said = [(topics.events, encode_event(record.event()))]
    if after is JobStage.QUEUED and record.ready_at and record.job.stage.terminal:
        said.insert(0, (topics.events, encode_event(record.metadata_event())))
    if not record.job.stage.terminal:
        said.insert(0, (topics.of(record.job.media_type), encode_job(record.job)))
    return said


class PubSubClient:
    """Publishes jobs and events, and runs subscribers. Use it with `async with`."""

    def __init__(
        self, pubsub: PubSub, settings: JobSettings, observer: Observer | None = None
    ) -> None:
        self.pubsub = pubsub
        self.settings = settings
        self.observer = Observers(observer or LoggingObserver())
        self.publisher = Publisher(pubsub, settings.topics, self.observer)

    async def __aenter__(self) -> Self:
        await self.provision()
        self.publisher.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.publisher.aclose()

    async def provision(self) -> None:
        """Make what is missing of topics and subscriptions; what exists is left as it is."""
        topics, stages = self.settings.topics, self.settings.stages
        stage_settings = (stages.metadata, stages.transcription)
        dead = {s.dead_letters(topic) for s in stage_settings for topic in topics.work}
        for topic in sorted(dead | {topics.dead_events}):
            await self._create_topic(topic)
        for topic in (*topics.work, topics.events):
            await self._create_topic(topic, routed=True)
        for settings in stage_settings:
            for handle in self.subscriptions(settings):
                with suppress(AlreadyExistsError):
                    await handle.create()

    async def _create_topic(self, name: str, *, routed: bool = False) -> None:
        with suppress(AlreadyExistsError):
            await self.pubsub.topic(name).create(
                message_retention=self.settings.topics.retention,
                routed_attributes=ROUTED if routed else (),
            )

    def subscriptions(self, settings: StageSettings) -> list[Subscription]:
        """One for each topic that jobs are sent to."""
        return [
            self.pubsub.subscription(
                settings.subscription
                if topic == self.settings.topics.processing
                else f"{settings.subscription}-{topic}",
                topic=topic,
                filter=settings.filter,
                ack_deadline=settings.ack_deadline,
                # For trouble of ours; how often a job may fail is counted in its row. There is no
                # dead-letter policy: a broker would take a job out of circulation and tell nobody.
                retry_policy=settings.retry_policy,
                flow_control=FlowControl(max_messages=settings.concurrency),
                streaming=Streaming(max_streams=1),
                lease_extension=LeaseExtension(
                    interval=settings.extension_interval,
                    jitter=settings.extension_jitter,
                    max_total=min(7 * 86_400.0, settings.time_limit + settings.ack_deadline),
                ),
            )
            for topic in self.settings.topics.work
        ]

    def subscriber(
        self, settings: StageSettings, decode: Decode[T], handle: Handle[T], *, name: str
    ) -> Subscribers[T]:
        """`handle` is called with what messages of the stage decode to, while it is entered."""
        room = asyncio.Semaphore(settings.concurrency)

        async def in_turn(value: T, attempt: int) -> Outcome:
            # Several topics share the concurrency of a stage.
            async with room:
                return await handle(value, attempt)

        return Subscribers(
            [
                Subscriber(
                    subscription,
                    decode,
                    in_turn,
                    self.observer,
                    name=name,
                    publisher=self.publisher,
                    dead_letters=settings.dead_letters(subscription.topic or ""),
                    invalid_attempts=settings.max_attempts if settings.invalid == "retry" else 1,
                    drain=settings.drain,
                )
                for subscription in self.subscriptions(settings)
            ]
        )


class Publisher:
    """Sends jobs and events; returns once the broker has them."""

    def __init__(self, pubsub: PubSub, topics: Topics, observer: Observer) -> None:
        self._topics = topics
        self._observer = observer
        self._publisher = ManagedPublisher(
            pubsub,
            max_in_flight=_WINDOW,
            refill_allowed_at=_WINDOW - 1,
            retry=PublishRetry(attempts=5, deadline=30.0),
        )

    def start(self) -> None:
        self._publisher.start()

    async def aclose(self) -> None:
        await self._publisher.drain(timeout=10.0)

    async def publish_job(self, job: ProcessingJob) -> None:
        await self.publish([(self._topics.of(job.media_type), encode_job(job))])

    async def publish_event(self, event: JobEvent) -> None:
        await self.publish([(self._topics.events, encode_event(event))])

    async def publish_stage(self, record: JobRecord, after: JobStage | None = None) -> None:
        """Whatever a stored job has to say of its stage."""
        await self.publish(messages_of(record, self._topics, after))

    async def publish(self, messages: Sequence[tuple[str, Draft]]) -> None:
        """All of them; the first failure is raised once all are answered."""
        began = time.monotonic()
        flights = [
            await self._publisher.publish_async(
                topic, draft.data, headers=draft.attributes, message_id=draft.message_id
            )
            for topic, draft in messages
        ]
        failure: PenstockError | None = None
        for (topic, draft), flight in zip(messages, flights, strict=True):
            error: PenstockError | None = None
            try:
                await flight.ack
            except PenstockError as raised:
                failure = failure or raised
                error = raised
            took = time.monotonic() - began
            self._observer.published(subject_of(draft.attributes, 1), topic, took, error)
        if failure is not None:
            raise failure


class Subscriber(Generic[T]):
    """Calls a handler with what the messages of one subscription decode to.

    Done is an ack, Retry a nack, Reject a dead letter: published where `dead_letters` says, then
    acked. What cannot be decoded is a dead letter too, at its delivery number `invalid_attempts`.
    A handler that raises has met trouble of ours: the message comes back, however often.

    A subscription that ends by itself, because it was deleted for instance, is opened again until
    it can be.
    """

    def __init__(
        self,
        subscription: Subscription,
        decode: Decode[T],
        handle: Handle[T],
        observer: Observer,
        *,
        name: str,
        publisher: Publisher,
        dead_letters: str,
        invalid_attempts: int = 1,
        drain: float = 10.0,
    ) -> None:
        self.subscription = subscription
        self._decode = decode
        self._handle = handle
        self._observer = observer
        self._name = name
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._invalid_attempts = invalid_attempts
        self._drain = drain
        self._keeper: asyncio.Task[None] | None = None
        subscription.on("message", self._on_message)
        subscription.on("error", self._on_error)

    @property
    def listening(self) -> bool:
        return self.subscription.is_open

    async def __aenter__(self) -> Self:
        self.subscription.open()
        # Owned here: `aclose` ends it.
        self._keeper = asyncio.get_running_loop().create_task(self._keep_open())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take nothing more, finish what runs within `drain` seconds, give back the rest."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        await self.subscription.close(timeout=self._drain, nack_waiting=True)
        self.subscription.off("message", self._on_message)
        self.subscription.off("error", self._on_error)

    async def _keep_open(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(_REOPEN.delay(failures + 1, lambda: 1.0))
            if self.subscription.is_open:
                failures = 0
                continue
            failures += 1
            _log.error(
                "Subscription %r of %s ended; opening it again", self.subscription.name, self._name
            )
            self.subscription.open()

    def _on_error(self, error: Exception) -> None:
        _log.warning("%s: subscription %r: %s", self._name, self.subscription.name, error)

    async def _on_message(self, message: Message) -> None:
        subject = subject_of(message.attributes, message.delivery_attempt)
        self._observer.received(subject, self.subscription.name)
        began = time.monotonic()
        try:
            outcome = await self._outcome(message, subject)
            await self._settle(message, outcome, subject)
        except asyncio.CancelledError:
            self._observer.handled(subject, self._name, "lost", time.monotonic() - began)
            raise
        took = time.monotonic() - began
        self._observer.handled(subject, self._name, type(outcome).__name__.lower(), took)

    async def _outcome(self, message: Message, subject: Subject) -> Outcome:
        try:
            value = self._decode(message.data, message.attributes)
        except InvalidMessageError as error:
            if message.delivery_attempt < self._invalid_attempts:
                return Retry(error.reason)
            return Reject(error.reason)
        try:
            return await self._handle(value, message.delivery_attempt)
        except PenstockError as error:
            _log.warning("%s of job %s is to wait: %s", self._name, subject.job_id, error)
            return Retry("trouble")
        except Exception:
            _log.exception("%s of job %s met a mistake of ours", self._name, subject.job_id)
            return Retry("trouble")

    async def _settle(self, message: Message, outcome: Outcome, subject: Subject) -> None:
        match outcome:
            case Done():
                message.ack()
            case Retry(_, after):
                message.nack(None if after is None else min(600.0, max(0.0, after)))
            case Reject(reason):
                draft = Draft.of(
                    message.data, message.attributes, message_id=f"{message.id}.dead"[-256:]
                )
                try:
                    await self._publisher.publish([(self._dead_letters, draft)])
                except PenstockError as error:
                    _log.warning("A dead letter has to wait: %s", error)
                    message.nack()
                    return
                message.ack()
                self._observer.dead_lettered(subject, self._dead_letters, reason)


class Subscribers(Generic[T]):
    """The subscribers of one stage, entered and left together."""

    def __init__(self, subscribers: Sequence[Subscriber[T]]) -> None:
        self.subscribers = subscribers
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for subscriber in self.subscribers:
            await self._entered.enter_async_context(subscriber)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._entered.aclose()


def subject_of(attributes: Mapping[str, str], attempt: int) -> Subject:
    """Whom a message is about, by its attributes, which need not be right."""
    return Subject(
        job_id=_short(attributes.get("jobId")),
        user_id=_short(attributes.get("userId")),
        media_type=_known_media(attributes.get("mediaType")),
        stage=_short(attributes.get("stage")),
        attempt=attempt,
        correlation_id=_short(attributes.get("correlationId")),
    )


def _short(value: str | None) -> str | None:
    """Attributes of a stranger's message must not flood a log, nor break its lines."""
    return None if value is None else value[:64].encode("unicode_escape").decode()


def _known_media(value: str | None) -> str | None:
    return value if value in MediaType.__members__.values() else None
