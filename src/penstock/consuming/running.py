"""An app that runs: its connection, publisher and subscriptions, started and drained as one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Any

from penstock.broker import Broker
from penstock.capabilities import release_counts_of
from penstock.client import PubSub
from penstock.config import DeadLetterPolicy
from penstock.consuming.answering import Answering
from penstock.consuming.batches import Batches
from penstock.consuming.calling import Binding
from penstock.consuming.declaration import Provision, Subscriber
from penstock.consuming.handling import build_batch_handler, build_handler
from penstock.consuming.provisioning import DEAD_LETTERS_KEPT, Provisioning
from penstock.consuming.results import Results
from penstock.errors import UnavailableError
from penstock.message import Draft, Receipt
from penstock.observing import Observer, Observers, watch
from penstock.publishing import ManagedPublisher, PublishRetry
from penstock.rules.window import FlowControl
from penstock.subscribing import CloseReport, LeaseExtension, Subscription
from penstock.subscribing.daemon_threads import DaemonThreads

_log = logging.getLogger("penstock.app")

# Handlers publish side by side, so that what they publish travels together.
_IN_FLIGHT = 1000
_PUBLISHING = PublishRetry(attempts=5, deadline=20.0)
# For functions that mostly wait; as many as Python itself would take.
_THREADS = min(32, (os.cpu_count() or 1) + 4)
# Google asks for at least 5 and at most 100.
_FEWEST_ATTEMPTS, _MOST_ATTEMPTS = 5, 100


class Running:
    """One run of an app, from `start` to `stop`."""

    def __init__(
        self,
        pubsub: PubSub,
        bindings: Sequence[Binding],
        *,
        provision: Provision,
        topics: Mapping[str, Mapping[str, Any]],
        lifespan: Sequence[Callable[[], Any]],
        observers: Sequence[Observer] = (),
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.pubsub = pubsub
        self.subscriptions: list[Subscription] = []
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """What ended a subscription, or the app, that was not asked to end."""
        self._bindings = bindings
        self._provision = provision
        self._topics = topics
        self._lifespan = lifespan
        self._on_end = on_end
        self._stack = AsyncExitStack()
        self._batches: list[Batches] = []
        self._up, self._asked_to_stop = asyncio.Event(), asyncio.Event()
        self._life: asyncio.Task[CloseReport]
        self._timeout: float | None = None
        self._observer = Observers(*observers) if observers else None
        for observer in observers:
            pubsub.observe(observer)
        self._publisher = ManagedPublisher(
            pubsub, max_in_flight=_IN_FLIGHT, refill_allowed_at=_IN_FLIGHT - 1, retry=_PUBLISHING
        )

    @property
    def ready(self) -> bool:
        """Started, and every subscription receives: the last time one asked, it was answered."""
        streams = [one.stream for one in self.subscriptions]
        return bool(streams) and all(
            one is not None and one.active and not one.statistics().failures for one in streams
        )

    @property
    def busy(self) -> bool:
        """Something is being published, or waits in a batch."""
        return self._publisher.in_flight > 0 or any(one.busy for one in self._batches)

    async def start(self) -> None:
        """All of it, or none: what was begun when something fails is ended again."""
        # Owned here: it ends by itself when it is asked to, or cannot start.
        life = self._life = asyncio.get_running_loop().create_task(self._live())
        life.add_done_callback(self._ended)
        up = asyncio.ensure_future(self._up.wait())
        try:
            await asyncio.wait({life, up}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            life.cancel()
            await asyncio.wait({life})
            raise
        finally:
            up.cancel()
        if not self._up.is_set():
            await life

    async def stop(self, timeout: float | None) -> CloseReport:
        """Take nothing more, finish what is in hand within `timeout` seconds, close everything.

        Cancelling the caller does not stop the closing. A handler that calls it is not waited for.
        """
        life = self._begin_to_stop(timeout)
        if life is asyncio.current_task():  # A lifespan is about to end as it is.
            return CloseReport()
        return await asyncio.shield(life)

    async def _live(self) -> CloseReport:
        """Everything from the start to the end, on one task: what a lifespan enters there, a group
        of tasks for instance, is left there, whoever starts and stops the app."""
        try:
            await self._start()
            self._up.set()
            await self._asked_to_stop.wait()
        except GeneratorExit:
            raise  # The loop is gone.
        except BaseException:
            self._begin_to_stop(0.0)
            await self._close()
            raise
        return await self._close()

    # Publishing.

    async def send(self, topic: str, draft: Draft) -> Receipt:
        flight = await self._publisher.publish_async(
            topic,
            draft.data,
            headers=draft.attributes,
            subject=draft.subject,
            ordering_key=draft.ordering_key,
            message_id=draft.message_id,
            expect=draft.expect,
            ttl=draft.ttl,
        )
        return await flight.ack

    async def send_all(self, drafts: Sequence[tuple[str, Draft]]) -> None:
        if len(drafts) == 1:
            await self.send(*drafts[0])
            return
        answers = await asyncio.gather(*(self.send(*one) for one in drafts), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    # Starting.

    async def _start(self) -> None:
        broker = await self.pubsub.broker()
        shared: dict[Any, Any] = {}
        for binding in self._bindings:
            await binding.plan.open(shared, self._stack)
        for hook in self._lifespan:
            await self._stack.enter_async_context(hook())
        provisioning = Provisioning(self.pubsub, broker, self._provision)
        await self._provision_topics(provisioning)
        self._publisher.start()
        for binding in self._bindings:
            subscription = self._subscription(binding, broker)
            subscriber = binding.subscriber
            await provisioning.subscription(subscription, subscriber.where, subscriber.asked)
            provisioning.tell_of_repeats(subscriber)
            await provisioning.releases(subscriber)
            subscription.source.observer = None  # Handlers tell by their middleware, and tell more.
            subscription.on("message", self._handler(binding, broker))
            subscription.on("close", lambda of=subscription: self._closed(of))
            self.subscriptions.append(subscription)
        for subscription in self.subscriptions:
            subscription.open()
        if self._observer is not None and self._observer.watches:
            # Owned here: the stack ends it.
            watching = asyncio.ensure_future(watch(self.pubsub, self._observer))
            self._stack.callback(watching.cancel)

    async def _provision_topics(self, provisioning: Provisioning) -> None:
        needs: dict[str, Mapping[str, Any]] = {}
        whose: dict[str, str] = {}
        letters = provisioning.keep_for(DEAD_LETTERS_KEPT)
        for subscriber in [binding.subscriber for binding in self._bindings]:
            for name in subscriber.topics:
                whose.setdefault(name, subscriber.where)
                needs.setdefault(name, {})
            if subscriber.dead_letters is not None:
                needs[subscriber.dead_letters] = letters
        await provisioning.topics({**needs, **self._topics}, whose)

    def _subscription(self, binding: Binding, broker: Broker) -> Subscription:
        subscriber, batch = binding.subscriber, binding.signature.batch
        can = broker.capabilities
        options = dict(subscriber.options)
        options.setdefault("lease_extension", LeaseExtension())
        if can.retry_policy:
            options.setdefault("retry_policy", subscriber.retry)
        options.setdefault("flow_control", _flow_control(subscriber, batch))
        dead, attempts = subscriber.dead_letters, subscriber.max_attempts
        if can.dead_letters and not can.delivery_attempts and dead and attempts:
            # Such a broker counts deliveries only for a policy of its own. It is set to move
            # messages later than we do, so that letters say why.
            later = min(max(attempts + 10, _FEWEST_ATTEMPTS), _MOST_ATTEMPTS)
            policy = DeadLetterPolicy(topic=dead, max_delivery_attempts=later)
            options.setdefault("dead_letter_policy", policy)
        return self.pubsub.subscription(subscriber.subscription, topic=subscriber.topic, **options)

    def _handler(self, binding: Binding, broker: Broker) -> Callable[..., Any]:
        subscriber = binding.subscriber
        answering = Answering(
            subscriber=subscriber, capabilities=broker.capabilities, send=self.send,
            clock=self.pubsub.clock, observer=self._observer, releases=release_counts_of(broker),
        )  # fmt: skip
        results = Results(subscriber, self.send_all) if subscriber.publications else None
        executor = self._executor(subscriber)
        if not binding.signature.batch:
            return build_handler(binding, answering, results, executor)
        batches = Batches(
            build_batch_handler(binding, answering, results, executor),
            size=subscriber.batch_size,
            wait=subscriber.batch_wait,
        )
        self._batches.append(batches)
        return batches

    def _executor(self, subscriber: Subscriber) -> Executor | None:
        if not subscriber.blocking:
            return None
        executor = DaemonThreads(subscriber.concurrency or _THREADS, subscriber.name)
        # Not waited for: a function that never returns must not keep the app from ending.
        self._stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        return executor

    # Ending.

    def _closed(self, subscription: Subscription) -> None:
        if self._asked_to_stop.is_set() or self.failure.done():
            return
        stream = subscription.stream
        error = stream.failure if stream is not None else None
        _log.error("Subscription %r ended by itself: %s", subscription.name, error)
        self.failure.set_result(
            error or UnavailableError(f"Subscription {subscription.name!r} was closed")
        )

    def _ended(self, life: asyncio.Task[CloseReport]) -> None:
        self._on_end()
        error = None if life.cancelled() else life.exception()
        if error is not None and self._up.is_set() and not self.failure.done():
            self.failure.set_result(error)

    def _begin_to_stop(self, timeout: float | None) -> asyncio.Task[CloseReport]:
        """In the task of whoever asks: a stream notices when one of its handlers does."""
        self._asked_to_stop.set()
        if timeout is not None:
            self._timeout = timeout if self._timeout is None else min(timeout, self._timeout)
        caller = asyncio.current_task()
        for batches in self._batches:
            batches.spare(caller)
            batches.hurry()
        for subscription in self.subscriptions:
            if subscription.stream is not None:
                subscription.stream.begin_to_stop(timeout)
        return self._life

    async def _close(self) -> CloseReport:
        try:
            return await self._drain()
        finally:
            try:
                await self._stack.aclose()
            finally:
                await self.pubsub.aclose(timeout=0)

    async def _drain(self) -> CloseReport:
        closing = [one.close(timeout=self._timeout) for one in self.subscriptions]
        report = sum(await asyncio.gather(*closing), CloseReport())
        for batches in self._batches:
            await batches.aclose()
        for flight in await self._publisher.drain(self._timeout):
            _log.error("Not published at the end: %r", flight)
        return report


def _flow_control(subscriber: Subscriber, batch: bool) -> FlowControl:
    """Handlers at a time are messages in hand; a batch needs all of its messages in hand."""
    most = FlowControl().max_messages if subscriber.concurrency is None else subscriber.concurrency
    if batch:
        most = subscriber.batch_size * (subscriber.concurrency or 2)
    return FlowControl(max_messages=most)
