"""StreamingPull: one stream from its first request to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from penstock.broker import Broker
from penstock.config import check_duration
from penstock.emulator.messages import write_received
from penstock.emulator.receiving.acks import INVALID, AckIds, settle
from penstock.emulator.receiving.desks import Desk, Holder
from penstock.emulator.receiving.returns import Returns
from penstock.errors import InvalidArgumentError, PenstockError, TopicNotFoundError
from penstock.googlepubsub.messages import StreamingPullResponse
from penstock.message import Delivery, Settlement, Verb

# A stream alone takes all there is; several share what comes.
_BATCH, _SHARED_BATCH = 1000, 100
# Clients in some languages refuse gRPC messages of more than 4 MiB unless told otherwise.
_BATCH_BYTES = 3 * 2**20
# What a client that asks for no limit may hold: more than any asks for, and still bounded.
_MOST_MESSAGES, _MOST_BYTES = 100_000, 2**30
_ONLY_FIRST = ("subscription", "max_outstanding_messages", "max_outstanding_bytes")
_KEEPALIVE = 15.0
_ORPHAN_PAUSE = 1.0


class Context(Protocol):
    """What gRPC offers of a call."""

    async def write(self, message: Any) -> None: ...
    async def send_initial_metadata(self, metadata: Sequence[Any]) -> None: ...


class Stream:
    """Hands over what is available while the client may hold more, and settles what it says."""

    def __init__(
        self, broker: Broker, ack_ids: AckIds, desk: Desk, returns: Returns, first: Any
    ) -> None:
        self._broker = broker
        self._returns = returns
        self._ack_ids = ack_ids
        self._desk = desk
        self._name = desk.config.name
        self._deadline = _checked_deadline(first.stream_ack_deadline_seconds)
        self._keeps_alive = first.protocol_version >= 1
        self._holder = Holder(
            _limit("max_outstanding_messages", first.max_outstanding_messages, _MOST_MESSAGES),
            _limit("max_outstanding_bytes", first.max_outstanding_bytes, _MOST_BYTES),
        )
        self._writing = asyncio.Lock()

    async def run(self, first: Any, requests: AsyncIterator[Any], context: Context) -> None:
        """Until the client leaves, which cancels this, or something fails."""
        self._desk.streams += 1
        tasks: set[asyncio.Task[None]] = set()
        is_client_there = False
        try:
            await context.send_initial_metadata(())
            await self._answer(first, context)
            # A client that only listens from now on is still a client: hearing may end.
            tasks.add(asyncio.create_task(self._hear(requests, context)))
            tasks.add(asyncio.create_task(self._hand_over(context)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except PenstockError:
            # It is told why its stream ends, and may yet ack with a call of its own.
            is_client_there = True
            raise
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                # Nothing waits here: a client that goes away in the middle of a write cancels
                # this too.
                self._desk.streams -= 1
                unseen = self._desk.leave(self._holder)
                if not is_client_there:
                    self._returns.give_back(self._name, unseen)

    async def _hand_over(self, context: Context) -> None:
        holder = self._holder
        while True:
            await holder.room()
            most = _BATCH if self._desk.streams == 1 else _SHARED_BATCH
            deliveries = await self._pull(
                min(most, holder.window.room), min(_BATCH_BYTES, holder.window.room_bytes)
            )
            if deliveries:
                self._desk.lend(holder, deliveries, self._deadline)
                await self._set_deadline(deliveries)
                await self._write(context, self._response(deliveries))
            elif self._keeps_alive:
                await self._write(context, self._response(()))

    async def _pull(self, messages: int, size: int) -> Sequence[Delivery]:
        try:
            return await self._broker.pull(
                self._name, max_messages=messages, max_bytes=size, wait=_KEEPALIVE
            )
        except TopicNotFoundError:
            # Drained, and its topic deleted: to Google that is a subscription without news.
            await asyncio.sleep(_ORPHAN_PAUSE)
            return ()

    async def _set_deadline(self, deliveries: Sequence[Delivery]) -> None:
        """A stream has an ack deadline of its own."""
        seconds = self._deadline
        others = [
            Settlement(delivery.ack_id, Verb.EXTEND, seconds)
            for delivery in deliveries
            if delivery.ack_deadline != seconds
        ]
        if others:
            await self._broker.settle(self._name, others)

    def _response(self, deliveries: Sequence[Delivery]) -> Any:
        config = self._desk.config
        response = StreamingPullResponse()
        properties = response.subscription_properties
        properties.exactly_once_delivery_enabled = config.enable_exactly_once_delivery
        properties.message_ordering_enabled = config.message_ordering
        properties.SetInParent()
        write_received(
            response.received_messages,
            deliveries,
            self._ack_ids.tag(self._name),
            with_attempts=config.dead_letter_policy is not None,
        )
        return response

    async def _write(self, context: Context, response: Any) -> None:
        async with self._writing:
            await context.write(response)

    async def _hear(self, requests: AsyncIterator[Any], context: Context) -> None:
        async for request in requests:
            for field in _ONLY_FIRST:
                if getattr(request, field):
                    raise InvalidArgumentError(
                        f"{field} may be set on the first request of a stream only; open another "
                        "stream to change it"
                    )
            if request.stream_ack_deadline_seconds:
                self._deadline = _checked_deadline(request.stream_ack_deadline_seconds)
            await self._answer(request, context)

    async def _answer(self, request: Any, context: Context) -> None:
        """Settle what a request names. With exactly-once delivery the client waits to hear."""
        if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
            raise InvalidArgumentError(
                "modify_deadline_ack_ids and modify_deadline_seconds must be of the same length"
            )
        response = self._response(())
        if request.ack_ids:
            acked = await self._settle(request.ack_ids, None)
            _confirm(response.acknowledge_confirmation, *acked)
        for seconds, ack_ids in _by_seconds(request).items():
            moved = await self._settle(ack_ids, seconds)
            _confirm(response.modify_ack_deadline_confirmation, *moved)
        settled = request.ack_ids or request.modify_deadline_ack_ids
        if settled and self._desk.config.enable_exactly_once_delivery:
            await self._write(context, response)

    async def _settle(
        self, ack_ids: Sequence[str], seconds: int | None
    ) -> tuple[list[str], list[str], list[str]]:
        """Those that worked, those that are no longer valid, those to be tried again."""
        tag = self._ack_ids.tag(self._name)
        own, others = self._ack_ids.inner(self._name, ack_ids)
        failures = await settle(self._broker, self._name, own, seconds)
        if seconds:
            self._desk.extended(own, seconds)
        else:
            self._desk.settled(own)
        good = [tag + ack_id for ack_id in own if ack_id not in failures]
        invalid = [tag + ack_id for ack_id, why in failures.items() if why == INVALID]
        later = [tag + ack_id for ack_id, why in failures.items() if why != INVALID]
        return good, invalid + others, later


def _checked_deadline(seconds: int) -> float:
    check_duration("stream_ack_deadline_seconds", seconds, 10, 600)
    return float(seconds)


def _limit(field: str, asked: int, most: int) -> int:
    if asked < 0:
        raise InvalidArgumentError(f"{field} must not be negative, not {asked}")
    return min(asked or most, most)


def _by_seconds(request: Any) -> dict[int, list[str]]:
    groups: dict[int, list[str]] = {}
    pairs = zip(request.modify_deadline_seconds, request.modify_deadline_ack_ids, strict=True)
    for seconds, ack_id in pairs:
        check_duration("modify_deadline_seconds", seconds, 0, 600)
        groups.setdefault(seconds, []).append(ack_id)
    return groups


def _confirm(confirmation: Any, good: list[str], invalid: list[str], later: list[str]) -> None:
    confirmation.ack_ids.extend(good)
    confirmation.invalid_ack_ids.extend(invalid)
    confirmation.temporary_failed_ack_ids.extend(later)
