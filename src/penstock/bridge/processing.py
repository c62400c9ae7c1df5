"""From deliveries to answers: read, once, through middleware to the handler, ack or not.

Every message handed in is answered: acked, brought back, or kept as a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.bridge.dead_letters import dead_letter, smaller
from penstock.bridge.envelope import Event, MalformedEventError, find_header, parse
from penstock.bridge.handlers import (
    EventCall,
    EventHandler,
    TransactionEnded,
    build_chain,
    settled,
    subscriber_of,
)
from penstock.bridge.outcomes import (
    MALFORMED,
    Again,
    Classifier,
    Done,
    GivenUp,
    Outcome,
    outcome_of,
    unanswered,
)
from penstock.bridge.settings import BridgeSettings
from penstock.clock import Clock
from penstock.consuming.declaration import Middleware
from penstock.errors import ClosedError, InvalidArgumentError, PenstockError
from penstock.message import Draft, Message
from penstock.rules.derived_ids import sequence_id

if TYPE_CHECKING:
    from penstock.transactional import Inbox

_log = logging.getLogger("penstock.bridge")
# An event whose effect is elsewhere is ours for so many times the ack deadline. Others look at it
# again once in that deadline, and not more often: deliveries are counted, and who died in the
# middle of it leaves it for as long as this.
_LEASES = 4

Arrived: TypeAlias = Event | GivenUp
Send: TypeAlias = Callable[[Draft], Awaitable[None]]
Checkpoint: TypeAlias = Callable[[str], None]


class InboxUnavailable(Exception):  # noqa: N818 - said of the inbox, raised within
    """Nothing can be processed now, whatever the event. What was not answered is as it was."""


class Processor:
    """Processes the events of one consumer. `checkpoint` is called with the name of each step."""

    def __init__(
        self,
        settings: BridgeSettings,
        handler: EventHandler,
        *,
        middleware: Sequence[Middleware],
        classifier: Classifier,
        inbox: Inbox | None,
        send_dead_letter: Send,
        clock: Clock,
        timed: Callable[[float], None],
        checkpoint: Checkpoint,
    ) -> None:
        self._settings = settings
        self._names = settings.names
        self._handler = handler
        self._chain = build_chain(handler, middleware)
        self._subscriber = subscriber_of(handler, self._names.stream_name, self._names.durable)
        self._classifier = classifier
        self._inbox = inbox
        self._send_dead_letter = send_dead_letter
        self._clock = clock
        self._timed = timed
        self._checkpoint = checkpoint
        self._unmarked: set[str] = set()
        """Events whose handler is done, and whose mark could not be written yet."""

    def read(self, message: Message) -> Arrived:
        """The event in a message, or why there is none."""
        try:
            envelope = parse(message.data)
        except MalformedEventError as error:
            return GivenUp(MALFORMED, error)
        return event_of(message, envelope, self._names.stream_name, self._names.durable)

    def suspected(self, message: Message, arrived: Arrived) -> GivenUp | None:
        """Of an event that was delivered again and again and never answered: what to say when it is
        given up for that. It may end its process, or have been in hand when another did."""
        if isinstance(arrived, GivenUp):
            return None
        return unanswered(arrived.event_id, message.delivery_attempt, self._settings)

    async def process(self, batch: Sequence[tuple[Message, Arrived]]) -> None:
        """One after the other. With an inbox and a handler that writes on its connection, all in
        one transaction. `InboxUnavailable` when the database cannot be used: keep those that are
        not answered, and try them again. They are not given back, as that would count."""
        events = []
        for message, arrived in batch:
            if isinstance(arrived, GivenUp):
                await self._answer(message, arrived.event_id or _event_id(message), arrived)
            else:
                events.append((message, arrived))
        if self._inbox is None:
            for message, event in events:
                await self._answer(message, event.event_id, await self._try(message, event, None))
        elif self._handler.takes_connection:
            await self._process_together(self._inbox, events)
        else:
            for message, event in events:
                await self._process_apart(self._inbox, message, event)

    # The effect and the mark in one transaction.

    async def _process_together(
        self, inbox: Inbox, events: Sequence[tuple[Message, Event]]
    ) -> None:
        from penstock.transactional.database import CommitGuard

        outcomes: list[Outcome] = []
        try:
            async with inbox.database.transaction() as connection:
                fresh = await inbox.mark(connection, [arrival_of(event) for _, event in events])
                self._checkpoint("marked")
                # A commit in the middle would keep the marks of events that are not handled yet.
                with CommitGuard(connection, TransactionEnded):
                    for message, event in events:
                        outcomes.append(await self._once(inbox, connection, fresh, message, event))
                self._checkpoint("handled")
            self._checkpoint("committed")
        except InboxUnavailable:
            raise
        except Exception as error:
            await self._process_failed(inbox, events, error)
            return
        for (message, event), outcome in zip(events, outcomes, strict=True):
            await self._answer(message, event.event_id, outcome)
        self._checkpoint("answered")

    async def _once(
        self, inbox: Inbox, connection: Any, fresh: set[str], message: Message, event: Event
    ) -> Outcome:
        if event.event_id not in fresh:
            _log.debug("Event %s was processed before", event.event_id)
            return Done()
        # A copy of it in the same batch is not new any more.
        fresh.discard(event.event_id)
        outcome = await self._try(message, event, connection)
        if not isinstance(outcome, Done):
            error = outcome.error or RuntimeError("given up")
            if isinstance(error, TransactionEnded):
                # Of the events of this transaction each has to be seen to alone.
                raise error
            if inbox.database.is_away(error):
                raise InboxUnavailable(f"{type(error).__name__} in a handler") from error
            await inbox.unmark(connection, [event.event_id], error)
        return outcome

    async def _process_failed(
        self, inbox: Inbox, events: Sequence[tuple[Message, Event]], error: Exception
    ) -> None:
        """The transaction failed, and nothing of it is kept."""
        if _is_about_the_inbox(error):
            raise InboxUnavailable(str(error)) from error
        if len(events) > 1:
            # One of them it was; alone, the others are done and that one is known.
            for one in events:
                await self._process_together(inbox, [one])
            return
        [(message, event)] = events
        outcome = self._outcome(message, event, error)
        if not await self._note_failure(inbox, event, error):
            outcome = Done()
        await self._answer(message, event.event_id, outcome)

    # The effect elsewhere.

    async def _process_apart(self, inbox: Inbox, message: Message, event: Event) -> None:
        try:
            outcome = await self._apart(inbox, message, event)
        except Exception as error:
            if _is_about_the_inbox(error):
                raise InboxUnavailable(str(error)) from error
            outcome = self._outcome(message, event, error)
        await self._answer(message, event.event_id, outcome)
        self._checkpoint("answered")

    async def _apart(self, inbox: Inbox, message: Message, event: Event) -> Outcome:
        from penstock.transactional import Taken

        arrival = arrival_of(event)
        if event.event_id not in self._unmarked:
            taken = await inbox.take(arrival, _LEASES * self._settings.ack_wait)
            self._checkpoint("taken")
            if taken is Taken.DONE:
                return Done()
            if taken is Taken.BUSY:
                return Again(self._settings.ack_wait, RuntimeError("somebody else works on it"))
            outcome = await self._try(message, event, None)
            self._checkpoint("handled")
            if not isinstance(outcome, Done):
                await self._note_failure(inbox, event, outcome.error or RuntimeError("given up"))
                return outcome
            self._unmarked.add(event.event_id)
        await inbox.finish([event.event_id])
        self._unmarked.discard(event.event_id)
        self._checkpoint("committed")
        return Done()

    async def _note_failure(self, inbox: Inbox, event: Event, error: Exception) -> bool:
        """Whether it is a failure: False when the event is processed all the same."""
        try:
            return await inbox.note_failure(arrival_of(event), error)
        except PenstockError as trouble:
            _log.warning("The failure of event %s is not noted: %s", event.event_id, trouble)
            return True

    # One event.

    async def _try(self, message: Message, event: Event, connection: Any) -> Outcome:
        call = EventCall(
            self._subscriber, message, [message], event=event, connection=connection, failures={}
        )
        began = self._clock.monotonic()
        try:
            settled(await self._chain(call))
            failure = call.failures.get(message)
            if failure is not None:
                raise failure
        except BaseException as error:
            return self._outcome(message, event, _failure(error))
        finally:
            self._timed(self._clock.monotonic() - began)
        return Done()

    def _outcome(self, message: Message, event: Event, error: Exception) -> Outcome:
        outcome = outcome_of(error, message.delivery_attempt, self._settings, self._classifier)
        _log.log(
            logging.ERROR if isinstance(outcome, GivenUp) else logging.WARNING,
            "Event %s (%s) failed in delivery %d of %d: %s",
            event.event_id,
            event.event_type,
            message.delivery_attempt,
            self._settings.max_deliver,
            f"{type(error).__name__}: {error}",
            extra={
                "event_id": event.event_id,
                "event_type": event.event_type,
                "resource_type": event.resource_type,
                "error_class": type(error).__name__,
                "delivery_count": message.delivery_attempt,
                "stream_sequence": event.sequence,
                "subject": event.subject,
            },
            exc_info=error if isinstance(outcome, GivenUp) else None,
        )
        return outcome

    # Answers.

    async def _answer(self, message: Message, event_id: str, outcome: Outcome) -> None:
        try:
            match outcome:
                case Done():
                    message.ack()
                case Again(delay):
                    message.nack(delay)
                case GivenUp():
                    await self._give_up(message, event_id, outcome)
        except ClosedError:
            # The connection was made anew meanwhile: it will be delivered again.
            _log.info("Event %s was handled but could not be answered any more", event_id)

    async def _give_up(self, message: Message, event_id: str, given_up: GivenUp) -> None:
        """Only once the letter is stored is the message acked."""
        if not self._settings.use_dlq:
            _log.error(
                "Event %s is dropped (%s): there are no dead letters", event_id, given_up.reason
            )
            message.ack()
            return
        letter = dead_letter(message, event_id, given_up, self._names, self._clock.time_ns())
        try:
            await self._store(letter)
        except PenstockError as error:
            _log.error("Event %s stays, as its dead letter is not stored: %s", event_id, error)
            message.nack(self._settings.delay(message.delivery_attempt))
            return
        _log.warning("Event %s went to the dead letters: %s", event_id, given_up.reason)
        message.ack()

    async def _store(self, letter: Draft) -> None:
        for one in (letter, *smaller(letter)):
            try:
                return await self._send_dead_letter(one)
            except InvalidArgumentError as error:
                refused = error
        raise refused


def _failure(error: BaseException) -> Exception:
    """What a handler failed with; raised again when it did not: the program is to end, or we are to
    stop. A `CancelledError` that nobody sent us came from what the handler waited for."""
    if isinstance(error, Exception):
        return error
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError)
    if not cancelled or (task is not None and task.cancelling()):
        raise error
    return RuntimeError("What the handler waited for was cancelled")


def _is_about_the_inbox(error: Exception) -> bool:
    """What handlers raise has been caught by then: this is the database, and no event's fault."""
    return isinstance(error, PenstockError) and not isinstance(error, InvalidArgumentError)


def event_of(message: Message, envelope: Any, stream: str, consumer: str) -> Event:
    """The event of a message. One without an id is known by its place in the stream."""
    record = message._delivery.record
    fields = {name: getattr(envelope, name) for name in envelope.__struct_fields__}
    fields["event_id"] = envelope.event_id or sequence_id(
        stream, record.sequence, record.publish_time_ns
    )
    return Event(
        **fields,
        subject=message.subject,
        stream=stream,
        sequence=record.sequence,
        consumer=consumer,
        deliveries=message.delivery_attempt,
        headers=message.attributes,
        raw=message.data,
    )


def arrival_of(event: Event) -> Any:
    """The event, as the inbox keeps it."""
    from penstock.transactional import Arrival

    return Arrival(
        event_id=event.event_id,
        event_type=event.event_type,
        payload=event.raw,
        resource_type=event.resource_type,
        resource_id=event.resource_id,
        subject=event.subject,
        headers=event.headers,
        stream=event.stream,
        stream_seq=event.sequence,
        deliveries=event.deliveries,
    )


def _event_id(message: Message) -> str:
    """Of a message that cannot be read: what its sender called it."""
    return find_header(message.attributes, "event_id") or message.id
