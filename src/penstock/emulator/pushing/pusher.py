"""One push subscription: pulls, sends, and settles by what the endpoint answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx

from penstock.emulator.backend import Backend
from penstock.emulator.pushing.requests import ACKING, request_of
from penstock.emulator.pushing.tokens import Tokens
from penstock.errors import NotFoundError, PenstockError, TopicNotFoundError
from penstock.googlepubsub.names import SUBSCRIPTIONS
from penstock.message import Delivery, Settlement, Verb
from penstock.rules.backoff import Backoff

_WAIT = 30.0
_MOST_AT_ONCE = 100
_MOST_BYTES = 32 * 2**20
_BACKOFF = Backoff(initial=0.1, maximum=60.0)
_TRY_AGAIN_AFTER = 1.0

_log = logging.getLogger("penstock")


def new_client() -> httpx.AsyncClient:
    """Goes where it is told, and nowhere else."""
    return httpx.AsyncClient(
        follow_redirects=False, trust_env=False, limits=httpx.Limits(max_connections=None)
    )


class Pusher:
    """Sends more at once while the endpoint takes it, one at a time and ever more slowly while
    it does not."""

    def __init__(
        self,
        backend: Backend,
        client: httpx.AsyncClient,
        tokens: Tokens,
        subscription: str,
        push_config: Any,
    ) -> None:
        self._backend = backend
        self._client = client
        self._tokens = tokens
        self._name = subscription
        self._resource = backend.names.resource(SUBSCRIPTIONS, subscription)
        self._push_config = push_config
        self._at_once = 1
        self._failures = 0
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                await self._turn()
        except NotFoundError:
            _log.debug("Push subscription %r is gone", self._name)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def _turn(self) -> None:
        if self._failures:
            await asyncio.sleep(_BACKOFF.delay(self._failures))
        while len(self._sending) >= self._at_once:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        try:
            deliveries = await self._backend.broker.pull(
                self._name,
                max_messages=self._at_once - len(self._sending),
                max_bytes=_MOST_BYTES,
                wait=_WAIT,
            )
        except TopicNotFoundError:
            await asyncio.sleep(_TRY_AGAIN_AFTER)
            return
        except NotFoundError:
            raise
        except PenstockError as error:
            _log.warning("Push subscription %r cannot pull: %s", self._name, error)
            await asyncio.sleep(_TRY_AGAIN_AFTER)
            return
        for delivery in deliveries:
            task = asyncio.get_running_loop().create_task(self._push(delivery))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _push(self, delivery: Delivery) -> None:
        verb = Verb.RELEASE
        try:
            verb = Verb.ACK if await self._is_taken(delivery) else Verb.NACK
        finally:
            settlement = Settlement(delivery.ack_id, verb)
            await asyncio.shield(self._backend.broker.settle(self._name, [settlement]))

    async def _is_taken(self, delivery: Delivery) -> bool:
        config = await self._backend.config_of(self._name)
        body, headers = request_of(
            self._resource,
            self._push_config,
            delivery,
            with_attempt=config.dead_letter_policy is not None,
        )
        if self._push_config.HasField("oidc_token"):
            headers[b"authorization"] = self._tokens.bearer(self._push_config).encode()
        try:
            answer = await self._client.post(
                self._push_config.push_endpoint,
                content=body,
                headers=headers,
                timeout=config.ack_deadline,
            )
        except httpx.HTTPError as error:
            _log.info("Pushing %r: %s", self._name, str(error) or type(error).__name__)
            taken = False
        else:
            taken = answer.status_code in ACKING
        self._failures = 0 if taken else self._failures + 1
        self._at_once = min(self._at_once * 2, _MOST_AT_ONCE) if taken else 1
        return taken
