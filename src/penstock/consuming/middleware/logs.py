"""A line for every call of a handler: who, what came of it, how long. Never what was in it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.config import check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.message import Message
from penstock.observing.outcomes import outcome_of

_log = logging.getLogger("penstock.app")


def logs(level: int = logging.INFO) -> Middleware:
    """Calls are logged at `level` under the name `penstock.app`, with ids as fields of the record.

    That and why messages come back or die is logged without this too.
    """

    check_whole("level", level, 0)

    async def logged(call: Call, next: Next) -> Any:
        clock = asyncio.get_running_loop().time
        began, outcome, messages = clock(), "done", call.messages
        try:
            return await next(call)
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            if _log.isEnabledFor(level):
                _tell(level, call, messages, outcome, clock() - began)

    return logged


def _tell(level: int, call: Call, messages: list[Message], outcome: str, seconds: float) -> None:
    fields = {
        "topic": call.topic,
        "subscription": call.subscription,
        "message_ids": [message.id for message in messages],
        "handler": call.handler,
        "outcome": outcome,
        "seconds": round(seconds, 6),
    }
    count = len(messages)
    what = repr(call.message.id) if count == 1 else f"{count} messages"
    _log.log(
        level, "%s handled %s: %s in %.3f s", call.handler, what, outcome, seconds, extra=fields
    )
