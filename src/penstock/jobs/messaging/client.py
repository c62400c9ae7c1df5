"""The messaging half of the job system: its topics and subscriptions, and what is sent and received
on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Self

from penstock.broker import Broker
from penstock.client import PubSub
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.ensuring import ensure_subscription, ensure_topic
from penstock.errors import AlreadyExistsError, PermissionDeniedError, UnimplementedError
from penstock.jobs.messaging.listening import Listeners
from penstock.jobs.messaging.publisher import Publisher
from penstock.jobs.messaging.subscriber import Decode, Handle, Subscriber, T
from penstock.jobs.pipeline.stage import Outcome
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.settings import JobSettings
from penstock.jobs.telemetry import JobObserver, JobObservers, LoggingObserver
from penstock.rules.window import FlowControl
from penstock.subscribing import LeaseExtension, Streaming, Subscription

_log = logging.getLogger("penstock.jobs")
ROUTED = ("stage", "mediaType")


async def _make(making: Coroutine[Any, Any, object]) -> None:
    try:
        await making
    except AlreadyExistsError:
        return
    except PermissionDeniedError as error:
        _log.info("Taken for made by somebody else: %s", error)


async def _change(what: TopicConfig | SubscriptionConfig, ensuring: Awaitable[str]) -> str:
    kind = "topic" if isinstance(what, TopicConfig) else "subscription"
    try:
        changed = await ensuring
    except PermissionDeniedError as error:
        _log.info("The %s %r is taken for as it should be: %s", kind, what.name, error)
        return ""
    if not changed:
        return ""
    _log.warning("The %s %r is changed to what the settings say: %s", kind, what.name, changed)
    return f"{kind} {what.name}: {changed}"


def _check_claims(broker: Broker) -> None:
    """All that is missing at once, in the words of those who run jobs."""
    claims = broker.capabilities
    needs = {
        "filters": claims.filters,
        "retry_policy": claims.retry_policy,
        "seek or replay": claims.seek or claims.replay,
    }
    missing = [name for name, there in needs.items() if not there]
    if missing:
        raise UnimplementedError(
            f"Jobs need a broker with {', '.join(needs)}, and the {broker.name} broker does not "
            f"claim {', '.join(missing)}; use local://DIR, nats://HOST or pubsub://PROJECT"
        )


class PubSubClient:
    """Publishes jobs and events, and runs subscribers. Use it with `async with`."""

    def __init__(
        self, pubsub: PubSub, settings: JobSettings, observer: JobObserver | None = None
    ) -> None:
        self.pubsub = pubsub
        self.settings = settings
        self.observer = JobObservers(observer or LoggingObserver())
        self.publisher = Publisher(pubsub, settings, self.observer)

    async def __aenter__(self) -> Self:
        await self.provision()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.aclose()

    async def provision(self, *, spark: bool = False) -> None:
        """Make what is missing of topics and subscriptions; what exists is left as it is. Who may
        make nothing finds it made, or is told when it is used."""
        broker = await self.pubsub.broker()
        _check_claims(broker)
        has_log = broker.log is not None
        for topic in self.topics():
            await _make(
                self.pubsub.topic(topic.name).create(
                    message_retention=topic.message_retention,
                    routed_attributes=topic.routed_attributes,
                )
            )
        for subscription in self.every_subscription(has_log=has_log, spark=spark):
            await _make(subscription.create())

    async def apply_to_topics(self) -> list[str]:
        """Make topics that exist what the settings say, and return what that changed. For those who
        take jobs in: one process at least of each system does, and workers may know less."""
        broker = await self.pubsub.broker()
        # What they route by is a matter of speed, and stays as they were made.
        return [
            told
            for topic in self.topics()
            if (told := await _change(topic, ensure_topic(broker, topic, {"message_retention"})))
        ]

    async def apply_to_subscriptions(self, subscriptions: Sequence[Subscription]) -> list[str]:
        """The same for subscriptions, for those who take messages from them. What is refused is a
        `FailedPreconditionError` with the difference."""
        broker = await self.pubsub.broker()
        changed = []
        for one in subscriptions:
            given = one.config_given
            wanted = SubscriptionConfig(name=one.name, topic=one.topic or "", **given)
            told = await _change(wanted, ensure_subscription(broker, wanted, given))
            changed += [told] if told else []
        return changed

    def topics(self) -> list[TopicConfig]:
        """All that jobs need, those for dead letters first."""
        topics = self.settings.topics
        stages = [self.settings.stages.of(one) for one in self.settings.pipeline.stages]
        dead = {stage.dead_letters(topic) for stage in stages for topic in topics.work}
        routed = dict.fromkeys((*topics.work, topics.events), ROUTED)
        return [
            TopicConfig(
                name=name,
                message_retention=topics.retention,
                routed_attributes=routed.get(name, ()),
            )
            for name in (*sorted(dead | {topics.dead_events}), *routed)
        ]

    def every_subscription(self, *, has_log: bool, spark: bool = False) -> list[Subscription]:
        """All that jobs need. Where there is a log, the read model follows that, also on Spark."""
        found = [
            subscription
            for stage in self.settings.pipeline.stages
            for subscription in self.subscriptions(self.settings.stages.of(stage))
        ]
        if not has_log:
            found.append(self.events(self.settings.api.views_subscription))
        if spark and not has_log:
            found.append(self.events(self.settings.api.spark_subscription))
        return found

    def events(self, subscription: str) -> Subscription:
        """To follow the events by, on a broker without a log."""
        return self.pubsub.subscription(
            subscription,
            topic=self.settings.topics.events,
            flow_control=FlowControl(max_messages=500),
            ack_deadline=60.0,
        )

    def subscriptions(self, settings: StageSettings) -> list[Subscription]:
        """One for each topic that jobs are sent to."""
        return [
            self.pubsub.subscription(
                name,
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
            for topic, name in self.settings.subscriptions_of(settings).items()
        ]

    def subscriber(
        self, settings: StageSettings, decode: Decode[T], handle: Handle[T], *, name: str
    ) -> Listeners:
        """`handle` is called with what messages of the stage decode to, while it is entered."""
        room = asyncio.Semaphore(settings.concurrency)

        async def in_turn(value: T, attempt: int) -> Outcome:
            # Several topics share the concurrency of a stage.
            async with room:
                return await handle(value, attempt)

        return Listeners(
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
