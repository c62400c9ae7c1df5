"""Connecting: nats-py's connection, its reconnects, and requests to the JetStream API."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import nats.aio.client
import nats.errors
import nkeys  # type: ignore[import-untyped]

from penstock.brokers.nats.aio.wire import Wire, check_compatible, closed_error
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.errors import (
    Missing,
    connection_lost,
    denied,
    is_denial,
    login_refused,
    no_answer,
    no_responders,
    not_reached,
    unusable_files,
)
from penstock.brokers.nats.protocol.requests import api_subject, decode_answer, encode_request
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.rules.backoff import Backoff

_log = logging.getLogger("penstock")
_RECONNECT = Backoff(initial=0.05, maximum=5.0)


class Connection:
    """One connection to a NATS server: nats-py's, with a `Wire` beside it."""

    def __init__(self, options: NatsOptions) -> None:
        check_compatible()
        self.options = options
        self._client = nats.aio.client.Client()
        self.wire = Wire(self._client)
        self.wire.timeout = options.timeout
        self._attempts = 0
        self._last_error: BaseException | None = None
        self._refusals: dict[str, asyncio.Future[None]] = {}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened = False
        self._closed = False
        self.on_denied: Callable[[str], None] | None = None

    async def open(self) -> None:
        """Connect, or raise what keeps us from it."""
        options = self.options
        try:
            await asyncio.wait_for(self._connect(), options.timeout)
        except InvalidArgumentError:
            raise
        except Exception as error:
            cause = self._last_error if isinstance(error, TimeoutError) else error
            with suppress(Exception):
                await self._client.close()
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
        self.wire.reconnect_for_ever()
        self._opened = True

    def _next_server(self, servers: list[Any], _info: Any) -> tuple[Any, float]:
        """Full jitter between attempts, so that clients do not return together."""
        self._attempts += 1
        # An attempt that failed half-way leaves its connection open; nobody uses it any more.
        self.wire.abort()
        return random.choice(servers), _RECONNECT.delay(self._attempts)

    async def request(
        self, subject: str, body: object = None, *, missing: Missing | None = None
    ) -> dict[str, Any]:
        """A request to the JetStream API; its error answers are raised."""
        self._check_open()
        try:
            answer = await self._ask(api_subject(subject), encode_request(body))
        except nats.errors.NoRespondersError:
            raise no_responders(missing) from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise no_answer(self.options.timeout, subject) from None
        except (nats.errors.Error, OSError) as error:
            raise self.wire.loss(connection_lost(error)) from error
        return decode_answer(answer.data, missing)

    async def _ask(self, subject: str, payload: bytes) -> Any:
        """nats-py's request, ended at once when the server refuses the subject."""
        loop = asyncio.get_running_loop()
        refused = self._refusals.setdefault(subject, loop.create_future())
        asking: asyncio.Future[Any] = asyncio.ensure_future(
            self._client.request(subject, payload, timeout=self.options.timeout)
        )
        either: set[asyncio.Future[Any]] = {asking, refused, self._ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                raise closed_error()
            if refused.done() and not asking.done():
                raise denied(subject)
            return await asking
        finally:
            self._refusals.pop(subject, None)
            asking.cancel()

    async def ping(self) -> float:
        """Seconds of a round trip to the server."""
        self._check_open()
        began = asyncio.get_running_loop().time()
        # Never cancelled: nats-py's read loop does not survive a PONG that nobody waits for.
        flushing = asyncio.ensure_future(self._client.flush(max(1, round(self.options.timeout))))
        flushing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait({flushing, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                raise closed_error()
            await flushing
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise self.wire.loss(
                UnavailableError(f"The NATS server does not answer: {error}")
            ) from error
        return asyncio.get_running_loop().time() - began

    async def close(self) -> None:
        if not self._closed:
            self._closed = self.wire.closed = True
            self.wire.lost()
            self._ended.set_result(None)
            await self._close_client()

    async def _close_client(self) -> None:
        """A peer that reads no more must not keep us from closing."""
        closing = asyncio.ensure_future(self._client.close())
        done, _ = await asyncio.wait({closing}, timeout=self.options.timeout)
        if not done:
            self.wire.abort()
            await asyncio.wait({closing}, timeout=self.options.timeout)

    def _check_open(self) -> None:
        self.wire.check_connected()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        text = str(error)
        if is_denial(text):
            for subject, refused in self._refusals.items():
                if f'"{subject.lower()}"' in text.lower() and not refused.done():
                    refused.set_result(None)
                    return
            if self.on_denied is not None:
                self.on_denied(text)
        _log.debug("nats: %s", text)

    async def _on_disconnected(self) -> None:
        self.wire.lost()
        if self._opened and not self._closed:
            _log.warning("Lost the NATS server at %s; reconnecting", self.options.hosts)

    async def _on_reconnected(self) -> None:
        self._attempts = 0
        _log.info("Connected again to the NATS server at %s", self.options.hosts)
