"""Connecting: nats-py's connection, its reconnects, and requests to the JetStream API."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import nkeys  # type: ignore[import-untyped]

from penstock.brokers.nats.aio.asking import Asking
from penstock.brokers.nats.aio.client import SteadyClient, check_compatible
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.errors import (
    Missing,
    login_refused,
    no_responders,
    not_reached,
    refused_subject,
    unusable_files,
)
from penstock.brokers.nats.protocol.requests import (
    api_subject,
    check_responders,
    decode_answer,
    encode_request,
)
from penstock.errors import InvalidArgumentError
from penstock.rules.backoff import Backoff

_log = logging.getLogger("penstock")
_RECONNECT = Backoff(initial=0.05, maximum=5.0)


class Connection:
    """One connection to a NATS server: nats-py's, with a `Wire` beside it."""

    def __init__(self, options: NatsOptions) -> None:
        check_compatible()
        self.options = options
        self._client = SteadyClient()
        self.wire = Wire(self._client)
        self.wire.timeout = options.timeout
        self._asking = Asking(self.wire, options.inbox_prefix)
        self.backoff = _RECONNECT
        """Pauses between attempts to connect again."""
        self._attempts = 0
        self._last_error: BaseException | None = None
        self._opened = False
        self.on_denied: Callable[[str], None] | None = None

    async def open(self) -> None:
        """Connect, or raise what keeps us from it."""
        options = self.options
        try:
            async with asyncio.timeout(options.timeout):
                await self._connect()
        except BaseException as error:
            # Whatever ended it, cancellation too: what was opened half-way is closed.
            await self._close_client()
            if isinstance(error, InvalidArgumentError) or not isinstance(error, Exception):
                raise
            cause = self._last_error if isinstance(error, TimeoutError) else error
            if isinstance(error, ssl.SSLError | FileNotFoundError | nkeys.NkeysError | ValueError):
                raise unusable_files(error) from error
            if "authorization" in str(cause).lower() or "nkey" in str(cause).lower():
                raise login_refused(options.hosts) from error
            raise not_reached(options.hosts, cause) from error

    async def _connect(self) -> None:
        options = self.options
        extra: dict[str, Any] = {"tls": options.tls_context()} if options.wants_tls else {}
        options.check_files()
        await self._client.connect(
            servers=options.servers,
            user=options.user,
            password=options.password,
            token=options.token,
            user_credentials=options.credentials,
            nkeys_seed=options.nkey,
            inbox_prefix=options.inbox_prefix,
            name="penstock",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            reconnect_to_server_handler=self._next_server,
            ping_interval=10,
            max_outstanding_pings=2,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            connect_timeout=max(1, round(options.timeout)),
            **extra,
        )
        # The first connect fails at once, so that wrong addresses and credentials are told;
        # from here on a lost connection is made again for as long as we live.
        self._client.reconnect_for_ever()
        self._asking.open()
        self._opened = True

    def _next_server(self, servers: list[Any], _info: Any) -> tuple[Any, float]:
        """Full jitter between attempts, so that clients do not return together."""
        self._attempts += 1
        # An attempt that failed half-way leaves its connection open; nobody uses it any more.
        self.wire.begin_anew()
        return random.choice(servers), self.backoff.delay(self._attempts)

    async def request(
        self,
        subject: str,
        body: object = None,
        *,
        missing: Missing | None = None,
        unanswered: Missing = no_responders,
    ) -> dict[str, Any]:
        """A request to the JetStream API; its error answers are raised. `missing`: what was asked
        for is not there. `unanswered`: nobody knows such requests, or nobody is there now."""
        block, answer = await self._asking.ask(api_subject(subject), encode_request(body))
        check_responders(block, unanswered)
        return decode_answer(answer, missing)

    def lead_to(self, url: str) -> None:
        """The server is elsewhere now: the next connection is made to `url`."""
        now = NatsOptions.of(url)
        self.options = replace(
            self.options, servers=now.servers, user=now.user, password=now.password
        )
        self._client.lead_to(now.servers, now.user, now.password)

    async def ping(self) -> float:
        """Seconds of a round trip to the server."""
        return await self.wire.ping()

    async def close(self) -> None:
        if not self.wire.closed:
            self.wire.closed = True
            self.wire.running.end()
            self.wire.lost()
            self.wire.found()
            self._client.send_now()
            await self._close_client()

    async def _close_client(self) -> None:
        """A peer that reads no more must not keep us from closing."""
        closing = asyncio.ensure_future(self._client.close())
        # What it says of a connection that never was, or is gone, is of no interest.
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait({closing}, timeout=self.options.timeout)
        if not done:
            self.wire.abort()
            await asyncio.wait({closing}, timeout=self.options.timeout)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        text = str(error)
        subject = refused_subject(text)
        if subject and not self._asking.refused(subject) and self.on_denied is not None:
            self.on_denied(subject)
        _log.debug("nats: %s", text)

    async def _on_disconnected(self) -> None:
        self.wire.lost()
        if self._opened and not self.wire.closed:
            _log.warning("Lost the NATS server at %s; reconnecting", self.options.hosts)

    async def _on_reconnected(self) -> None:
        self._attempts = 0
        self.wire.found()
        _log.info("Connected again to the NATS server at %s", self.options.hosts)
