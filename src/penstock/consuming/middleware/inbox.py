"""The effect of a message commits once, with the mark that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from penstock.config import check_callable
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.consuming.middleware.deduplication import original_id
from penstock.errors import FailedPreconditionError
from penstock.message import Message

_connection: ContextVar[Any] = ContextVar("penstock_inbox_connection")


class Effects(Protocol):
    """A transaction for the effects of messages. `fresh`: those that had none before. Who fails
    although the transaction commits is to be in `failures`."""

    connection: Any
    fresh: Sequence[Message]
    failures: dict[Message, Exception]


class EffectsOnce(Protocol):
    """What an inbox does, as `penstock.transactional.Inbox` has it."""

    def effects(
        self, messages: Mapping[Message, str], topic: str
    ) -> AbstractAsyncContextManager[Effects]: ...


def inbox_connection() -> Any:
    """The connection that commits with the mark of the message in hand: write the effect on it."""
    try:
        return _connection.get()
    except LookupError:
        raise FailedPreconditionError(
            "There is no connection of an inbox here; put app.use(inbox(Inbox(database, …))) "
            "around the handler"
        ) from None


def inbox(store: EffectsOnce, *, key: Callable[[Message], str] = original_id) -> Middleware:
    """Messages whose key had its effect before are acked unseen; the handler of others runs in a
    transaction that commits with their mark. It finds it with `inbox_connection`.

    Let it be innermost: what a `retry` inside of it tried before is in the transaction, too. A
    batch handler that says that one of its messages failed must not have written for it. What the
    handler returns is published before that commit; with an outbox on the same connection a message
    is published if and only if it commits.
    """

    check_callable("effects of store", getattr(store, "effects", None), "an async method")
    check_callable("key", key, "a function of a message")

    async def once(call: Call, next: Next) -> Any:
        keys = {message: f"{call.subscription}/{key(message)}" for message in call.messages}
        async with store.effects(keys, call.topic) as effects:
            call.messages = list(effects.fresh)
            if not call.messages:
                return None
            token = _connection.set(effects.connection)
            try:
                result = await next(call)
            finally:
                _connection.reset(token)
            effects.failures.update(call.failures)
            return result

    return once
