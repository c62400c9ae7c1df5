"""JetStream on a blocking socket, for code that has a process to itself and no event loop."""

from __future__ import annotations

import base64
import itertools
import random
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.errors import (
    Missing,
    connection_lost,
    denied,
    is_denial,
    login_refused,
    no_answer,
    not_reached,
    unusable_files,
)
from penstock.brokers.nats.protocol.frames import (
    check_body,
    find_end,
    nonsense,
    read_head,
    read_info,
)
from penstock.brokers.nats.protocol.parsing import AnswerParser
from penstock.brokers.nats.protocol.requests import (
    api_subject,
    check_responders,
    decode_answer,
    encode_request,
    publish_operation,
)
from penstock.errors import InvalidArgumentError, UnavailableError

_RECEIVE = 2**20
_SECTION = re.compile(r"-----BEGIN ([A-Z ]+)-----\s+(\S+)\s+-+END")


class BlockingConnection:
    """One connection, used by one thread. It does not reconnect: open another. After an error
    nobody knows what is still to come on it: close it."""

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
        self.options.check_files()
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
        raise not_reached(self.options.hosts, failure) from failure

    def _greet(self, raw: socket.socket, host: str) -> socket.socket:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = raw
        self._rest = b""
        line = self._line()
        if not line.startswith(b"INFO "):
            raise UnavailableError(f"What listens at {host} is not a NATS server")
        info = read_info(line[5:])
        if self.options.wants_tls or info.get("tls_required"):
            self._socket = self._encrypted(raw, host)
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
                raise login_refused(host)
        return self._socket

    def _encrypted(self, raw: socket.socket, host: str) -> ssl.SSLSocket:
        try:
            context = self.options.tls_context()
        except OSError as error:
            raise unusable_files(error) from error
        try:
            return context.wrap_socket(raw, server_hostname=host)
        except ssl.SSLError as error:
            raise unusable_files(error) from error

    # Requests.

    def request(
        self, subject: str, body: object = None, *, missing: Missing | None = None
    ) -> dict[str, Any]:
        """A request to the JetStream API; its error answers are raised."""
        block, answer = self.ask(api_subject(subject), b"", encode_request(body))
        check_responders(block)
        return decode_answer(answer, missing)

    def ask(self, subject: str, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """Publish and wait for one answer: its header block and payload."""
        reply = self.send(subject, header, payload)
        while True:
            to, block, body = self._message()
            if to == reply:
                return block, body
            # Else an answer that came too late for who had asked.

    def send(self, subject: str, header: bytes, payload: bytes) -> bytes:
        """Publish; returns the subject that answers come to."""
        reply = f"{self._inbox}.{next(self._replies)}".encode()
        self._send(publish_operation(subject.encode(), reply, header, payload))
        return reply

    def receive_into(self, parser: AnswerParser) -> int:
        """Feed a parser until its answers are over; returns the status that ended them."""
        rest, self._rest = self._rest, b""
        while not parser.status:
            chunks = [rest, self._receive()]
            # A large payload: gather its parts and join them once.
            missing = parser.missing - len(chunks[-1])
            while missing > 0:
                chunks.append(self._receive())
                missing -= len(chunks[-1])
            data = b"".join(chunks)
            rest = data[parser.take(data) :]
        self._rest = rest
        return parser.status

    def control(self, line: bytes) -> None:
        """Everything the server sends beside messages."""
        if line.startswith(b"PING"):
            self._send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            text = line[4:].strip().decode(errors="replace")
            if is_denial(text):
                raise denied(text)
            raise UnavailableError(f"The NATS server ended the connection: {text}")
        elif not line.startswith((b"PONG", b"+OK", b"INFO")):
            raise nonsense("a line that is none of the protocol's")

    # The wire.

    def _message(self) -> tuple[bytes, bytes, bytes]:
        """The next message: its subject, header block and payload."""
        while True:
            line = self._line()
            words = line.split()
            if not words or words[0] not in (b"MSG", b"HMSG"):
                self.control(line)
                continue
            _, header, total = read_head(words)
            chunks, missing = [self._rest], total + 2 - len(self._rest)
            while missing > 0:
                chunks.append(self._receive())
                missing -= len(chunks[-1])
            data = b"".join(chunks)
            check_body(data, total)
            self._rest = data[total + 2 :]
            return words[1], data[:header], data[header:total]

    def _line(self) -> bytes:
        while (end := find_end(self._rest, 0)) < 0:
            self._rest += self._receive()
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        return line

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(_RECEIVE)
        except TimeoutError:
            raise no_answer(self.options.timeout) from None
        except OSError as error:
            raise connection_lost(error) from error
        if not data:
            raise connection_lost("it was closed at the other end")
        return data

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise connection_lost(error) from error


class LazyConnection:
    """A connection that is opened when it is used, dropped when anything goes wrong on it, and
    opened anew with the next use."""

    def __init__(self, options: Callable[[], NatsOptions]) -> None:
        self._options = options
        self._connection: BlockingConnection | None = None

    @contextmanager
    def use(self) -> Iterator[BlockingConnection]:
        if self._connection is None:
            self._connection = BlockingConnection(self._options())
        try:
            yield self._connection
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """The next use makes no connection."""
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
        raise unusable_files(error) from None


def _signed(seed: str, nonce: str) -> tuple[str, str]:
    import nkeys  # type: ignore[import-untyped]

    try:
        key = nkeys.from_seed(seed.encode())
        signature = base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
        return key.public_key.decode(), signature
    except (nkeys.NkeysError, ValueError) as error:
        raise InvalidArgumentError(f"The seed cannot be used: {type(error).__name__}") from None
    finally:
        with suppress(UnboundLocalError):
            key.wipe()
