"""What a subscriber has in hand: from the delivery to the handler to the settlement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from inspect import isawaitable
from typing import Any, TypeAlias

from penstock.broker import Broker
from penstock.capabilities import check_delayed_nack
from penstock.clock import NS, Alarm, Clock
from penstock.errors import ClosedError, PenstockError
from penstock.message import AckResponse, Delivery, Message, Settlement, Verb
from penstock.rules.window import Window
from penstock.subscribing.handlers import HandlerPool
from penstock.subscribing.leases import LeaseBook, LeaseExtension
from penstock.subscribing.options import SubscriberOptions
from penstock.subscribing.ordering import KeyOrder
from penstock.subscribing.settling import Settler

# How long the others of an ordering key wait for one that failed to come back. Brokers that need
# this redeliver within milliseconds; a message that was moved to the dead letters never returns.
_RETURNS_WITHIN = 5.0
# How leases of messages that wait behind their key are kept.
_WHILE_PARKED = LeaseExtension(interval=600.0, jitter=0.0, max_total=3600.0)

Handler: TypeAlias = Callable[[Message], Any]


class InFlight:
    """Hands deliveries to the handler, one of an ordering key at a time, and lets go of them
    when they are settled or their lease ends.

    A message in hand is in the window and has a lease. It waits behind its key in `_order`, in
    `_held` (no room, paused or no handler yet) or in the pool; or its handler has it.
    """

    def __init__(
        self,
        name: str,
        options: SubscriberOptions,
        *,
        clock: Clock,
        settler: Settler,
        exactly_once: Callable[[], Awaitable[bool]],
        on_error: Callable[[BaseException], None],
        on_change: Callable[[], None],
    ) -> None:
        self._name = name
        self._clock = clock
        self._settler = settler
        self._exactly_once = exactly_once
        self._on_error = on_error
        self._on_change = on_change
        # Handlers must not see what happened to be set where they are called from.
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leases = LeaseBook()
        self._alarm = Alarm(clock, self._on_alarm)
        self._held: deque[Message] = deque()
        self._order: KeyOrder | None = None
        self._outlived: set[Message] = set()
        self._broker: Broker | None = None
        self._broker_orders = True
        self._broker_sets_deadlines = True
        self._granted = 60.0
        self._keep_until: dict[str, float] = {}
        self._drain_due = False
        self._cancelling = False
        self._closed = False
        self.handler: Handler | None = None
        self.on_held: Callable[[], None] | None = None
        self.flowing = True
        self.ack_deadline = options.ack_deadline or 60.0
        self.expired: list[str] | None = None
        self.window = Window(1, 1)
        self.pool = HandlerPool(
            self._spawn, limit=1, wanted=self._leases.__contains__, on_done=self._handler_done
        )
        self.configure(options)

    def configure(self, options: SubscriberOptions) -> None:
        """Take over options; what is in hand stays in hand."""
        flow, streaming = options.flow_control, options.streaming
        self._options = options
        self._max_delivered = flow.max_messages
        self.window.max_messages = (
            flow.max_messages + streaming.max_streams * streaming.high_water_mark
        )
        self.window.max_bytes = flow.max_bytes
        self.pool.limit = flow.max_messages
        if options.message_ordering and self._order is None:
            self._order = KeyOrder(broker_orders=self._broker_orders)
        elif not options.message_ordering and self._order is not None:
            self._held.extend(self._order.clear())
            self._order = None
        self.drain_soon()

    def learn(self, broker: Broker) -> None:
        """What the broker does by itself, known once it is connected and before it delivers."""
        self._broker = broker
        capabilities = broker.capabilities
        self._broker_sets_deadlines = capabilities.sets_deadlines
        if self._broker_orders != capabilities.ordering:
            self._broker_orders = capabilities.ordering
            if self._order is not None:
                self._held.extend(self._order.clear())
                self._order = KeyOrder(broker_orders=self._broker_orders)

    def __len__(self) -> int:
        """Messages with a lease."""
        return len(self._leases)

    def __contains__(self, message: Message) -> bool:
        return message in self._leases

    @property
    def waiting(self) -> int:
        """Messages that could be handed over now, were there room, a handler and no pause."""
        return len(self._held)

    def messages(self) -> list[Message]:
        """What has a lease."""
        return list(self._leases)

    # Deliveries arrive and go to the handler.

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries in hand and hand over what may go."""
        now = self._clock.monotonic()
        received = self._clock.time_ns() / NS
        messages = [Message(delivery, self, received) for delivery in deliveries]
        size = sum([len(delivery.record.data) for delivery in deliveries])
        self.window.take(len(messages), size)
        granted = deliveries[0].ack_deadline
        wanted = self._options.ack_deadline or granted
        self.ack_deadline = wanted
        self._leases.begin(messages, now + wanted)
        self._granted = granted
        if wanted != granted:
            for delivery in deliveries:
                self._settler.add(Settlement(delivery.ack_id, Verb.EXTEND, wanted))
            self._keep(messages, now, now + wanted)
        extension = self._options.lease_extension
        if extension is not None:
            self._leases.renew(messages, now, now + extension.pause(wanted))
        if self._order is not None:
            messages, parked = self._order.enter(messages)
            self._leases.renew(parked, now, now + wanted / 2)
        self._alarm.set(self._leases.next())
        self._held.extend(messages)
        self.drain()

    def drain(self) -> None:
        """Deliver what waits and may go now."""
        if self.on_held is not None and self._held:
            self.on_held()
        # What handlers called here set free is delivered by this very loop.
        self._drain_due = True
        window, held = self.window, self._held
        while held and self.flowing and self.handler is not None:
            # What is held counts in the window, so this cannot be full while the window is not.
            if window.messages > self._max_delivered and self._full():
                break
            self._deliver(held.popleft(), self.handler)
        self._drain_due = False

    def drain_soon(self) -> None:
        """Deliver later in this turn of the loop: a settlement must not run the next handler
        inside the one that made it."""
        if self._held and not self._drain_due:
            self._drain_due = True
            asyncio.get_running_loop().call_soon(self.drain)

    def take_waiting(self) -> Message | None:
        """The next message for whoever asks for it, instead of a handler."""
        if self._held and self.flowing and not self._full():
            return self._held.popleft()
        return None

    def give_back_waiting(self) -> list[str]:
        """Release everything whose handler has not started; returns the ids."""
        waiting = [*self._held, *self.pool.take_waiting()]
        self._held.clear()
        if self._order is not None:
            waiting += self._order.clear()
        ids = [message.id for message in waiting if message in self._leases]
        for message in waiting:
            self._release(message)
        return ids

    def _full(self) -> bool:
        """As many messages as the flow control allows are beyond waiting."""
        if self._options.flow_control.allow_excess_messages:
            return False
        waiting = len(self._held) + (self._order.waiting if self._order is not None else 0)
        return self.window.messages - waiting >= self._max_delivered

    def _deliver(self, message: Message, handler: Handler) -> None:
        context = self._context.copy()
        try:
            work = context.run(handler, message)
        except (Exception, asyncio.CancelledError) as error:
            self._handler_done(message, error)
        else:
            if work is not None and isawaitable(work):
                self.pool.submit(message, work, context)

    def _handler_done(self, message: Message, failure: BaseException | None) -> None:
        self._leases.stop_renewing(message.ack_id)
        outlived = message in self._outlived
        self._outlived.discard(message)
        if failure is not None:
            if not self._closed:
                message.nack()
            if not self._cancelling or not isinstance(failure, asyncio.CancelledError):
                if not hasattr(failure, "__notes__"):
                    failure.add_note(f"Handling message {message.id!r} of {self._name!r}")
                self._on_error(failure)
        if outlived:
            self._leave_order(message, failed=True)
        self._on_change()

    # Messages are settled.

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None:
        if self._closed:
            raise ClosedError(
                f"Subscription {self._name!r} is closed: message {message.id!r} can no longer be "
                f"settled ({verb.value}) and will be delivered again"
            )
        if seconds and self._broker is not None:
            check_delayed_nack(self._broker, self._name)
        ack_id = message._delivery.ack_id
        self._settler.add(Settlement(ack_id, verb, seconds))
        if self._leases.end(ack_id) is not None:
            self._let_go(message, verb is Verb.NACK)

    async def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> AckResponse:
        if self._closed:
            return AckResponse.FAILED_PRECONDITION
        if not first:
            try:
                exactly_once = await self._exactly_once()
            except PenstockError:
                return AckResponse.FAILED_PRECONDITION
            return AckResponse.INVALID if exactly_once else AckResponse.SUCCESS
        response = self._settler.add_with_response(Settlement(message.ack_id, verb))
        if self._leases.end(message.ack_id) is not None:
            self._let_go(message, verb is Verb.NACK)
        return await response

    def modify_ack_deadline(self, message: Message, seconds: float) -> None:
        if self._closed:
            raise ClosedError(
                f"Subscription {self._name!r} is closed: the deadline of message {message.id!r} "
                "can no longer be changed"
            )
        now = self._clock.monotonic()
        self._settler.add(Settlement(message.ack_id, Verb.EXTEND, seconds))
        self._leases.prolong([message.ack_id], now + seconds)
        if message in self._leases:
            self._keep([message], now, now + seconds)
        self._alarm.set(self._leases.next())

    def refused(self, settlement: Settlement, response: AckResponse) -> None:
        """The broker says a delivery is not ours any more: stop counting it."""
        if settlement.verb is Verb.EXTEND and response is AckResponse.INVALID:
            message = self._leases.end(settlement.ack_id)
            if message is not None:
                self._expire([message])

    def _release(self, message: Message) -> None:
        """Give back a message that nobody has seen."""
        if message in self._leases:
            self.settle(message, Verb.RELEASE, None)
            message._settled = True

    def _keep(self, messages: list[Message], now: float, until: float) -> None:
        """Have leases renewed until then, where the broker grants no longer ones."""
        if self._broker_sets_deadlines or until - now <= self._granted:
            return
        self._keep_until.update((message.ack_id, until) for message in messages)
        self._leases.renew(messages, now, now + self._granted / 2)

    def _let_go(self, message: Message, failed: bool) -> None:
        if self._keep_until:
            self._keep_until.pop(message.ack_id, None)
        self.window.release(1, len(message._delivery.record.data))
        if self._order is not None:
            self._leave_order(message, failed=failed)
        if self._held:
            self.drain_soon()
        self._on_change()

    # One of an ordering key at a time.

    def _leave_order(self, message: Message, *, failed: bool) -> None:
        if self._order is None:
            return
        following, give_back, awaited = self._order.leave(message, failed=failed)
        for later in give_back:
            self._release(later)
        self._turn_of(following)
        if awaited is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(_RETURNS_WITHIN, self._stop_awaiting, message.ordering_key, awaited)

    def _stop_awaiting(self, key: str | None, wait: int) -> None:
        if self._order is not None and key is not None and not self._closed:
            self._turn_of(self._order.stop_awaiting(key, wait))

    def _turn_of(self, message: Message | None) -> None:
        if message is not None:
            self._held.append(message)
            self.drain_soon()

    # Leases end or are renewed.

    def _on_alarm(self) -> float | None:
        now = self._clock.monotonic()
        self._renew(now)
        self._expire(self._leases.pop_expired(now))
        return self._leases.next()

    def _renew(self, now: float) -> None:
        extension = self._options.lease_extension or _WHILE_PARKED
        always = self._options.lease_extension is not None
        ends = now + self.ack_deadline
        for message, since in self._leases.pop_renewals(now, extension.max_total):
            if self._keep_until.get(message.ack_id, 0.0) > now:
                self._settler.add(Settlement(message.ack_id, Verb.EXTEND, self._granted))
                self._leases.renew([message], since, now + self._granted / 2)
                continue
            parked = self._order is not None and self._order.is_parked(message)
            if not always and not parked:
                continue
            ack_id = message.ack_id
            if (self._leases.ends(ack_id) or 0.0) < ends:
                self._settler.add(Settlement(ack_id, Verb.EXTEND, self.ack_deadline))
                self._leases.prolong([ack_id], ends)
            self._leases.renew([message], since, now + extension.pause(self.ack_deadline))

    def _expire(self, messages: Sequence[Message]) -> None:
        """The broker will deliver these again; what we hold of them is stale."""
        if not messages:
            return
        self._held = deque(m for m in self._held if m in self._leases)
        if self._order is not None:
            self._order.drop(self._leases.__contains__)
        for message in messages:
            self._keep_until.pop(message.ack_id, None)
            if self.expired is not None:
                self.expired.append(message.id)
            self.window.release(1, message.length)
            if self.pool.is_running(message):
                self._outlived.add(message)
            else:
                self._leave_order(message, failed=True)
        self.drain_soon()
        self._on_change()

    # The end.

    async def abandon(self, spared: set[asyncio.Task[Any]], grace: float) -> list[str]:
        """Cancel the handlers that still run, but for those on `spared` tasks, and give back
        every message that is left. Waits up to `grace` seconds for handlers that refuse to end.
        Returns the ids of the messages whose handlers were cancelled."""
        self._cancelling = True
        running = {m: task for m, task in self.pool.running().items() if task not in spared}
        tasks = {task for task in self._tasks if task not in spared and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        # Not `message.nack()`: whoever still has the message must be told when settling it.
        for message in self._leases:
            self._settler.add(Settlement(message.ack_id, Verb.NACK, 0.0))
        return [message.id for message in running]

    def close(self) -> None:
        """Forget everything. Verbs of its messages fail from here on."""
        self._closed = True
        self._alarm.cancel()
        self._leases.clear()
        self._held.clear()
        self._outlived.clear()
        self._keep_until.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Owned here: `abandon` cancels every task and waits for it.
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
