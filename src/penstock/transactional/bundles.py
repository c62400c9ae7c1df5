"""Messages that one transaction adds for one topic, as one row.

What is sent by whoever committed it is sent moments later, and all there is to find out is that it
was committed. So it is one row, however many messages it is, and the row is deleted when they are
sent. What could not be sent, and what a process that died has left, becomes rows of the outbox,
which any relay sends.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Text,
    and_,
    bindparam,
    delete,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.message import Draft
from penstock.transactional.database import database_time
from penstock.transactional.outbox import Holder, add_committed, portions
from penstock.transactional.outbox_table import INSERT_BUNDLES, bundles

_log = logging.getLogger("penstock")
c = bundles.c
# Bundles that become rows in one transaction, which keeps others waiting.
_AT_A_TIME = 10
# Seconds after which one that could not be read is looked at again.
_ASIDE = 3600.0
_Message = tuple[bytes, dict[str, str], str | None, str | None, str | None, float | None]
_decoder = msgspec.msgpack.Decoder(list[_Message])

# Made once: to make one takes longer than to execute it.
_IS_HOLDERS = and_(
    c.claimed_by == bindparam("holder", type_=Text()),
    c.fence == bindparam("of_claim", type_=BigInteger()),
)
_ARE_OURS = and_(c.name.in_(bindparam("names", type_=Text(), expanding=True)), _IS_HOLDERS)
_HELD = select(c.name).where(_IS_HOLDERS)
_RENEW = (
    update(bundles)
    .where(_ARE_OURS)
    .values(lease_until=database_time() + bindparam("lease", type_=Double()))
)
_END = delete(bundles).where(_ARE_OURS).returning(c.name, c.created_at)


class Bundle(msgspec.Struct, frozen=True):
    """One in hand."""

    name: str
    topic: str
    drafts: Sequence[Draft]


async def add_bundles(
    connection: AsyncConnection, topic: str, drafts: Sequence[Draft], holder: Holder
) -> list[Bundle]:
    """In the transaction of `connection`; as many as their size takes."""
    made = [Bundle(secrets.token_hex(16), topic, some) for some in portions(drafts)]
    for bundle in made:
        await INSERT_BUNDLES.execute(connection, [_row(bundle, holder)])
    return made


async def held_bundles(connection: AsyncConnection, holder: Holder) -> frozenset[str]:
    """The names of those that were added for it, and committed."""
    whose = {"holder": holder.holder, "of_claim": holder.of_claim}
    return frozenset((await connection.scalars(_HELD, whose)).all())


async def renew_bundles(
    connection: AsyncConnection, some: Sequence[Bundle], owner: str, fence: int, lease: float
) -> int:
    """Those alone: others of the same holder may be in nobody's hands any more."""
    ours = _ours(some, owner, fence)
    return (await connection.execute(_RENEW, {**ours, "lease": lease})).rowcount


async def end_bundles(
    connection: AsyncConnection,
    sent: Sequence[tuple[Bundle, Sequence[Draft]]],
    owner: str,
    fence: int,
) -> int:
    """They were sent, but for what is left of each, which becomes rows of the outbox. Returns how
    many messages were in those that were still ours."""
    ours = _ours([bundle for bundle, _ in sent], owner, fence)
    found = (await connection.execute(_END, ours)).all()
    ended: dict[str, float] = {row.name: row.created_at for row in found}
    for bundle, left in sent:
        if left and bundle.name in ended:
            await add_committed(connection, bundle.topic, left, ended[bundle.name])
    return sum(len(bundle.drafts) for bundle, _ in sent if bundle.name in ended)


async def unfold_ended(connection: AsyncConnection, topics: Collection[str] | None) -> None:
    """What nobody has in hand any more becomes rows of the outbox; of all topics unless given."""
    ended = select(c.name, c.topic, c.messages, c.created_at).where(has_ended(topics))
    ended = ended.order_by(c.created_at).limit(_AT_A_TIME).with_for_update(skip_locked=True)
    found = (await connection.execute(ended)).all()
    unfolded = []
    for row in found:
        try:
            drafts = list(_drafts(row.messages))
        except msgspec.MsgspecError as error:
            await _set_aside(connection, row.name, row.topic, error)
        else:
            await add_committed(connection, row.topic, drafts, row.created_at)
            unfolded.append(row.name)
    if unfolded:
        await connection.execute(delete(bundles).where(c.name.in_(unfolded)))


async def _set_aside(connection: AsyncConnection, name: str, topic: str, error: Exception) -> None:
    """One that cannot be read holds up no other; it is kept for somebody who can."""
    _log.error(
        "Messages for topic %r wait in row %s of %s, which this Penstock cannot read (%s); run a "
        "relay of the one that wrote it, or restore the row. It is looked at again in an hour",
        *(topic, name, bundles.name, error),
    )
    later = database_time() + _ASIDE
    await connection.execute(update(bundles).where(c.name == name).values(lease_until=later))


def has_ended(topics: Any) -> ColumnElement[bool]:
    """Whether nobody has it in hand; of all topics if that is None."""
    ended: ColumnElement[bool] = c.lease_until <= database_time()
    return ended if topics is None else and_(ended, c.topic.in_(topics))


def _ours(some: Sequence[Bundle], owner: str, fence: int) -> dict[str, Any]:
    return {"names": [bundle.name for bundle in some], "holder": owner, "of_claim": fence}


def _row(bundle: Bundle, holder: Holder) -> dict[str, Any]:
    messages = [
        (one.data, one.attributes, one.ordering_key, one.message_id, one.subject, one.ttl)
        for one in bundle.drafts
    ]
    return {
        "name": bundle.name,
        "topic": bundle.topic,
        "messages": msgspec.msgpack.encode(messages),
        "count": len(messages),
        **holder._asdict(),
    }


def _drafts(messages: bytes) -> Iterator[Draft]:
    for data, attributes, key, message_id, subject, ttl in _decoder.decode(messages):
        yield Draft(data, attributes, key, message_id, subject, None, ttl)
