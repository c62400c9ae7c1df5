"""Every push subscription of the broker, and the task that serves it."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from penstock.emulator.backend import Backend
from penstock.emulator.pushing.tokens import Tokens
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.messages import PushConfig, Subscription
from penstock.googlepubsub.names import SUBSCRIPTIONS


class Pushers:
    """Most emulators push nothing: what it takes is loaded with the first endpoint."""

    def __init__(self, backend: Backend, tokens: Tokens) -> None:
        self._backend = backend
        self._tokens = tokens
        self._client: Any = None
        self._running: dict[str, tuple[Any, asyncio.Task[None]]] = {}

    async def check(self, push_config: Any) -> None:
        endpoint = push_config.push_endpoint
        if endpoint and not _is_endpoint(endpoint):
            raise InvalidArgumentError(
                f"Invalid push endpoint given (endpoint={endpoint}), in push_config.push_endpoint: "
                "it must be a URL that begins with https:// (or http://, here)."
            )

    async def start(self) -> None:
        """Go on with what was pushed before a restart."""
        for name in await self._backend.admin.list_subscriptions():
            resource = self._backend.names.resource(SUBSCRIPTIONS, name)
            await self.follow(name, self._backend.kept(Subscription, resource).push_config)

    async def follow(self, subscription: str, push_config: Any) -> None:
        now = self._running.get(subscription)
        wanted = push_config if push_config is not None else PushConfig()
        if now is not None and now[0] == wanted:
            return
        if now is not None:
            del self._running[subscription]
            await _ended(now[1])
        if wanted.push_endpoint:
            self._begin(subscription, wanted)

    def _begin(self, subscription: str, push_config: Any) -> None:
        from penstock.emulator.pushing.pusher import Pusher, new_client

        if self._client is None:
            self._client = new_client()
        kept = PushConfig()
        kept.CopyFrom(push_config)
        pusher = Pusher(self._backend, self._client, self._tokens, subscription, kept)
        # Owned here: `follow` and `aclose` end it.
        task = asyncio.get_running_loop().create_task(pusher.run())
        self._running[subscription] = kept, task

    def is_pushed(self, subscription: str) -> bool:
        return subscription in self._running

    async def aclose(self) -> None:
        running = [task for _, task in self._running.values()]
        self._running.clear()
        for task in running:
            await _ended(task)
        if self._client is not None:
            await self._client.aclose()


def _is_endpoint(text: str) -> bool:
    import httpx

    try:
        parts, url = urlsplit(text), httpx.URL(text)
        return url.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
