"""Two transactions about one key at the same moment. Only PostgreSQL lets them try."""

import asyncio

import pytest
from sqlalchemy import text

from penstock.transactional.row_leases import Claims, Outcomes
from tests.support.outbox_scenes import drafts, outbox_on, until

pytestmark = pytest.mark.real_time


class Hesitant(Claims):
    """Waits between taking rows and committing it."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.taken, self.go = asyncio.Event(), asyncio.Event()

    async def _take(self, *arguments):
        claim = await super()._take(*arguments)
        self.taken.set()
        await self.go.wait()
        return claim


async def someone_waits_for_a_lock(scene):
    async def waiting():
        async with scene.database.transaction(reading=True) as connection:
            query = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return (await connection.execute(query)).scalar_one() > 0

    await until(waiting)


async def test_a_key_that_is_being_claimed_cannot_be_claimed_by_another(postgres):
    async with outbox_on(postgres.new_database()) as scene:
        await scene.add(*drafts(3, "a"))
        first = Hesitant(scene.database, "first", lease=60)
        second = Claims(scene.database, "second", lease=60)
        one = asyncio.create_task(first.claim(10, 2**20, keyed_first=True))
        await first.taken.wait()
        await scene.add(*drafts(1, "a", start=3))
        two = asyncio.create_task(second.claim(10, 2**20, keyed_first=True))
        await someone_waits_for_a_lock(scene)
        first.go.set()
        assert len((await one).rows) == 3
        assert await two is None


async def test_a_late_retry_that_is_being_written_down_is_not_passed(postgres):
    async with outbox_on(postgres.new_database()) as scene:
        await scene.add(*drafts(3, "a"))
        slow = Claims(scene.database, "slow", lease=0.001)
        quick = Claims(scene.database, "quick", lease=60)
        claim = await slow.claim(10, 2**20, keyed_first=True)
        await asyncio.sleep(0.01)
        async with scene.database.transaction() as connection:
            again = Outcomes(again={claim.rows[0].id: (60.0, "later")})
            assert await slow.settle(connection, claim, again) == 3
            other = asyncio.create_task(quick.claim(10, 2**20, keyed_first=True))
            await someone_waits_for_a_lock(scene)
        assert await other is None


async def test_rows_without_a_key_are_claimed_past_those_being_claimed(postgres):
    async with outbox_on(postgres.new_database()) as scene:
        await scene.add(*drafts(6))
        first = Hesitant(scene.database, "first", lease=60)
        second = Claims(scene.database, "second", lease=60)
        one = asyncio.create_task(first.claim(3, 2**20, keyed_first=False))
        await first.taken.wait()
        two = await second.claim(3, 2**20, keyed_first=False)
        first.go.set()
        taken = [row.draft.message_id for row in (*(await one).rows, *two.rows)]
        assert taken == [f"m-{n}" for n in range(6)]
