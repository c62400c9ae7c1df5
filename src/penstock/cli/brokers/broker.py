"""What commands that talk to a broker have in common: its address, moments, plain output."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from penstock.cli.file_options import or_in_file
from penstock.cli.plain_text import safe
from penstock.client import PubSub
from penstock.config import ServerName, is_name
from penstock.connect import check_shared
from penstock.errors import InvalidArgumentError

T = TypeVar("T")

BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The broker, such as local://DIR or nats://HOST.",
        envvar="PENSTOCK_URL",
        show_envvar=True,
        callback=or_in_file,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def with_pubsub(url: str | None, work: Callable[[PubSub], Awaitable[T]]) -> T:
    """Do it with a client of the broker, and close it."""
    address = shared_url(url)

    async def main() -> T:
        async with PubSub(address) as pubsub:
            return await work(pubsub)

    return asyncio.run(main())


def shared_url(url: str | None) -> str:
    """An address at which other processes find the same broker."""
    if url is None:
        raise InvalidArgumentError(
            "Which broker? Give one that other processes share, such as --url local://./data or "
            "--url nats://127.0.0.1, or set PENSTOCK_URL, or PENSTOCK_URL_FILE to a file it is in"
        )
    check_shared(url)
    return url


def moment(text: str | None) -> datetime | None:
    """`2026-01-31T12:00`, in the zone of this machine unless it says, or `90s`, `2h`, `7d` ago."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago:
        return datetime.now(UTC) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise InvalidArgumentError(
            f"{text!r} is no moment; write one such as 2026-01-31T12:00, or 90s, 15m, 2h or 7d for "
            "so long ago"
        ) from None


def there(name: str) -> str:
    """A name as it was typed: of something that is there, so whoever made it may have chosen it."""
    return name if is_name(name) else ServerName(name)


def print_json(value: Any) -> None:
    """At once: whoever reads it through a pipe may wait for this line."""
    # Names that know more than their text are text all the same.
    sys.stdout.write(f"{msgspec.json.encode(value, enc_hook=_plain).decode()}\n")
    sys.stdout.flush()


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is no JSON")


def printable(data: bytes) -> str:
    """A body for a terminal: text without what would move its cursor, or hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex(" ")
    with suppress(msgspec.DecodeError):
        text = msgspec.json.format(text)
    return safe(text)
