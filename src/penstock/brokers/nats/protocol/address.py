"""What an address says: servers, credentials, TLS and a few options."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidArgumentError

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
        try:
            parts = urlsplit(url)
        except (
            ValueError
        ) as error:  # Of the address it shows nothing, since it may hold a password.
            raise InvalidArgumentError(f"This is no nats:// address: {error}") from None
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

    @property
    def hosts(self) -> str:
        """The servers as they are shown to people."""
        return ", ".join(server.partition("://")[2] for server in self.servers)

    @property
    def wants_tls(self) -> bool:
        return self.tls or self.tls_ca is not None

    def tls_context(self) -> ssl.SSLContext:
        """Raises `ssl.SSLError` or `OSError` when its files cannot be used."""
        context = ssl.create_default_context(cafile=self.tls_ca)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context

    def check_files(self) -> None:
        """Raise when a file with credentials is not there."""
        for path in (self.credentials, self.nkey):
            if path is not None and not Path(path).is_file():
                raise InvalidArgumentError(f"There is no credentials file {path!r} here")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise InvalidArgumentError(f"timeout in an address must be seconds above 0, not {text!r}")
    return seconds
