"""Group commit in a database: what waits for it at the same time is one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.batching import GroupCommit, Item, Result
from penstock.transactional.database import Database


class GroupTransaction(GroupCommit[Item, Result]):
    """Calls `act` with a connection and what waits, in a transaction of its own; it answers every
    item, in order, and its answers are given once they are committed, after `on_commit` was called
    with the items.

    What goes together is decided when the transaction has begun: who comes while it still waits
    for other writers is taken along, and so are those who waited for the last and come at once. If
    it fails, its items are done again one by one.
    """

    def __init__(
        self,
        database: Database,
        act: Callable[[AsyncConnection, Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        on_commit: Callable[[Sequence[Item]], None],
    ) -> None:
        super().__init__(self._commit, all_or_none=True, quiet_turns=2)
        self._database = database
        self._change = act
        self._on_commit = on_commit

    async def _answered(self) -> Sequence[Result]:
        return await self._commit()

    async def _commit(self, alone: Sequence[Item] | None = None) -> Sequence[Result]:
        """What waits, or what is done `alone` after it failed with others."""
        async with self._database.transaction() as connection:
            items = self._take() if alone is None else alone
            results = await self._change(connection, items) if items else []
        self._on_commit(items)
        return results
