"""The inbox: one effect an event, and what is written down about it."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, func, insert, select, update

from penstock import errors
from penstock.rules.derived_ids import sequence_id
from penstock.transactional import Arrival, Database, Inbox, Taken
from penstock.transactional.inbox_table import inbox as rows

pytestmark = pytest.mark.real_time

own = MetaData()
effects = Table("effects", own, Column("n", Integer, primary_key=True), Column("event", Text))


def arrival(event_id="e-1", **more):
    return Arrival(event_id=event_id, event_type="user.created", payload=b'{"id":1}', **more)


@dataclass
class Scene:
    database: Database
    inbox: Inbox

    async def handle(self, one):
        """The effect of an event is a row. True when it had one."""
        async with self.inbox.once(one) as connection:
            if connection is not None:
                await connection.execute(insert(effects).values(event=one.event_id))
            return connection is not None

    async def effects(self):
        async with self.database.transaction(reading=True) as connection:
            return (await connection.execute(select(effects.c.event))).scalars().all()

    async def row(self, event_id="e-1"):
        async with self.database.transaction(reading=True) as connection:
            query = select(rows).where(rows.c.event_id == event_id)
            return (await connection.execute(query)).mappings().one()


@asynccontextmanager
async def inbox_on(url, consumer="api-workers", **options):
    async with Database(url) as database:
        inbox = Inbox(database, consumer, **options)
        await inbox.create()
        await database.create_tables(own)
        yield Scene(database, inbox)


async def test_an_event_that_comes_again_has_one_effect(url):
    async with inbox_on(url) as scene:
        assert [await scene.handle(arrival()) for _ in range(3)] == [True, False, False]
        assert await scene.effects() == ["e-1"]


async def test_effect_and_mark_are_rolled_back_together(url):
    async with inbox_on(url) as scene:
        with pytest.raises(ZeroDivisionError):
            async with scene.inbox.once(arrival()) as connection:
                await connection.execute(insert(effects).values(event="never"))
                raise ZeroDivisionError("no")
        assert await scene.effects() == []
        assert (await scene.row())["status"] == "failed"
        assert await scene.handle(arrival())
        assert await scene.effects() == ["e-1"]


@pytest.mark.parametrize("misuse", ["commit", "rollback"])
async def test_whoever_ends_the_transaction_of_an_inbox_is_told_and_nothing_is_kept(url, misuse):
    async with inbox_on(url) as scene:
        with pytest.raises(errors.FailedPreconditionError, match="leave commit"):
            async with scene.inbox.once(arrival()) as connection:
                await connection.execute(insert(effects).values(event="never"))
                with suppress(errors.FailedPreconditionError):
                    await getattr(connection, misuse)()
        assert await scene.effects() == []
        assert (await scene.row())["status"] == "failed"
        assert await scene.handle(arrival())
        assert await scene.effects() == ["e-1"]


async def test_a_handler_cut_off_before_the_commit_leaves_nothing_of_either(url):
    async with inbox_on(url) as scene:
        inside = asyncio.Event()

        async def cut():
            async with scene.inbox.once(arrival()) as connection:
                await connection.execute(insert(effects).values(event="never"))
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(cut())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await scene.effects() == []
        assert await scene.handle(arrival())


async def test_deliveries_of_one_event_at_the_same_time_have_one_effect(url):
    async with inbox_on(url) as scene, Database(url) as another:
        elsewhere = Scene(another, Inbox(another, "api-workers"))
        scenes = [scene, elsewhere] * 10
        had = await asyncio.gather(*(one.handle(arrival()) for one in scenes))
        assert sum(had) == 1
        assert await scene.effects() == ["e-1"]


async def test_who_comes_second_waits_for_the_first_and_takes_over_when_it_fails(url):
    async with inbox_on(url) as scene, Database(url) as another:
        inside, leave = asyncio.Event(), asyncio.Event()

        async def fails():
            async with scene.inbox.once(arrival()):
                inside.set()
                await leave.wait()
                raise ZeroDivisionError

        first = asyncio.create_task(fails())
        await inside.wait()
        second = asyncio.create_task(
            Scene(another, Inbox(another, "api-workers")).handle(arrival())
        )
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert not done
        leave.set()
        with pytest.raises(ZeroDivisionError):
            await first
        assert await second
        assert await scene.effects() == ["e-1"]


async def test_many_events_marked_together_tell_which_are_new(url):
    async with inbox_on(url) as scene:
        await scene.handle(arrival("e-3"))
        batch = [arrival(f"e-{n}") for n in (5, 3, 1, 1)]
        async with scene.database.transaction() as connection:
            assert await scene.inbox.mark(connection, batch) == {"e-1", "e-5"}
            assert await scene.inbox.mark(connection, []) == set()
        assert not await scene.handle(arrival("e-5"))


async def test_batches_that_share_events_in_another_order_do_not_lock_each_other_out(url):
    async with inbox_on(url) as scene:
        batches = [[arrival(f"e-{n}") for n in order] for order in (range(50), range(49, -1, -1))]

        async def handle(batch):
            async with scene.database.transaction() as connection:
                fresh = await scene.inbox.mark(connection, batch)
                for event_id in sorted(fresh):
                    await connection.execute(insert(effects).values(event=event_id))

        for _ in range(5):
            await asyncio.gather(*(handle(batch) for batch in batches))
        assert sorted(await scene.effects()) == sorted(f"e-{n}" for n in range(50))


async def test_of_a_batch_what_failed_or_was_not_tried_is_not_marked(url):
    async with inbox_on(url) as scene:
        async with scene.database.transaction() as connection:
            await scene.inbox.mark(connection, [arrival(f"e-{n}") for n in range(3)])
            await scene.inbox.unmark(connection, ["e-1"], ValueError("no"))
            await scene.inbox.unmark(connection, ["e-2"], None)
        assert (await scene.row("e-0"))["status"] == "processed"
        failed, waiting = await scene.row("e-1"), await scene.row("e-2")
        assert (failed["status"], failed["processing_attempts"]) == ("failed", 1)
        assert failed["error_message"] == "ValueError: no" and failed["failed_at"]
        assert (waiting["status"], waiting["processing_attempts"]) == ("received", 0)
        assert [await scene.handle(arrival(f"e-{n}")) for n in range(3)] == [False, True, True]


async def test_each_consumer_has_an_inbox_of_its_own(url):
    async with inbox_on(url) as scene:
        other = Scene(scene.database, Inbox(scene.database, "mailer"))
        assert await scene.handle(arrival())
        assert await other.handle(arrival())
        assert await scene.effects() == ["e-1", "e-1"]
        assert (await scene.inbox.status()).processed == 1


async def test_the_row_says_everything_about_the_event(url):
    async with inbox_on(url) as scene:
        one = arrival(
            resource_type="user",
            resource_id="7",
            subject="worker.sync.api",
            headers={"traceparent": "00-x", "näme": "välue"},
            stream="bridge",
            stream_seq=42,
            deliveries=3,
        )
        await scene.handle(one)
        row = await scene.row()
        assert row["event_type"] == "user.created" and row["payload"] == '{"id":1}'
        assert (row["status"], row["processing_attempts"]) == ("processed", 1)
        assert (row["resource_type"], row["resource_id"]) == ("user", "7")
        assert row["subject"] == "worker.sync.api"
        assert row["headers"] == {"traceparent": "00-x", "näme": "välue"}
        assert (row["stream"], row["stream_seq"], row["deliveries"]) == ("bridge", 42, 3)
        assert row["error_message"] is None and row["failed_at"] is None
        now = await scene.database.time()
        for moment in ("created_at", "updated_at", "received_at", "processed_at"):
            assert 0 <= now - row[moment] < 60


async def test_attempts_and_errors_are_counted_until_it_succeeds(url):
    async with inbox_on(url) as scene:
        for attempt in (1, 2):
            with pytest.raises(RuntimeError):
                async with scene.inbox.once(arrival(deliveries=attempt)):
                    raise RuntimeError(f"attempt {attempt}\x00")
        row = await scene.row()
        assert (row["status"], row["processing_attempts"], row["deliveries"]) == ("failed", 2, 2)
        assert row["error_message"] == "RuntimeError: attempt 2\ufffd"
        await scene.handle(arrival(deliveries=3))
        row = await scene.row()
        assert (row["status"], row["processing_attempts"]) == ("processed", 3)
        assert row["error_message"] is None and row["failed_at"] is not None


async def test_a_late_failure_does_not_undo_what_is_processed(url):
    async with inbox_on(url) as scene:
        await scene.handle(arrival())
        await scene.inbox.note_failure(arrival(), RuntimeError("late"))
        assert (await scene.row())["status"] == "processed"


async def test_an_event_without_an_id_is_known_by_its_place_and_time(url):
    async with inbox_on(url) as scene:
        one = arrival(sequence_id("bridge", 5, 1_700_000_000_000_000_000))
        assert await scene.handle(one)
        assert not await scene.handle(one)
        # The stream was made again: its fifth message is another one.
        assert await scene.handle(arrival(sequence_id("bridge", 5, 1_800_000_000_000_000_000)))


async def test_two_events_at_one_place_of_a_stream_that_was_made_again_are_two(url):
    async with inbox_on(url) as scene:
        assert await scene.handle(arrival("e-1", stream="bridge", stream_seq=1))
        assert await scene.handle(arrival("e-2", stream="bridge", stream_seq=1))


async def test_odd_text_is_stored_all_the_same(url):
    async with inbox_on(url) as scene:
        one = Arrival(event_id="ö-1", event_type="a\x00b", payload=b"\xff\x00", resource_id="\x00")
        assert await scene.handle(one)
        assert (await scene.row("ö-1"))["payload"] == "\ufffd\ufffd"


@pytest.mark.parametrize("wrong", ["", "a\x00b", "x" * 1025, 5])
def test_an_id_that_cannot_be_kept_is_refused(wrong):
    with pytest.raises(errors.InvalidArgumentError):
        arrival(wrong)


async def test_an_effect_elsewhere_is_taken_by_one_at_a_time(url):
    async with inbox_on(url) as scene:
        take = scene.inbox.take
        assert await take(arrival(), 60) is Taken.OURS
        assert await take(arrival(deliveries=2), 60) is Taken.BUSY
        assert (await scene.row())["status"] == "processing"
        await scene.inbox.finish(["e-1"])
        assert await take(arrival(), 60) is Taken.DONE
        row = await scene.row()
        assert (row["status"], row["processing_attempts"]) == ("processed", 1)
        assert row["processed_at"] is not None


async def test_what_was_taken_and_failed_or_was_left_can_be_taken_again(url):
    async with inbox_on(url) as scene:
        take = scene.inbox.take
        assert await take(arrival(), 60) is Taken.OURS
        await scene.inbox.note_failure(arrival(), ValueError("no"))
        assert await take(arrival(headers={"k": "v"}), 60) is Taken.OURS
        # Whoever had it died.
        async with scene.database.transaction() as connection:
            await connection.execute(update(rows).values(updated_at=rows.c.updated_at - 61))
        assert await take(arrival(), 60) is Taken.OURS
        assert (await scene.row())["processing_attempts"] == 3


async def test_status_counts_and_rows_list(url):
    async with inbox_on(url) as scene:
        assert await scene.inbox.status() == type(await scene.inbox.status())()
        for n in range(3):
            await scene.handle(arrival(f"e-{n}"))
        await scene.inbox.note_failure(arrival("e-9"), ValueError("no"))
        status = await scene.inbox.status()
        assert (status.processed, status.failed, status.processing) == (3, 1, 0)
        assert 0 <= status.oldest_age < 60
        [failed] = await scene.inbox.rows("failed")
        assert (failed.event_id, failed.error_message) == ("e-9", "ValueError: no")
        assert len(await scene.inbox.rows(limit=2)) == 2
        with pytest.raises(errors.InvalidArgumentError, match="No status 'gone'"):
            await scene.inbox.rows("gone")


async def aged(scene, event_id, seconds):
    async with scene.database.transaction() as connection:
        await connection.execute(
            update(rows)
            .where(rows.c.event_id == event_id)
            .values(created_at=rows.c.created_at - seconds, updated_at=rows.c.updated_at - seconds)
        )


async def test_cleaning_never_enters_the_replay_horizon(url):
    async with inbox_on(url, replay_horizon=3600) as scene:
        for event_id, age in (("old", 3700), ("young", 3500), ("new", 0)):
            await scene.handle(arrival(event_id))
            await aged(scene, event_id, age)
        with pytest.raises(errors.InvalidArgumentError, match="may be delivered again"):
            await scene.inbox.clean(3599)
        assert await scene.inbox.clean(3600) == 1
        assert not await scene.handle(arrival("young"))
        assert not await scene.handle(arrival("new"))


async def test_cleaning_goes_in_small_steps_and_spares_others(url):
    async with inbox_on(url, replay_horizon=0) as scene:
        other = Scene(scene.database, Inbox(scene.database, "mailer", replay_horizon=0))
        for n in range(25):
            await scene.handle(arrival(f"e-{n}"))
        await other.handle(arrival("e-0"))
        # An old event that something happened to just now.
        async with scene.database.transaction() as connection:
            await connection.execute(update(rows).values(created_at=rows.c.created_at - 50))
            await connection.execute(
                update(rows).where(rows.c.event_id != "e-7").values(updated_at=rows.c.created_at)
            )
        assert await scene.inbox.clean(40, limit=10) == 24
        async with scene.database.transaction(reading=True) as connection:
            left = select(func.count()).select_from(rows)
            assert (await connection.execute(left)).scalar_one() == 2
