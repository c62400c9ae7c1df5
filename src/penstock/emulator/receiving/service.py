"""google.pubsub.v1.Subscriber, as subscribers use it: pull, stream, ack, extend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from penstock.config import check_duration
from penstock.emulator.backend import Backend
from penstock.emulator.messages import MAX_MESSAGES, write_received
from penstock.emulator.receiving.acks import refuse, settle
from penstock.emulator.receiving.desks import Desk
from penstock.emulator.receiving.stream import Context, Stream
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TopicNotFoundError,
)
from penstock.googlepubsub.messages import Empty, PullResponse
from penstock.googlepubsub.names import SUBSCRIPTIONS
from penstock.message import Delivery

# An empty answer after a while tells more than a deadline that passed; it has to be on its way
# before that does.
_LONGEST_WAIT = 5.0
_PART_OF_DEADLINE = 0.7
_MOST_BYTES = 10 * 2**20


class Receiving:
    def __init__(self, backend: Backend, is_pushed: Callable[[str], bool]) -> None:
        self._backend = backend
        self._broker = backend.broker
        self._ack_ids = backend.ack_ids
        self._is_pushed = is_pushed

    async def pull(self, request: Any, remaining: float | None) -> Any:
        """`remaining`: seconds until the caller gives up, if it ever does."""
        name = self._pullable(request)
        if request.max_messages <= 0:
            raise InvalidArgumentError(
                f"max_messages must be greater than 0, not {request.max_messages}"
            )
        wait = min(_LONGEST_WAIT, _PART_OF_DEADLINE * (remaining or _LONGEST_WAIT * 2))
        deliveries = await self._pulled(
            name,
            min(request.max_messages, MAX_MESSAGES),
            0.0 if request.return_immediately else wait,
        )
        response = PullResponse()
        if deliveries:
            config = await self._backend.config_of(name)
            write_received(
                response.received_messages,
                deliveries,
                self._ack_ids.tag(name),
                with_attempts=config.dead_letter_policy is not None,
            )
        return response

    async def _pulled(self, name: str, most: int, wait: float) -> Sequence[Delivery]:
        try:
            return await self._broker.pull(
                name, max_messages=most, max_bytes=_MOST_BYTES, wait=wait
            )
        except TopicNotFoundError:
            # Drained, and its topic deleted: to Google that is a subscription without news.
            return ()

    async def acknowledge(self, request: Any) -> Any:
        await self._settle(request, None)
        return Empty()

    async def modify_ack_deadline(self, request: Any) -> Any:
        check_duration("ack_deadline_seconds", request.ack_deadline_seconds, 0, 600)
        await self._settle(request, request.ack_deadline_seconds)
        return Empty()

    async def _settle(self, request: Any, seconds: int | None) -> None:
        name = self._name(request)
        if not request.ack_ids:
            raise InvalidArgumentError("No ack ids specified: ack_ids is empty")
        own, others = self._ack_ids.inner(name, request.ack_ids)
        failures = await settle(self._broker, name, own, seconds)
        desk = self._backend.desks.get(name)
        if desk is not None:
            if seconds:
                desk.extended(own, seconds)
            else:
                desk.settled(own)
        if failures or others:
            config = await self._backend.config_of(name)
            exact = config.enable_exactly_once_delivery
            refuse(self._ack_ids.tag(name), failures, others, exact=exact)

    async def streaming_pull(self, requests: AsyncIterator[Any], context: Context) -> None:
        first = await anext(requests, None)
        if first is None:
            raise InvalidArgumentError("A stream begins with a request that names a subscription")
        name = self._pullable(first)
        desk = self._backend.desks.get(name)
        if desk is None:
            config = await self._backend.config_of(name)
            desk = self._backend.desks.setdefault(name, Desk(config, self._backend.clock))
        try:
            stream = Stream(self._broker, self._ack_ids, desk, self._backend.returns, first)
            await stream.run(first, requests, context)
        finally:
            if not desk.streams and self._backend.desks.get(name) is desk:
                desk.close()
                del self._backend.desks[name]

    def _pullable(self, request: Any) -> str:
        name = self._name(request)
        if self._is_pushed(name):
            raise FailedPreconditionError(
                f"Subscription {request.subscription} pushes to an endpoint; to pull from it, "
                "remove its push_config"
            )
        return name

    def _name(self, request: Any) -> str:
        return self._backend.names.of(SUBSCRIPTIONS, request.subscription, "subscription")
