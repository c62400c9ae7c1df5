"""A bridge between two apps: publish, receive, and know how it is. One for each process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from penstock.bridge.connection import BridgeConnection, inherited, opener
from penstock.bridge.consumer import Consumer
from penstock.bridge.envelope import Envelope, EventFields, build
from penstock.bridge.handlers import EventHandler
from penstock.bridge.health import Health, HealthCheck, Timings
from penstock.bridge.outcomes import Classifier, classify
from penstock.bridge.processing import Checkpoint, Processor
from penstock.bridge.running import CurrentBroker, Running
from penstock.bridge.settings import BridgeSettings
from penstock.bridge.topology import Provisioned, Provisioner
from penstock.bridge.tracing import current_traceparent
from penstock.broker import Broker
from penstock.capabilities import publish
from penstock.client import PubSub
from penstock.clock import Clock
from penstock.consuming.declaration import Middleware
from penstock.errors import (
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.lifetime import AsyncClosing
from penstock.message import Draft, PublishFault, Receipt
from penstock.retrying import Persistence, is_retryable, retry
from penstock.rules.backoff import Backoff

if TYPE_CHECKING:
    from penstock.bridge.outbox import Blocking, EventOutbox, Transaction
    from penstock.transactional import Database, Inbox, Relay

_PUBLISHING = Persistence(backoff=Backoff(initial=0.2, maximum=5.0), attempts=4)
# A stream that is gone is made again before the next attempt, where we may.
_PROVISIONING = replace(
    _PUBLISHING, worth_it=lambda error: is_retryable(error) or isinstance(error, NotFoundError)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishResult:
    """What became of a publish. `queued`: it is a row of the outbox, and published if and when its
    transaction commits. `duplicate`: the broker had it already. `error`: why it failed."""

    success: bool
    event_id: str
    subject: str
    duplicate: bool = False
    queued: bool = False
    error: PenstockError | None = None


class Bridge(AsyncClosing):
    """Tells another app what happened, and hears from it. Settings: see `BridgeSettings`.

    Use it with `async with`, or `await bridge.startup()` and `await bridge.aclose()`. `relay`:
    publish what is in the outbox from this process; else `penstock bridge relay` does.
    `broker`: one to use instead of `url`; it stays open. A forked child makes its own connections.
    """

    def __init__(
        self,
        app_name: str,
        destination_app: str,
        *,
        relay: bool = True,
        broker: Broker | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.settings = _settings(app_name, destination_app, settings)
        self.names = self.settings.names
        self._clock = clock or Clock()
        self._runs_relay = relay
        self._broker = broker
        self.connection = self._new_connection()
        self._running: Running | None = None
        self._starting: tuple[tuple[int, asyncio.AbstractEventLoop], asyncio.Lock] | None = None
        self._closed = False
        self._timings = Timings()
        self._health = HealthCheck(self)
        self._events = self._new_outbox()
        self._consumers: list[Consumer] = []

    @classmethod
    def of(cls, settings: BridgeSettings, **options: Any) -> Self:
        """A bridge with these settings."""
        fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
        return cls(**fields, **options)

    def __repr__(self) -> str:
        return f"<Bridge {self.names.source_subject}, {self.connection.state.value}>"

    # Life.

    async def startup(self) -> None:
        """Check the settings and the tables, connect, provision, start the relay. Idempotent.

        With `lazy_connect` the broker is left for later.
        """
        await self._start(connect=not self.settings.lazy_connect)

    async def open_database(self) -> None:
        """Open and check what is in the database, and leave the broker alone. Creates nothing:
        `NotFoundError` when there is nothing to open."""
        async with self._start_lock():
            if self._running is None:
                self._running = await self._open_database(create=False)

    async def reconnect(self) -> None:
        """Make the connection to the broker anew. Consumers go on with it."""
        await self.connection.reconnect()

    async def provision(self) -> Provisioned:
        """Create streams and consumer where they are missing, whatever `auto_provision` says."""
        return await Provisioner(await self.connection.broker(), self.settings).provision()

    async def problems(self) -> list[str]:
        """What of streams and consumer is not as it should be."""
        return await Provisioner(await self.connection.broker(), self.settings).problems()

    async def aclose(self) -> None:
        """Stop consumers and relay, close every connection. Idempotent, and safe before start."""
        self._closed = True
        await asyncio.gather(*(consumer.stop() for consumer in self._consumers))
        running = self._here()
        if running is not None and running.is_ours():
            # Still there meanwhile: the relay publishes what it has in hand.
            await running.aclose()
        self._running = None
        await self.connection.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.startup()
        except BaseException:
            await self.aclose()
            raise
        return self

    # Publishing.

    async def publish(
        self,
        *,
        connection: Transaction | None = None,
        ordering_key: str | None = None,
        **event: Unpack[EventFields],
    ) -> PublishResult:
        """Tell the other app what happened: `event_type`, `payload`, and see `EventFields`.

        With the outbox, the event is a row of the transaction of `connection`: SQLAlchemy's
        connection or session, async or not, or an engine. None: a transaction of its own. It is
        published if and when that commits. Without the outbox, it is published now, with
        retries; `success` says whether it was.

        An event with the id of one that failed takes its place in the outbox.

        `ordering_key`: what is kept in order, by default the resource; empty for nothing.
        """
        envelope, draft = self._event(event, ordering_key)
        if self._events is None:
            if connection is not None:
                raise _no_outbox()
            return await self._publish_now(envelope, draft)
        if connection is None:
            await self._start(connect=False)
        await self._events.add(connection, draft, revive=_is_known(event))
        return self._queued(envelope)

    def enqueue(
        self,
        *,
        connection: Blocking,
        ordering_key: str | None = None,
        **event: Unpack[EventFields],
    ) -> PublishResult:
        """`publish` for programs without an event loop: the event becomes a row of the outbox in
        the transaction of `connection`. A relay publishes it, here or elsewhere."""
        if self._events is None:
            raise _no_outbox()
        envelope, draft = self._event(event, ordering_key)
        self._events.add_blocking(connection, draft, revive=_is_known(event))
        return self._queued(envelope)

    # Receiving.

    def consumer(
        self,
        handler: Callable[..., Any],
        *,
        batch_size: int = 25,
        concurrency: int = 1,
        classifier: Classifier = classify,
        drain_timeout: float = 30.0,
        checkpoint: Checkpoint | None = None,
    ) -> Consumer:
        """A consumer of this app's events; see `Consumer`. `handler`: a function of `(event)`, or
        of `(event, connection)` to write in the transaction that marks the event as processed."""
        if EventHandler(handler).takes_connection and not self.settings.use_inbox:
            raise InvalidArgumentError(
                "This handler takes a connection, which only a bridge with use_inbox has"
            )
        most = self.settings.database_connections
        if self.settings.use_inbox and concurrency >= most > 1:
            raise InvalidArgumentError(
                f"A concurrency of {concurrency} with an inbox needs more than the {most} "
                f"connections of this bridge: set database_connections={concurrency + 5}"
            )
        consumer = Consumer(
            self.settings,
            handler,
            pubsub=self._started_pubsub,
            processor=self._processor,
            batch_size=batch_size,
            concurrency=concurrency,
            classifier=classifier,
            drain_timeout=drain_timeout,
            checkpoint=checkpoint,
        )
        self._consumers = [*(one for one in self._consumers if not one.stopped), consumer]
        return consumer

    # Knowing how it is.

    async def health_check(self, skip_cache: bool = False) -> Health:
        """How the bridge is, at most 30 seconds ago; `skip_cache` for now. Never raises because
        something is wrong. Safe from other threads and event loops."""
        return await self._health.check(skip_cache=skip_cache)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that what it has open belongs to, once it has something."""
        running = self._here()
        return running.loop if running is not None else self.connection.loop

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._consumers

    @property
    def timings(self) -> Timings:
        return self._timings

    @property
    def relay(self) -> Relay | None:
        running = self._here()
        return running.relay if running is not None else None

    @property
    def outbox(self) -> EventOutbox | None:
        self._here()
        return self._events

    @property
    def inbox(self) -> Inbox | None:
        running = self._here()
        return running.inbox if running is not None else None

    # Starting.

    async def _started_pubsub(self) -> PubSub:
        await self._start(connect=True)
        return await self.connection.pubsub()

    async def _start(self, *, connect: bool) -> Running:
        """What runs in this process and on this loop; connected to the broker if asked to."""
        running = self._here()
        if running is not None and running.is_ours() and (running.provisioned or not connect):
            return running
        async with self._start_lock():
            running = self._running
            self._check_open()
            if running is None or not running.is_ours():
                running = await self._open_database()
                if self._closed:
                    # While it was opened; whoever closed it did not find it.
                    await running.aclose()
                self._check_open()
                self._running = running
            if connect and not running.provisioned:
                broker = await self.connection.broker()
                if self.settings.auto_provision:
                    await Provisioner(broker, self.settings).provision()
                running.provisioned = True
        return running

    def _here(self) -> Running | None:
        """What it has open, unless that is a parent's: we were forked, and leave it alone."""
        if self._running is not None and not self._running.is_of_this_process():
            inherited.append(self._running)
            self._running, self._events = None, self._new_outbox()
        return self._running

    def _start_lock(self) -> asyncio.Lock:
        """One for whoever starts it in this process and on this loop at the same time."""
        here = (os.getpid(), asyncio.get_running_loop())
        if self._starting is None or self._starting[0] != here:
            self._starting = (here, asyncio.Lock())
        return self._starting[1]

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("This bridge is closed; make a new one")

    async def _open_database(self, *, create: bool = True) -> Running:
        settings = self.settings
        running = Running(pid=os.getpid(), loop=asyncio.get_running_loop())
        if self._events is None and not settings.use_inbox:
            return running
        from penstock.transactional import Inbox, Relay
        from penstock.transactional.commit_signals import CommitSignals

        events = self._events = self._new_outbox(create)
        database = events.database if events is not None else self._new_database(create)
        running.database = database
        try:
            await database.__aenter__()
            if events is not None:
                await (events.outbox.create() if create else events.outbox.check())
            if settings.use_inbox:
                running.inbox = Inbox(
                    database, self.names.durable, replay_horizon=settings.replay_horizon
                )
                await (running.inbox.create() if create else running.inbox.check())
        except BaseException:
            await database.aclose()
            raise
        if events is not None and self._runs_relay:
            broker = cast("Broker", CurrentBroker(self._started_pubsub, self._published))
            source = PubSub(broker=broker, clock=self._clock)
            # Other rows of the database may be for another broker.
            topics = [self.names.stream_name]
            running.relay = Relay(database, source, outbox=events.outbox, topics=topics)
            running.signals = events.signals = CommitSignals(database, running.relay.wake)
            running.relay.start()
            running.signals.start()
        return running

    def _new_connection(self) -> BridgeConnection:
        settings, given = self.settings, self._broker

        async def use_given() -> Broker:
            assert given is not None  # noqa: S101
            return given

        names = self.names
        connect = opener(settings.url, names.stream_name, names.dlq_stream, self._clock)
        return BridgeConnection(
            connect if given is None else use_given,
            attempts=settings.connect_retry_attempts,
            delay=settings.connect_retry_delay,
            clock=self._clock,
            owns=given is None,
        )

    def _new_database(self, create: bool = True) -> Database:
        from penstock.transactional import Database

        url, most = str(self.settings.database_url), self.settings.database_connections
        return Database(url, pool_size=most, create=create)

    def _new_outbox(self, create: bool = True) -> EventOutbox | None:
        if not self.settings.use_outbox:
            return None
        from penstock.bridge.outbox import EventOutbox

        return EventOutbox(self._new_database(create), self.names.stream_name)

    # Parts of publishing and receiving.

    def _event(self, fields: EventFields, ordering_key: str | None) -> tuple[Envelope, Draft]:
        traceparent = fields.get("traceparent") or current_traceparent()
        if traceparent:
            fields = {**fields, "traceparent": traceparent}
        envelope = build(producer=self.settings.app_name, **fields)
        subject = self.names.source_subject
        return envelope, envelope.draft(subject, traceparent=traceparent, ordering_key=ordering_key)

    def _queued(self, event: Envelope) -> PublishResult:
        subject = self.names.source_subject
        return PublishResult(success=True, event_id=event.event_id, subject=subject, queued=True)

    async def _publish_now(self, event: Envelope, draft: Draft) -> PublishResult:
        subject = self.names.source_subject
        try:
            patience = _PROVISIONING if self.settings.auto_provision else _PUBLISHING
            receipt = await retry(lambda: self._send(self.names.stream_name, draft), patience)
        except PenstockError as error:
            if isinstance(error, FailedPreconditionError | InvalidArgumentError):
                raise
            return PublishResult(
                success=False, event_id=event.event_id, subject=subject, error=error
            )
        return PublishResult(
            success=True, event_id=event.event_id, subject=subject, duplicate=receipt.duplicate
        )

    async def _send(self, topic: str, draft: Draft) -> Receipt:
        await self._start(connect=True)
        broker = await self.connection.broker()
        [answer] = await self._published(broker, topic, [draft])
        if isinstance(answer, PublishFault):
            raise answer.error
        return answer

    async def _published(
        self, broker: Broker, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        """The broker's answers. When they say that streams may be gone, these are seen to before
        the next attempt."""
        wrong: list[PenstockError] = []
        try:
            answers = await publish(broker, topic, drafts)
            wrong += [answer.error for answer in answers if isinstance(answer, PublishFault)]
            return answers
        except PenstockError as error:
            wrong.append(error)
            raise
        finally:
            gone = any(isinstance(error, NotFoundError | UnavailableError) for error in wrong)
            if gone and self._running is not None:
                self._running.provisioned = False

    async def _send_dead_letter(self, letter: Draft) -> None:
        await self._send(self.names.dlq_stream, letter)

    def _processor(
        self,
        handler: EventHandler,
        middleware: list[Middleware],
        classifier: Classifier,
        checkpoint: Checkpoint,
    ) -> Processor:
        return Processor(
            self.settings,
            handler,
            middleware=middleware,
            classifier=classifier,
            inbox=self.inbox,
            send_dead_letter=self._send_dead_letter,
            clock=self._clock,
            timed=self._timings.handled,
            checkpoint=checkpoint,
        )


def _settings(app_name: str, destination_app: str, given: dict[str, Any]) -> BridgeSettings:
    if isinstance(given.get("backoff"), list):
        given = {**given, "backoff": tuple(given["backoff"])}
    try:
        return BridgeSettings(app_name=app_name, destination_app=destination_app, **given)
    except TypeError:
        known = BridgeSettings.__dataclass_fields__
        unknown = sorted(given.keys() - known.keys())
        raise InvalidArgumentError(
            f"A bridge has no setting {', '.join(unknown)}; it has {', '.join(known)}"
        ) from None


def _is_known(event: EventFields) -> bool:
    """It may have been published before: its id was not made just now."""
    return bool(event.get("event_id"))


def _no_outbox() -> InvalidArgumentError:
    return InvalidArgumentError(
        "Publishing in a transaction needs the outbox: Bridge(use_outbox=True, database_url=…)"
    )
