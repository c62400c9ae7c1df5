"""Connecting: addresses, credentials, reconnects, and requests to the JetStream API."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import nats.aio.client
import nats.errors
import nkeys  # type: ignore[import-untyped]

from penstock.brokers.nats.aio.wire import Wire, check_compatible, closed_error
from penstock.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.rules.backoff import Backoff

_log = logging.getLogger("penstock")
_RECONNECT = Backoff(initial=0.05, maximum=5.0)
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """What an address says.

    `credentials`: a `.creds` file. `nkey`: a file with an nkey seed. `tls_ca`, `tls_cert`,
    `tls_key`: PEM files. `inbox_prefix`: where answers come in; grant it. `topics`: where to look
    for subscriptions, when this user may not list streams. `group_commit`: the server syncs every
    write, so send what waits as atomic batches. `timeout`: seconds for one answer.
    """

    servers: list[str] = field(default_factory=list)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    nkey: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    inbox_prefix: str = "_INBOX"
    topics: tuple[str, ...] = ()
    group_commit: bool = False
    timeout: float = 5.0

    @classmethod
    def of(cls, url: str) -> NatsOptions:
        """`nats://[user:password@]host[:port][,host…][?option=value&…]`; `tls://` likewise."""
        parts = urlsplit(url)
        options: dict[str, Any] = {}
        login, _, hosts = parts.netloc.rpartition("@")
        if login:
            user, separator, password = login.partition(":")
            if separator:
                options |= {"user": unquote(user), "password": unquote(password)}
            else:
                options["token"] = unquote(user)
        options["tls"] = parts.scheme == "tls"
        options["servers"] = [
            f"{parts.scheme}://{host if ':' in host else f'{host}:4222'}"
            for host in hosts.split(",")
            if host
        ]
        for server in options["servers"]:
            if not server.rpartition(":")[2].isdigit():
                raise InvalidArgumentError(f"The port in {server!r} must be a number")
        if not options["servers"]:
            raise InvalidArgumentError(f"A {parts.scheme}:// address needs a host")
        known = {"credentials", "nkey", "tls_ca", "tls_cert", "tls_key", "inbox_prefix"}
        for name, value in parse_qsl(parts.query):
            if name in known:
                options[name] = value
            elif name == "topics":
                options[name] = tuple(value.split(","))
            elif name == "group_commit" and value.lower() in _FLAGS:
                options[name] = _FLAGS[value.lower()]
            elif name == "timeout":
                options[name] = _seconds(value)
            else:
                raise InvalidArgumentError(
                    f"Unknown option {name!r} in a {parts.scheme}:// address; known: "
                    f"{', '.join(sorted(known | {'topics', 'group_commit', 'timeout'}))}"
                )
        return cls(**options)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise InvalidArgumentError(f"timeout in an address must be seconds above 0, not {text!r}")
    return seconds


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
                raise InvalidArgumentError(
                    f"The files of this address cannot be used: {type(error).__name__}: {error}"
                ) from error
            if "authorization" in str(cause).lower() or "nkey" in str(cause).lower():
                raise UnauthenticatedError(
                    f"The NATS server at {_hosts(options)} refused these credentials"
                ) from error
            raise UnavailableError(
                f"Cannot connect to a NATS server at {_hosts(options)}: "
                f"{cause or 'no answer'}; is it running?"
            ) from error

    async def _connect(self) -> None:
        options = self.options
        context = None
        if options.tls or options.tls_ca:
            context = ssl.create_default_context(cafile=options.tls_ca)
            if options.tls_cert:
                context.load_cert_chain(options.tls_cert, options.tls_key)
        for path in (options.credentials, options.nkey):
            if path is not None and not Path(path).is_file():  # noqa: ASYNC240
                raise InvalidArgumentError(f"There is no credentials file {path!r}")
        extra: dict[str, Any] = {"tls": context} if context is not None else {}
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
        self._client.options["allow_reconnect"] = True
        self._client.options["max_reconnect_attempts"] = -1
        self._opened = True

    def _next_server(self, servers: list[Any], _info: Any) -> tuple[Any, float]:
        """Full jitter between attempts, so that clients do not return together."""
        self._attempts += 1
        # An attempt that failed half-way leaves its connection open; nobody uses it any more.
        self.wire.abort()
        return random.choice(servers), _RECONNECT.delay(self._attempts)

    async def request(
        self, subject: str, body: Any = None, *, missing: Callable[[], PenstockError] | None = None
    ) -> dict[str, Any]:
        """A request to the JetStream API; its error answers are raised."""
        self._check_open()
        payload = msgspec.json.encode(body) if body is not None else b""
        try:
            answer = await self._ask(f"$JS.API.{subject}", payload)
        except nats.errors.NoRespondersError:
            if missing is not None:
                raise missing() from None
            raise UnavailableError(
                "The NATS server has no JetStream for this user; enable it, or check permissions"
            ) from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise DeadlineExceededError(
                f"The NATS server did not answer {subject!r} within {self.options.timeout:g} s; "
                "check the connection and this user's permissions"
            ) from None
        except (nats.errors.Error, OSError) as error:
            raise self.wire.loss(f"The connection to the NATS server was lost: {error}") from error
        decoded: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in decoded:
            raise api_error(decoded["error"], missing)
        return decoded

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
                raise PermissionDeniedError(
                    f"The NATS server does not allow this user {subject!r}; grant it, see "
                    "docs/nats.conf"
                )
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
            raise self.wire.loss(f"The NATS server does not answer: {error}") from error
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
        if "permissions violation" in text.lower():
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
            _log.warning("Lost the NATS server at %s; reconnecting", _hosts(self.options))

    async def _on_reconnected(self) -> None:
        self._attempts = 0
        _log.info("Connected again to the NATS server at %s", _hosts(self.options))


def _hosts(options: NatsOptions) -> str:
    return ", ".join(server.partition("://")[2] for server in options.servers)


_NOT_FOUND = {10059, 10014, 10037}
_EXISTS = {10058, 10148, 10013}
_EXPECTATION = {10060, 10070, 10071, 10164}
_FULL = {10023, 10028, 10047, 10077, 10122, 10167}
_TOO_LARGE = {10054}


def api_error(
    error: dict[str, Any], missing: Callable[[], PenstockError] | None = None
) -> PenstockError:
    """A JetStream error answer as one of ours."""
    number, text = int(error.get("err_code", 0)), str(error.get("description", "unknown error"))
    said = f"{text} (JetStream error {number})"
    if number in _NOT_FOUND:
        return missing() if missing is not None else NotFoundError(said)
    if number in _EXISTS:
        return AlreadyExistsError(said)
    if number in _EXPECTATION:
        return FailedPreconditionError(f"Message not stored: {said}")
    if number in _FULL or "maximum" in text:
        return ResourceExhaustedError(said)
    if number in _TOO_LARGE:
        return InvalidArgumentError(said)
    if int(error.get("code", 500)) == 403:
        return PermissionDeniedError(said)
    if int(error.get("code", 500)) == 503:
        return UnavailableError(said)
    if int(error.get("code", 500)) < 500:
        return FailedPreconditionError(said)
    return InternalError(said)
