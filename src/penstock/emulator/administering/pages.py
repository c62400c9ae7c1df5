"""Long lists, a page at a time."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.googlepubsub.names import Names

_DEFAULT, _MOST = 100, 1000

Describe: TypeAlias = Callable[[str], Awaitable[Any]]


def page_of(names: Iterable[str], size: int, token: str) -> tuple[list[str], str]:
    """The names of one page, in order, and the token of the next (empty: there is none).

    A token names the last one given out, so that what is created or deleted meanwhile neither
    repeats nor hides others.
    """
    if size < 0:
        raise InvalidArgumentError(f"page_size must not be negative, not {size}")
    after = _decoded(token)
    waiting = sorted(name for name in names if name > after)
    page = waiting[: min(size or _DEFAULT, _MOST)]
    more = len(waiting) > len(page)
    return page, base64.urlsafe_b64encode(page[-1].encode()).decode() if more else ""


async def still_there(describe: Describe, names: Iterable[str]) -> list[Any]:
    """What the names of a page stand for, without those that somebody deleted meanwhile."""
    found = []
    for name in names:
        with suppress(NotFoundError):
            found.append(await describe(name))
    return found


async def page_of_project(
    request: Any, names: Names, known: Iterable[str], describe: Describe
) -> tuple[list[Any], str]:
    """What the request's project has of what is `known`, one page of it, and the next token."""
    project = names.project_of(request.project, "project")
    own = [name for name in known if names.is_in(project, name)]
    page, token = page_of(own, request.page_size, request.page_token)
    return await still_there(describe, page), token


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise InvalidArgumentError(
            f"Invalid page_token: {token[:100]!r} is not one that a list gave out"
        ) from None
