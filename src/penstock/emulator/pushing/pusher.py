"""One push subscription: pulls, sends, and settles by what the endpoint answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import httpx

from penstock.emulator.backend import Backend
from penstock.emulator.pushing.requests import ACKING, request_of
from penstock.emulator.pushing.tokens import Tokens
from penstock.errors import NotFoundError, PenstockError, TopicNotFoundError
from penstock.googlepubsub.names import SUBSCRIPTIONS
from penstock.message import Delivery, Settlement, Verb
from penstock.retrying import Persistence, retry
from penstock.rules.backoff import Backoff

_WAIT = 30.0
_LONGEST_DEADLINE = 600.0
_MOST_AT_ONCE = 100
_MOST_BYTES = 32 * 2**20
_MOST_READ = 64 * 1024
_BACKOFF = Backoff(initial=0.1, maximum=60.0)
_PERSISTENCE = Persistence(backoff=_BACKOFF)
_ORPHAN_PAUSE = 1.0

_log = logging.getLogger("penstock")


def new_client() -> httpx.AsyncClient:
    """Goes where it is told, and nowhere else."""
    return httpx.AsyncClient(
        follow_redirects=False,
        trust_env=False,
        timeout=_LONGEST_DEADLINE,
        limits=httpx.Limits(max_connections=None),
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
        """Until it is cancelled, or there is nothing to push any more."""
        try:
            while True:
                await self._turn()
        except NotFoundError:
            _log.debug("Push subscription %r is gone", self._name)
        except PenstockError as error:
            _log.warning("Subscription %r is pushed no more: %s", self._name, error)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def _turn(self) -> None:
        if self._failures:
            await asyncio.sleep(_BACKOFF.delay(self._failures))
        while len(self._sending) >= self._at_once:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        for delivery in await retry(self._pulled, _PERSISTENCE, on_failure=self._say):
            task = asyncio.get_running_loop().create_task(self._push(delivery))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _pulled(self) -> Sequence[Delivery]:
        try:
            return await self._backend.broker.pull(
                self._name,
                max_messages=self._at_once - len(self._sending),
                max_bytes=_MOST_BYTES,
                wait=_WAIT,
            )
        except TopicNotFoundError:
            # Drained, and its topic deleted: to Google that is a subscription without news.
            await asyncio.sleep(_ORPHAN_PAUSE)
            return ()

    def _say(self, error: Exception, pause: float) -> None:
        _log.warning(
            "Push subscription %r cannot pull, again in %.1f s: %s", self._name, pause, error
        )

    async def _push(self, delivery: Delivery) -> None:
        verb = Verb.RELEASE
        try:
            verb = Verb.ACK if await self._is_taken(delivery) else Verb.NACK
        finally:
            await asyncio.shield(self._settle(Settlement(delivery.ack_id, verb)))

    async def _settle(self, settlement: Settlement) -> None:
        try:
            await self._backend.broker.settle(self._name, [settlement])
        except PenstockError as error:
            _log.warning("Push subscription %r cannot settle: %s", self._name, error)

    async def _is_taken(self, delivery: Delivery) -> bool:
        try:
            taken = await self._status(delivery) in ACKING
        except Exception as error:  # whatever it is: the endpoint did not take it
            _log.info("Pushing %r: %s", self._name, str(error) or type(error).__name__)
            taken = False
        self._failures = 0 if taken else self._failures + 1
        self._at_once = min(self._at_once * 2, _MOST_AT_ONCE) if taken else 1
        return taken

    async def _status(self, delivery: Delivery) -> int:
        """What the endpoint answers, within the ack deadline."""
        config = await self._backend.config_of(self._name)
        body, headers = request_of(
            self._resource,
            self._push_config,
            delivery,
            with_attempt=config.dead_letter_policy is not None,
        )
        if self._push_config.HasField("oidc_token"):
            headers[b"authorization"] = self._tokens.bearer(self._push_config).encode()
        endpoint = self._push_config.push_endpoint
        # The client's own time-outs are for each read: one that trickles would never end.
        async with (
            asyncio.timeout(config.ack_deadline),
            self._client.stream("POST", endpoint, content=body, headers=headers) as answer,
        ):
            if int(answer.headers.get("content-length", _MOST_READ + 1)) <= _MOST_READ:
                await answer.aread()  # nobody wants it, but the connection is good for another
            return answer.status_code
