"""An end to handlers that take too long."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.config import check_duration
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next


def timeout(seconds: float) -> Middleware:
    """Handlers are cancelled after so many seconds, and their messages come back.

    A plain function cannot be cancelled; a `blocking` one goes on unseen in its thread.
    """
    check_duration("timeout", seconds, 0.001, 7 * 86_400)

    async def limited(call: Call, next: Next) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await next(call)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(
                    f"Handler {call.handler} took longer than {seconds:g} s"
                ) from None
            raise

    return limited
