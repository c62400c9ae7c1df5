"""Settings as they may be seen: what is used, and no secret of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import typer

if TYPE_CHECKING:
    from penstock.jobs.settings import JobSettings

HIDDEN = "***"
_ADDRESSES = {"url", "database", "media.youtube_url"}
_SECRETS = {"api.tokens", "media.youtube_api_key"}
# Of these the rest of an address is a folder or a file.
_PLACES = ("local", "memory", "sqlite")


def used(settings: JobSettings) -> dict[str, tuple[Any, bool]]:
    """Every setting by its name, as it may be seen, and whether it is the default."""
    default = dict(_leaves(msgspec.to_builtins(type(settings)())))
    return {
        name: (_seen(name, value), default.get(name) == value)
        for name, value in _leaves(msgspec.to_builtins(settings))
    }


def say_used(settings: JobSettings) -> None:
    """Where everything is, and what is not as it would be by itself, in one line."""
    told = [
        f"{name} = {value}"
        for name, (value, default) in used(settings).items()
        if not default or name in ("url", "database")
    ]
    typer.echo(f"Settings: {', '.join(told)}")


def seen_address(address: str) -> str:
    """An address without user, password and options. Whatever is not sure to be none of these is
    left out."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return HIDDEN
    if scheme.partition("+")[0] in _PLACES:
        return f"{scheme}://{rest.partition('?')[0]}"
    ends = [rest.find(sign) for sign in "/?#" if sign in rest]
    authority = rest[: min(ends, default=len(rest))]
    path = rest[len(authority) :].partition("?")[0].partition("#")[0]
    if "@" in rest[len(authority) :]:
        return f"{scheme}://{HIDDEN}"
    user, at, host = authority.rpartition("@")
    return f"{scheme}://{HIDDEN if at or user else ''}{at}{host}{path}"


def _seen(name: str, value: Any) -> Any:
    if name in _ADDRESSES:
        return seen_address(str(value))
    if name in _SECRETS and value:
        return f"{len(value)} hidden" if isinstance(value, Mapping) else HIDDEN
    return value


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and path not in _SECRETS and path != "topics.media":
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value
