"""JetStream on a blocking socket, for code that has a process to itself and no event loop."""

from __future__ import annotations

import base64
import itertools
import random
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import nkeys  # type: ignore[import-untyped]

from penstock.brokers.nats.aio.connection import NatsOptions, api_error
from penstock.brokers.nats.aio.wire import publish_operation
from penstock.brokers.nats.protocol.headers import status_of
from penstock.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PenstockError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

_RECEIVE = 2**20
_NO_RESPONDERS = 503
_SECTION = re.compile(r"-----BEGIN ([A-Z ]+)-----\s+(\S+)\s+-+END")


class BlockingConnection:
    """One connection, used by one thread. It does not reconnect: open another."""

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self._inbox = f"{options.inbox_prefix}.{secrets.token_hex(8)}"
        self._replies = itertools.count(1)
        self._rest = b""
        self._socket = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # Connecting.

    def _open(self) -> socket.socket:
        hosts = [server.partition("://")[2] for server in self.options.servers]
        failure: OSError | None = None
        for host in random.sample(hosts, len(hosts)):
            name, _, port = host.rpartition(":")
            try:
                raw = socket.create_connection((name.strip("[]"), int(port)), self.options.timeout)
            except OSError as error:
                failure = error
                continue
            try:
                return self._greet(raw, name)
            except BaseException as error:
                raw.close()
                if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
                    failure = error
                    continue
                raise
        raise UnavailableError(
            f"Cannot connect to a NATS server at {', '.join(hosts)}: {failure}; is it running?"
        ) from failure

    def _greet(self, raw: socket.socket, host: str) -> socket.socket:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = raw
        self._rest = b""
        line = self._line()
        if not line.startswith(b"INFO "):
            raise UnavailableError(f"What listens at {host} is not a NATS server")
        info = msgspec.json.decode(line[5:])
        if self.options.tls or self.options.tls_ca or info.get("tls_required"):
            try:
                self._socket = _context(self.options).wrap_socket(raw, server_hostname=host)
            except (ssl.SSLError, FileNotFoundError) as error:
                raise InvalidArgumentError(
                    f"The files of this address cannot be used: {type(error).__name__}: {error}"
                ) from error
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": "penstock",
            "name": "penstock",
            **_login(self.options, info.get("nonce", "")),
        }
        self._send(
            b"CONNECT %b\r\nPING\r\nSUB %b.* 1\r\n"
            % (msgspec.json.encode(hello), self._inbox.encode())
        )
        while not (line := self._line()).startswith(b"PONG"):
            if line.startswith(b"-ERR"):
                raise UnauthenticatedError(f"The NATS server at {host} refused these credentials")
        return self._socket

    # Requests.

    def request(
        self, subject: str, body: Any = None, *, missing: Callable[[], PenstockError] | None = None
    ) -> dict[str, Any]:
        """A request to the JetStream API; its error answers are raised."""
        payload = msgspec.json.encode(body) if body is not None else b""
        block, answer = self.ask(f"$JS.API.{subject}", b"", payload)
        if block and status_of(block)[0] == _NO_RESPONDERS:
            if missing is not None:
                raise missing()
            raise UnavailableError(
                "The NATS server has no JetStream for this user; enable it, or check permissions"
            )
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        if "error" in decoded:
            raise api_error(decoded["error"], missing)
        return decoded

    def ask(self, subject: str, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """Publish and wait for one answer: its header block and payload."""
        reply = self.send(subject, header, payload)
        while True:
            words, begin, data = self._operation()
            if words[1] != reply:
                continue  # An answer that came too late for who had asked.
            size = int(words[-2]) if words[0] == b"HMSG" else 0
            end = begin + int(words[-1])
            return data[begin : begin + size], data[begin + size : end]

    def send(self, subject: str, header: bytes, payload: bytes) -> bytes:
        """Publish; returns the subject that answers come to."""
        reply = f"{self._inbox}.{next(self._replies)}".encode()
        self._send(publish_operation(subject.encode(), reply, header, payload))
        return reply

    def _operation(self) -> tuple[list[bytes], int, bytes]:
        """The next message: the words of its first line, where its body begins, and in what."""
        while True:
            line = self._line()
            if not line.startswith((b"MSG", b"HMSG")):
                self.control(line)
                continue
            words = line.split()
            total = int(words[-1]) + 2
            while len(self._rest) < total:
                self._rest += self.receive()
            data, self._rest = self._rest[:total], self._rest[total:]
            return words, 0, data

    def _line(self) -> bytes:
        while (end := self._rest.find(b"\r\n")) < 0:
            self._rest += self.receive()
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        return line

    # The wire, also for those who parse for themselves.

    def take_rest(self) -> bytes:
        """What was received and not yet looked at; give back what is left."""
        rest, self._rest = self._rest, b""
        return rest

    def give_back(self, rest: bytes) -> None:
        self._rest = rest

    def control(self, line: bytes) -> None:
        """Everything the server sends beside messages."""
        if line.startswith(b"PING"):
            self._send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            text = line[4:].strip().decode(errors="replace")
            if "permissions violation" in text.lower():
                raise PermissionDeniedError(
                    f"The NATS server refused: {text}; grant it, see docs/nats.conf"
                )
            raise UnavailableError(f"The NATS server ended the connection: {text}")

    def receive(self) -> bytes:
        try:
            data = self._socket.recv(_RECEIVE)
        except TimeoutError:
            raise DeadlineExceededError(
                f"The NATS server did not answer within {self.options.timeout:g} s"
            ) from None
        except OSError as error:
            raise UnavailableError(
                f"The connection to the NATS server was lost: {error}"
            ) from error
        if not data:
            raise UnavailableError("The NATS server closed the connection")
        return data

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise UnavailableError(
                f"The connection to the NATS server was lost: {error}"
            ) from error


def _context(options: NatsOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.tls_ca)
    if options.tls_cert:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def _login(options: NatsOptions, nonce: str) -> dict[str, str]:
    """The part of CONNECT that says who we are."""
    if options.credentials is not None:
        sections = dict(_SECTION.findall(_secret(options.credentials)))
        token = sections.get("NATS USER JWT", "")
        seed = sections.get("USER NKEY SEED", "")
        if not token or not seed:
            raise InvalidArgumentError(
                f"{options.credentials!r} is no credentials file: it needs a user JWT and a seed"
            )
        return {"jwt": token, "sig": _signed(seed, nonce)[1]}
    if options.nkey is not None:
        public, signature = _signed(_secret(options.nkey).strip(), nonce)
        return {"nkey": public, "sig": signature}
    if options.user is not None:
        return {"user": options.user, "pass": options.password or ""}
    return {"auth_token": options.token} if options.token is not None else {}


def _secret(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidArgumentError(
            f"There is no credentials file {path!r} here: {error.strerror}"
        ) from None


def _signed(seed: str, nonce: str) -> tuple[str, str]:
    try:
        key = nkeys.from_seed(seed.encode())
        signature = base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
        return key.public_key.decode(), signature
    except (nkeys.NkeysError, ValueError) as error:
        raise InvalidArgumentError(f"The seed cannot be used: {type(error).__name__}") from None
    finally:
        with suppress(UnboundLocalError):
            key.wipe()


class Reconnecting:
    """A connection that is opened when needed and again when lost, for up to `patience` seconds
    at a time. The first one fails at once unless told otherwise: a wrong address is not an
    outage."""

    def __init__(
        self, options: Callable[[], NatsOptions], patience: float, *, first: bool = False
    ) -> None:
        self._options = options
        self._patience = patience
        self._trusted = first
        self._connection: BlockingConnection | None = None

    def call(self, work: Callable[[BlockingConnection], Any]) -> Any:
        """Run `work`, again on a new connection when that one is lost; it must be safe to
        repeat."""
        until = time.monotonic() + self._patience
        pause = 0.05
        while True:
            try:
                if self._connection is None:
                    self._connection = BlockingConnection(self._options())
                    self._trusted = True
                return work(self._connection)
            except (UnavailableError, DeadlineExceededError):
                self.close()
                if not self._trusted or time.monotonic() + pause > until:
                    raise
            except BaseException:
                # Nobody knows what is still to come on it.
                self.close()
                raise
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 2.0)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
