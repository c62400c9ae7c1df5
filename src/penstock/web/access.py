"""Who is asking. Without tokens only this machine may, and everybody on it is one user."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from functools import lru_cache
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException

from penstock.errors import InvalidArgumentError
from penstock.jobs.service import check_user_id
from penstock.jobs.settings import ApiSettings

MIN_TOKEN_LENGTH = 16


class Access:
    """Tokens and the users they stand for. Tokens are kept as digests only."""

    def __init__(self, settings: ApiSettings) -> None:
        self._users = {
            _digest(_long_enough(token)): check_user_id(user)
            for token, user in settings.tokens.items()
        }
        self._local_user = check_user_id(settings.local_user)
        if not self._users and not is_loopback(settings.host):
            raise InvalidArgumentError(
                f"The API would be open to everybody who can reach {settings.host}: set api.tokens "
                "(PENSTOCK_API__TOKENS), or listen on 127.0.0.1"
            )

    @property
    def open(self) -> bool:
        """Nobody is asked for a token."""
        return not self._users

    @property
    def local_user(self) -> str:
        return self._local_user

    def is_welcome(self, host: str, origin: str | None) -> bool:
        """Where no token is asked for, a page of another site must not get in: neither with a
        request of its own, nor under a name of its own that leads to this machine."""
        if not self.open:
            return True
        name = host.rpartition(":")[0] if _has_port(host) else host
        return is_loopback(name) and (origin is None or origin.partition("://")[2] == host)

    def user_of(self, connection: ASGIConnection[Any, Any, Any, Any]) -> str:
        """The user of a request, or 401."""
        if self.open:
            return self._local_user
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        user = self._users.get(_digest(token)) if scheme.lower() == "bearer" else None
        if user is None:
            raise NotAuthorizedException(
                "Send a token: Authorization: Bearer …", headers={"WWW-Authenticate": "Bearer"}
            )
        return user


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _has_port(host: str) -> bool:
    return re.search(r":\d+$", host) is not None and (host.count(":") == 1 or "]" in host)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _long_enough(token: str) -> str:
    if len(token) < MIN_TOKEN_LENGTH:
        raise InvalidArgumentError(
            f"An API token has fewer than {MIN_TOKEN_LENGTH} characters; make one with "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token
