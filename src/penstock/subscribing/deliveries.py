"""What a subscriber has in hand: the one owner of deliveries, from their arrival to their end.

    accept ─▶ lease ─▶ order ─▶ held ─▶ handler ─▶ settle ─▶ the broker
                                  └──▶ take (async for)

The rules (`LeaseBook`, `KeyOrder`, the window of `Flow`) are asked and never ask; `HandlerPool`
and `Settler` do what they are told and report here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from operator import attrgetter
from typing import Any

from penstock.broker import Broker
from penstock.callbacks import leave_later
from penstock.capabilities import check_delayed_nack
from penstock.clock import NS, Alarm
from penstock.errors import ClosedError, FlowControlError, PenstockError
from penstock.message import AckResponse, Delivery, Message, Record, Settlement, Verb
from penstock.retrying import Persistence
from penstock.rules.window import Room
from penstock.subscribing.flow import Flow
from penstock.subscribing.handlers import HandlerPool
from penstock.subscribing.leases import LeaseBook, LeaseExtension
from penstock.subscribing.options import SubscriberOptions
from penstock.subscribing.ordering import KeyOrder
from penstock.subscribing.settling import Settler
from penstock.subscribing.source import Handler, Source

# A lease that ended so many seconds before anybody looked was not forgotten: nobody could look.
_LATE = 1.0
# Handlers that take longer than this together let others have a turn of the event loop: what they
# settled leaves, and what waits for them is renewed.
_TURN = 0.05
# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_NACK = Verb.NACK
_ack_id, _record = attrgetter("ack_id"), attrgetter("record")


class Deliveries:
    """Takes deliveries in hand, gives them to handlers, one of an ordering key at a time, and
    lets go of them when they are settled or their lease ends.

    A message in hand is in the window and has a lease. It waits behind its key in `_order`, in
    `_held` (no room, paused or nobody to take it) or in the pool; or its handler has it.
    """

    def __init__(self, source: Source, options: SubscriberOptions) -> None:
        self._source = source
        self._clock = source.clock
        self._flow = Flow()
        self.window = self._flow.window
        """How much is in hand."""
        self._leases = LeaseBook()
        self._order: KeyOrder | None = None
        self._broker: Broker | None = None
        self._broker_orders = True
        self._alarm = Alarm(source.clock, self._on_alarm)
        self._held: deque[Message] = deque()
        self._handlers = HandlerPool(self, may_start=self._may_start, on_done=self._handler_done)
        self._outlived: set[Message] = set()
        self._settler = Settler(source, Persistence(backoff=options.backoff), self._answered)
        self._flowing = True
        self._drain_due = False
        self._ending = self._closed = False
        self.leaving = False
        """A handler wants the program to end: nothing is handed over or waited for any more."""
        self._expired: list[str] | None = None
        self.configure(options)

    def configure(self, options: SubscriberOptions) -> None:
        """Take over options; what is in hand stays in hand."""
        self._flow.configure(options)
        self._hold_again(self._handlers.configure(self._flow.max_delivered, options.threads))
        extension = options.lease_extension
        if extension is None and options.threads:
            extension = LeaseExtension()
        self._leases.configure(options.ack_deadline, extension)
        # By the end of it the leases have run out, and the broker redelivers anyway.
        patience = options.ack_deadline or 60.0
        self._settler.persistence = Persistence(backoff=options.backoff, within=patience)
        if options.message_ordering and self._order is None:
            self._order = KeyOrder(broker_orders=self._broker_orders)
        elif not options.message_ordering and self._order is not None:
            self._held.extend(self._order.clear())
            self._order = None
        self._drain_soon()
        self._flow.changed()

    def learn(self, broker: Broker) -> None:
        """What the broker does by itself, known once it is connected and before it delivers."""
        self._broker = broker
        capabilities = broker.capabilities
        self._leases.learn(broker_sets_deadlines=capabilities.sets_deadlines)
        if self._broker_orders != capabilities.ordering:
            self._broker_orders = capabilities.ordering
            if self._order is not None:
                self._held.extend(self._order.clear())
                self._order = KeyOrder(broker_orders=self._broker_orders)

    # What is in hand.

    def __len__(self) -> int:
        """Messages with a lease."""
        return len(self._leases)

    def __contains__(self, message: Message) -> bool:
        return message in self._leases

    def messages(self) -> list[Message]:
        """What has a lease."""
        return list(self._leases)

    @property
    def waiting(self) -> int:
        """Messages that could be handed over now, were there room, somebody to take them and no
        pause."""
        return len(self._held)

    @property
    def ack_deadline(self) -> float:
        return self._leases.ack_deadline

    @property
    def max_delivered(self) -> int:
        """Messages that may be with handlers at once."""
        return self._flow.max_delivered

    @property
    def room(self) -> tuple[int, int]:
        """Messages and bytes that the next pull may ask for."""
        return self._flow.share(unsent=len(self._settler), waiting=len(self._held))

    def reserved(self, messages: int, size: int) -> AbstractContextManager[Room]:
        """Keep room for a pull that runs."""
        return self._flow.reserved(messages, size)

    def fetch_ahead(self, most: int | None) -> None:
        """Fetch no more than this for somebody who takes messages one by one; None: nobody does."""
        self._flow.ahead = most
        self.changed()

    def unfinished(self, spared: Collection[Message]) -> tuple[int, int]:
        """How many leases and how many handlers there are, but for those of `spared` messages."""
        leased = len(self) - sum(message in self for message in spared)
        running = sum(self._handlers.is_running(message) for message in spared)
        return leased, len(self._handlers) - running

    def handled_by(self, task: asyncio.Task[Any] | None) -> list[Message]:
        """What a handler has that runs on this task."""
        return self._handlers.messages_on(task)

    async def change(self) -> None:
        """Wait until something has come, been let go of or been sent."""
        await self._flow.change()

    def changed(self) -> None:
        """Whoever waits for a change should look again."""
        self._flow.changed()

    # Deliveries arrive and are handed over.

    def accept(self, deliveries: Sequence[Delivery], room: Room) -> None:
        """Take in hand what came for a pull that has so much room left; hand over what may go."""
        if len(deliveries) > room.messages:
            self._refuse(deliveries[room.messages :], room.asked)
            deliveries = deliveries[: room.messages]
        now = self._clock.monotonic()
        again = self._leases.known(map(_ack_id, deliveries))
        if again:
            # A server that was killed lends anew, and names alike, what it forgot to have lent: to
            # settle what is in hand settles both.
            self._send_all([self._leases.prolong(i, self.ack_deadline, now) for i in again])
            deliveries = [delivery for delivery in deliveries if delivery.ack_id not in again]
        if not deliveries:
            return
        received = self._clock.time_ns() / NS
        messages = Message.of(deliveries, self._handlers.owner, received)
        size = sum(map(_size, map(_record, deliveries)))
        room.use(len(messages), size)
        told = self._leases.begin(messages, deliveries[0].ack_deadline, now)
        if told:
            self._send_all(told)
        if self._order is not None:
            messages, behind = self._order.enter(messages)
            self._leases.park(behind, now)
        self._held.extend(messages)
        self._drain(now)
        # Behind the handlers, which wait for neither: no alarm rings before they are through.
        self._alarm.set(self._leases.next())
        self._flow.changed()
        if self._held:
            self._park(islice(reversed(self._held), len(messages)))

    def deliver_to(self, listeners: Sequence[Handler]) -> None:
        """Call these from now on; without any messages wait, or are taken."""
        self._handlers.listen(listeners)
        self._drain_soon()
        self._flow.changed()

    def pause(self) -> None:
        """Hand nothing over until `resume`."""
        self._flowing = False
        self._park(self._handlers.pause())
        self._flow.changed()

    def resume(self) -> None:
        self._flowing = True
        self._handlers.resume()
        self._drain_soon()
        self._flow.changed()

    def take(self) -> Message | None:
        """The next message for whoever asks for it, if it may be handed over now."""
        if not self._held or not self._flowing or self._full():
            return None
        self._flow.changed()
        message = self._held.popleft()
        self._start(message)
        return message

    @property
    def taken_by_nobody(self) -> bool:
        """What waits will not be handed over as things are."""
        return not self._flowing or not (self._handlers.listening or self._flow.ahead is not None)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Release what was never taken in hand."""
        self._send_all([Settlement(delivery.ack_id, Verb.RELEASE) for delivery in deliveries])

    def give_back_waiting(self) -> list[str]:
        """Release everything whose handler has not started; returns the ids."""
        waiting = [*self._held, *self._handlers.take_waiting()]
        self._held.clear()
        if self._order is not None:
            waiting += self._order.take_waiting()
        ids = [message.id for message in waiting if message in self._leases]
        for message in waiting:
            self._release(message)
        return ids

    def _drain(self, now: float) -> None:
        """Deliver what waits and may go now, a turn's worth at a time."""
        # What handlers called here set free is delivered by this very loop.
        is_due, self._drain_due = self._drain_due, True
        self._alarm.catch_up(now)
        until, late, time = now + _TURN, False, self._clock.monotonic
        window, flow, held = self.window, self._flow, self._held
        parked, handlers = self._leases.parked, self._handlers
        try:
            while held and self._flowing and handlers.listening:
                # What is held counts in the window: this cannot be full while that is not.
                if window.messages > flow.max_delivered and self._full():
                    break
                message = held.popleft()
                if parked:
                    self._start(message)
                if not handlers.call(message):
                    self._park([message])
                # After each: it may have blocked until the next ones' leases had ended.
                if held and time() >= until:
                    late = True
                    break
        finally:
            self._drain_due = is_due
        if late:
            self._drain_soon()

    def _drain_soon(self) -> None:
        """Deliver later in this turn of the loop: a settlement must not run the next handler
        inside the one that made it."""
        if self._held and not self._drain_due:
            self._drain_due = True
            asyncio.get_running_loop().call_soon(self._drain_as_due)

    def _drain_as_due(self) -> None:
        self._drain_due = False
        self._drain(self._clock.monotonic())

    def _park(self, messages: Iterable[Message]) -> None:
        """They wait to be seen: what nobody saw must not end as a failed attempt."""
        self._leases.park(messages, self._clock.monotonic())
        self._alarm.set(self._leases.next())

    def _hold_again(self, messages: Sequence[Message]) -> None:
        """They were handed over, and nobody has seen them: they go first when any may go."""
        held = [message for message in messages if message in self._leases]
        self._held.extendleft(reversed(held))
        if held:
            self._park(held)

    def _start(self, message: Message) -> None:
        """It will be seen: from here on its lease is its handler's business."""
        if message.ack_id in self._leases.parked:
            self._send_all(self._leases.start(message, self._clock.monotonic()))

    def _may_start(self, message: Message) -> bool:
        self._alarm.catch_up(self._clock.monotonic())
        if self._leases.parked:
            self._start(message)
        return message in self._leases

    def _full(self) -> bool:
        """As many messages as the flow control allows are beyond waiting."""
        behind = self._order.waiting if self._order is not None else 0
        return self._flow.full(len(self._held) + behind)

    def _refuse(self, excess: Sequence[Delivery], asked: int) -> None:
        self.give_back(excess)
        self._source.report(
            FlowControlError(
                f"Flow control: max messages exceeded: the broker sent more than the {asked} that "
                f"were asked of subscription {self._source.name!r}; {len(excess)} were given back"
            )
        )

    def _handler_done(self, message: Message, failure: BaseException | None) -> None:
        self._leases.stop_extending(message)
        if failure is not None:
            self._handler_failed(message, failure)
        if self._outlived and message in self._outlived:
            self._outlived.discard(message)
            self._leave_order(message, failed=True)
        if self._flow.watched:
            self._flow.changed()

    def _handler_failed(self, message: Message, failure: BaseException) -> None:
        if (self._ending or self.leaving) and isinstance(failure, asyncio.CancelledError):
            return  # `abandon` did it, or the end of the loop; that gives the message back.
        if not self._closed:
            message.nack()
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            self._leave(failure)
            return
        # An exception is somebody else's class, and may refuse even this.
        with suppress(Exception):
            if not hasattr(failure, "__notes__"):
                failure.add_note(f"Handling message {message.id!r} of {self._source.name!r}")
        self._source.report(failure)

    def _leave(self, wish: BaseException) -> None:
        """The program is to end."""
        self.leaving = True
        self.pause()
        leave_later(wish)

    # Messages are settled: the verbs of `Message`.

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None:
        if self._closed:
            raise ClosedError(
                f"Subscription {self._source.name!r} is closed: message {message.id!r} can no "
                f"longer be settled ({verb.value}) and will be delivered again"
            )
        if seconds and self._broker is not None:
            check_delayed_nack(self._broker, self._source.name)
        ack_id = message._delivery.ack_id
        self._settler.add(Settlement(ack_id, verb, seconds))
        held = self._leases.end(ack_id)
        if held is not None:
            self._let_go(held, verb is _NACK)

    async def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> AckResponse:
        if self._closed:
            return AckResponse.FAILED_PRECONDITION
        if not first:
            try:
                exactly_once = await self._source.is_exactly_once()
            except PenstockError:
                return AckResponse.FAILED_PRECONDITION
            return AckResponse.INVALID if exactly_once else AckResponse.SUCCESS
        response = self._settler.ask(Settlement(message.ack_id, verb))
        held = self._leases.end(message.ack_id)
        if held is not None:
            self._let_go(held, verb is _NACK)
        # The message is settled, whether or not its handler lives to hear the answer.
        return await asyncio.shield(response)

    def modify_ack_deadline(self, message: Message, seconds: float) -> None:
        if self._closed:
            raise ClosedError(
                f"Subscription {self._source.name!r} is closed: the deadline of message "
                f"{message.id!r} can no longer be changed"
            )
        now = self._clock.monotonic()
        self._settler.add(self._leases.prolong(message.ack_id, seconds, now))
        self._alarm.set(self._leases.next())

    def _answered(
        self, settlements: Sequence[Settlement], responses: Sequence[AckResponse]
    ) -> None:
        self._flow.changed()
        if responses.count(AckResponse.SUCCESS) == len(responses):
            return
        for settlement, response in zip(settlements, responses, strict=True):
            if settlement.verb is Verb.EXTEND and response is AckResponse.INVALID:
                # The broker says it is not ours any more: stop counting it.
                message = self._leases.end(settlement.ack_id)
                if message is not None:
                    self._expire([message])

    def _send_all(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._settler.add(settlement)

    def _release(self, message: Message) -> None:
        """Give back a message that nobody has seen."""
        if message in self._leases:
            self.settle(message, Verb.RELEASE, None)
            message._settled = True

    def _let_go(self, message: Message, failed: bool) -> None:
        self.window.release(1, _size(message._delivery.record))
        if self._order is not None:
            self._leave_order(message, failed=failed)
        if self._held and not self._drain_due:  # Asked here, too: it spares most a call.
            self._drain_soon()
        if self._flow.watched:
            self._flow.changed()

    # One of an ordering key at a time.

    def _leave_order(self, message: Message, *, failed: bool) -> None:
        if self._order is None:
            return
        failed_at = self._clock.monotonic() if failed else None
        following, give_back = self._order.leave(message, failed_at)
        for later in give_back:
            self._release(later)
        if following is not None:
            self._turn_of(following)
        if failed:
            self._alarm.set(self._order.next())

    def _turn_of(self, message: Message) -> None:
        self._held.append(message)
        self._drain_soon()

    # Time passes.

    def _on_alarm(self) -> float | None:
        now = self._clock.monotonic()
        # We stood still: what ended meanwhile is not ours to renew.
        self._expire(self._leases.pop_expired(now - _LATE))
        told, overdue = self._leases.renewals(now)
        self._send_all(told)
        if overdue:
            self._give_back_overdue(overdue)
        self._expire(self._leases.pop_expired(now))
        if self._order is not None:
            for message in self._order.stop_awaiting(now):
                self._turn_of(message)
            self._alarm.set(self._order.next())
        return self._leases.next()

    def _give_back_overdue(self, messages: Sequence[Message]) -> None:
        """They have waited for so long that others should have them."""
        for message in messages:
            key = message.ordering_key
            behind = self._order.take_waiting(key) if self._order is not None and key else []
            # Together with those behind it, which must not come first.
            for one in (message, *behind):
                self._release(one)
        self._held = deque(m for m in self._held if m in self._leases)

    def _expire(self, messages: Sequence[Message]) -> None:
        """The broker will deliver these again; what we hold of them is stale."""
        if not messages:
            return
        self._held = deque(m for m in self._held if m in self._leases)
        if self._order is not None:
            self._order.drop(self._leases.__contains__)
        for message in messages:
            if self._expired is not None:
                self._expired.append(message.id)
            self.window.release(1, _size(message._delivery.record))
            if self._handlers.is_running(message):
                self._outlived.add(message)
            else:
                self._leave_order(message, failed=True)
        self._drain_soon()
        self._flow.changed()

    # The end.

    def note_expired(self, ids: list[str]) -> None:
        """From now on, add to these the ids of messages that expire."""
        self._expired = ids

    async def sent(self, timeout: float | None = None) -> int:
        """Wait until the broker has every settlement, at most `timeout` seconds; returns how many
        it has not."""
        await self._settler.finished(timeout)
        return self._settler.unanswered

    async def abandon(self, spared: Collection[Message], grace: float) -> list[str]:
        """Cancel the handlers that still run, but for those of `spared` messages, and give back
        every message that is left. Waits up to `grace` seconds for handlers that refuse to end.
        Returns the ids of the messages whose handlers were cancelled."""
        self._ending = True
        cancelled = await self._handlers.cancel(spared, grace)
        # Not `message.nack()`: whoever still has the message must be told when settling it.
        self._send_all([Settlement(m.ack_id, Verb.NACK, 0.0) for m in self._leases])
        return [message.id for message in cancelled]

    def close(self) -> None:
        """Forget everything. Verbs of its messages fail from here on; responses that were not
        given end with OTHER."""
        self._closed = True
        self._alarm.cancel()
        self._leases.clear()
        self._held.clear()
        self._outlived.clear()
        self._settler.give_up(AckResponse.OTHER)
        self._handlers.close()


def _size(record: Record) -> int:
    """Most messages have few bytes of attributes or none."""
    return record.size if record.attributes else len(record.data)
