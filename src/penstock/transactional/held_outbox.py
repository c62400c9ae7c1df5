"""Messages that are sent by whoever committed them.

add, claimed (the caller's transaction) → look which are there → publish → settle

Their rows are a relay's own from the beginning, and the messages are in its hands, so nobody has
to claim them and read them back. Only what a look finds in the database is sent: what was not
committed is not there, whatever the caller was told. A crash anywhere leaves the rows claimed until
the lease ends, as after any other claim, and then they are everybody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.message import Draft
from penstock.transactional.bundles import Bundle, add_bundles
from penstock.transactional.database import Database
from penstock.transactional.outbox import Holder, Outbox, add_rows
from penstock.transactional.row_leases import Claim, Claimed, Claims


class HeldOutbox(Outbox):
    """An outbox of one relay. `leaves_alone` says of a topic whether the relay does: its messages
    are added for whoever can send them, and so are those that are to go later, have a key or no
    id."""

    def __init__(
        self, database: Database, claims: Claims, leaves_alone: Callable[[str], bool]
    ) -> None:
        super().__init__(database)
        self._claims = claims
        self._leaves_alone = leaves_alone
        self._holder: Holder = claims.holder()
        self._added: dict[tuple[str, str], tuple[float, Draft]] = {}
        self._bundles: dict[str, tuple[float, Bundle]] = {}

    async def add(
        self,
        connection: AsyncConnection,
        topic: str,
        drafts: Sequence[Draft],
        *,
        after: float = 0.0,
        revive: bool = False,
    ) -> tuple[str, ...]:
        if after or revive or not _are_plain(drafts) or self._leaves_alone(topic):
            return await super().add(connection, topic, drafts, after=after, revive=revive)
        began = asyncio.get_running_loop().time()
        ids = await add_rows(connection, topic, drafts, holder=self._holder)
        for message_id, draft in zip(ids, drafts, strict=True):
            self._added[topic, message_id] = (began, draft)
        return ids

    async def add_new(
        self, connection: AsyncConnection, topic: str, drafts: Sequence[Draft]
    ) -> None:
        if not _are_plain(drafts) or self._leaves_alone(topic):
            await super().add_new(connection, topic, drafts)
            return
        began = asyncio.get_running_loop().time()
        for bundle in await add_bundles(connection, topic, drafts, self._holder):
            self._bundles[bundle.name] = (began, bundle)

    async def committed(self) -> tuple[Claim, float] | None:
        """What was added and is in the database, and when the first of it was added; None when
        there is nothing. It is no longer in hand here, whatever becomes of it. What is not there
        may still be committed; when its lease is over it is no longer ours."""
        if not self._added and not self._bundles:
            return None
        found, names = await self._claims.held(
            self._holder, rows=bool(self._added), bundles=bool(self._bundles)
        )
        began = now = asyncio.get_running_loop().time()
        rows: list[Claimed] = []
        for row, topic, message_id in found:
            if (added := self._added.pop((topic, message_id), None)) is not None:
                began = min(began, added[0])
                rows.append(Claimed(row, topic, 0, added[1]))
        bundles: list[Bundle] = []
        # In the order in which they were added.
        for name in [name for name in self._bundles if name in names]:
            at, bundle = self._bundles.pop(name)
            began = min(began, at)
            bundles.append(bundle)
        oldest = now - self._holder.lease
        self._added = {key: one for key, one in self._added.items() if one[0] > oldest}
        self._bundles = {name: one for name, one in self._bundles.items() if one[0] > oldest}
        is_some = rows or bundles
        return (Claim(self._holder.of_claim, False, rows, bundles), began) if is_some else None


def _are_plain(drafts: Sequence[Draft]) -> bool:
    return all(draft.message_id and not draft.ordering_key for draft in drafts)
