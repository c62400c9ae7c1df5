"""The read model: any order, any number of times, the same result."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, select, update

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.jobs import (
    MEDIA,
    Count,
    Done,
    Job,
    JobCancelled,
    JobFailed,
    JobQueued,
    JobStage,
    JobViews,
    MediaType,
    MetadataReady,
    Moment,
    Pipeline,
    SqlJobViews,
    Stage,
    StageEvent,
    TranscriptComplete,
    Word,
)
from penstock.jobs.views.projection import Watcher
from penstock.jobs.views.sql import sql_views
from penstock.jobs.views.view import Position
from penstock.transactional import Database
from tests.support.job_samples import WHEN
from tests.support.statements import before_the_next_change

pytestmark = pytest.mark.real_time


def life(number, runs, user="user-1", kind=MediaType.AUDIO):
    """The events of a job that ends each run in the given way."""
    about = {"job_id": f"job_{number:032x}", "user_id": user, "media_type": kind}
    events, at = [], WHEN + timedelta(seconds=number)
    for run, ending in enumerate(runs, 1):
        about["run"] = run
        events.append(JobQueued(**about, at=at))
        if ending is not JobCancelled:
            at += timedelta(seconds=1)
            events.append(MetadataReady(**about, at=at, duration=float(run), size=run))
        at += timedelta(seconds=1)
        more = {"reason": f"reason-{run}"} if ending is JobFailed else {}
        events.append(ending(**about, at=at, **more))
        at += timedelta(seconds=1)
    return events


endings = st.lists(st.sampled_from([JobFailed, JobCancelled]), max_size=2).flatmap(
    lambda runs: st.sampled_from([TranscriptComplete, JobFailed, JobCancelled]).map(
        lambda last: [*runs, last]
    )
)


@st.composite
def histories(draw):
    lives = [life(n, draw(endings)) for n in range(draw(st.integers(1, 3)))]
    events = [event for one in lives for event in one]
    repeated = events + draw(st.lists(st.sampled_from(events), max_size=6))
    return lives, draw(st.permutations(repeated))


@given(histories(), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_req_2_7_events_in_any_order_and_number_end_in_the_same_view(history, batch):
    lives, events = history

    async def run():
        views, in_order = JobViews(), JobViews()
        for at in range(0, len(events), batch):
            await views.apply(events[at : at + batch])
        for one in lives:
            await in_order.apply(one)
        for one in lives:
            view = await views.get(one[0].job_id)
            assert view == await in_order.get(one[0].job_id)
            assert (view.run, view.stage) == (one[-1].run, one[-1].stage)
            assert (view.queued_at, view.updated_at) == (one[0].at, one[-1].at)
        assert await views.list(user_id="user-1") == await in_order.list(user_id="user-1")

    asyncio.run(run())


@given(histories())
@settings(max_examples=15, deadline=None)
def test_the_model_in_a_database_agrees_with_the_one_in_memory(history):
    lives, events = history

    async def run():
        memory = JobViews()
        async with Database("sqlite://") as database, SqlJobViews(database) as sql:
            for at in range(0, len(events), 2):
                batch = events[at : at + 2]
                assert list(await memory.apply(batch)) == list(await sql.apply(batch))
            for one in lives:
                assert await memory.get(one[0].job_id) == await sql.get(one[0].job_id)
            assert await memory.count() == await sql.count()
            async with database.transaction(reading=True) as connection:
                for row in await connection.execute(select(sql_views)):
                    view = await memory.get(row.job_id)
                    assert (row.queued_us, row.stage) == (view.place[0], view.stage)

    asyncio.run(run())


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def keep(request, tmp_path):
    """Opens an empty model of each kind."""

    @asynccontextmanager
    async def opened(pipeline=MEDIA):
        if request.param == "memory":
            yield JobViews(pipeline=pipeline)
            return
        url = f"sqlite:///{tmp_path}/views.db"
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres").new_database()
        async with (
            Database(url) as database,
            SqlJobViews(database, pipeline=pipeline) as views,
        ):
            yield views

    return opened


async def test_lists_are_paged_newest_first_and_filtered(keep):
    async with keep() as views:
        await check_lists(views)


async def check_lists(views):
    for number in range(10):
        ending = TranscriptComplete if number % 2 else JobFailed
        kind = MediaType.VIDEO if number < 4 else MediaType.AUDIO
        await views.apply(life(number, [ending], kind=kind))
    await views.apply(life(50, [JobFailed], user="user-2"))

    async def walk(**filters):
        found, cursor = [], None
        while True:
            page, cursor = await views.list(limit=3, cursor=cursor, **filters)
            assert len(page) <= 3
            found += [int(view.job_id[4:], 16) for view in page]
            if cursor is None:
                return found

    assert await walk(user_id="user-1") == list(range(9, -1, -1))
    assert await walk(user_id="user-2") == [50]
    assert await walk(user_id="nobody") == []
    assert await walk() == [50, *range(9, -1, -1)]
    assert await walk(user_id="user-1", stage=JobStage.FAILED) == [8, 6, 4, 2, 0]
    assert await walk(user_id="user-1", media_type=MediaType.VIDEO) == [3, 2, 1, 0]


async def test_a_cursor_of_somebody_else_is_refused(keep):
    async with keep() as views:
        for cursor in ("zz", "!", "é", "a" * 300):
            with pytest.raises(InvalidArgumentError, match="cursor"):
                await views.list(user_id="user-1", cursor=cursor)


async def test_the_model_in_memory_forgets_the_longest_unheard_of():
    views = JobViews(max_jobs=3)
    for number in range(5):
        await views.apply(life(number, [JobFailed])[:1])
    assert await views.count() == 3
    page, _ = await views.list(user_id="user-1")
    assert [int(view.job_id[4:], 16) for view in page] == [4, 3, 2]


async def test_a_slow_watcher_is_told_to_look_again():
    among = set()
    watcher = Watcher(among, None, None)
    views = await JobViews().apply(life(1, [JobFailed]))
    for _ in range(1000):
        watcher.tell(views)
    watcher.end()
    seen = [view async for view in watcher]
    assert None in seen and len(seen) <= 1001
    assert not among


async def test_a_watcher_sees_its_own_jobs_only():
    watcher = Watcher(set(), "user-1", None)
    for user in ("user-1", "user-2"):
        watcher.tell(await JobViews().apply(life(1, [JobFailed], user=user)[:1]))
    watcher.end()
    assert [view.user_id async for view in watcher] == ["user-1"]


class Shirt(Job, frozen=True, kw_only=True, tag="shirt"):
    pass


class Measured(StageEvent, frozen=True, kw_only=True):
    """Three facts are called as those of media jobs, and one of them means the same."""

    size: Word
    duration: Count
    language: Word | None = None
    due: Moment = WHEN


class Sewn(StageEvent, frozen=True, kw_only=True):
    size: Count = 0


async def does_nothing(_):
    return Done()


SHIRTS = Pipeline(
    name="shirts",
    jobs=(Shirt,),
    stages=(
        Stage(
            name="measuring",
            consumes=JobStage.QUEUED,
            emits=Measured.stage,
            event=Measured,
            handler=does_nothing,
        ),
        Stage(
            name="sewing",
            consumes=Measured.stage,
            emits=Sewn.stage,
            event=Sewn,
            handler=does_nothing,
        ),
    ),
)


def shirt(kind, number=1, **facts):
    about = {"job_id": f"job_{number:032x}", "user_id": "user-1", "run": 1, "at": WHEN}
    return kind(**about, media_type=MediaType("shirt"), **facts)


async def test_a_fact_called_as_one_of_media_jobs_is_what_its_own_event_says(keep):
    async with keep(SHIRTS) as views:
        measured = shirt(Measured, size="large", duration=3, language="en")
        await views.apply([shirt(JobQueued), measured])
        view = await views.get(measured.job_id)
        assert (view.size, view.duration, view.language) == (None, None, "en")
        others = {"size": "large", "duration": 3, "due": "2026-03-01T12:30:15.250000Z"}
        assert view.facts == others
        [sewn] = await views.apply([shirt(Sewn, size=7)])
        assert (sewn.stage, sewn.size, sewn.facts) == (Sewn.stage, 7, others)
        assert await views.get(measured.job_id) == sewn


async def test_an_event_that_cannot_be_taken_in_is_told_of_and_the_others_are(keep, caplog):
    async with keep(SHIRTS) as views:
        stranger = msgspec.structs.replace(life(1, [JobFailed])[1], user_id="user-1")
        await views.apply([shirt(JobQueued, 1), shirt(JobQueued, 2)])
        changed = await views.apply([stranger, shirt(Measured, 2, size="large", duration=3)])
        assert [view.job_id for view in changed] == [shirt(Sewn, 2).job_id]
        assert (await views.get(stranger.job_id)).stage is JobStage.QUEUED
    assert f"skips MetadataReady of job {stranger.job_id}" in caplog.text


@pytest.mark.parametrize("is_json", [True, False], ids=["of another version", "no JSON"])
async def test_a_view_that_cannot_be_read_stops_no_other_and_says_what_to_do(
    tmp_path, caplog, is_json
):
    poisoned, healthy = (shirt(JobQueued, number) for number in (1, 2))
    async with (
        Database(f"sqlite:///{tmp_path}/views.db") as database,
        SqlJobViews(database, pipeline=SHIRTS) as views,
    ):
        await views.apply([poisoned])
        stored = msgspec.json.encode(
            {**msgspec.to_builtins(await views.get(poisoned.job_id)), "size": "large"}
        )
        async with database.transaction() as connection:
            view = stored if is_json else stored[:-1]
            await connection.execute(update(sql_views).values(view=view))
        changed = await views.apply([shirt(Sewn, 1), healthy])
        assert [view.job_id for view in changed] == [healthy.job_id]
        assert poisoned.job_id in caplog.text and "Delete the row" in caplog.text
        with pytest.raises(FailedPreconditionError, match=poisoned.job_id):
            await views.get(poisoned.job_id)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_how_far_a_topic_was_read_is_kept_for_the_log_it_was_read_in(
    dialect, request, tmp_path
):
    url = f"sqlite:///{tmp_path}/views.db"
    if dialect == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    async with Database(url) as database, SqlJobViews(database) as views:
        assert await views.position("events") == Position()
        far = Position(sequence=9, log="one", stored="123")
        await views.reached("events", far)
        # Of two who follow the same log the slower one holds nobody back.
        await views.reached("events", Position(sequence=5, log="one"))
        assert await views.position("events") == far
        again = Position(sequence=2, log="two", stored="456")
        await views.reached("events", again)
        assert await views.position("events") == again
        await views.reached("events", Position(sequence=3))
        assert await views.position("events") == Position(sequence=3)
        # Begun anew in a log that was restored under its old name.
        await views.reached("events", far)
        await views.reached("events", Position(log="one"))
        assert await views.position("events") == Position(log="one")
        await views.reached("events", Position(sequence=2, log="one"))
        assert await views.position("events") == Position(sequence=2, log="one")


async def test_however_many_events_come_together_they_are_one_look_and_a_write_for_old_and_new(
    tmp_path,
):
    said = []

    def note(_connection, _cursor, statement, _values, _context, many):
        if not statement.startswith(("BEGIN", "PRAGMA")):
            said.append((statement.split()[0], many))

    async with (
        Database(f"sqlite:///{tmp_path}/views.db") as database,
        SqlJobViews(database) as views,
    ):
        events = [event for number in range(300) for event in life(number, [TranscriptComplete])]
        sqlalchemy.event.listen(Engine, "before_cursor_execute", note)
        try:
            await views.apply(events[:500])
            await views.apply(events)
        finally:
            sqlalchemy.event.remove(Engine, "before_cursor_execute", note)
        look, new, old = ("SELECT", False), ("INSERT", True), ("UPDATE", False)
        # One of the jobs was known half-way when the rest of its events came.
        assert said == [look, new, look, new, old]
        assert await views.count() == 300
        assert (await views.get(events[-1].job_id)).stage is JobStage.TRANSCRIPT_COMPLETE


async def test_views_that_change_while_many_events_are_taken_in_lose_nothing(database_url):
    async with (
        Database(database_url) as database,
        Database(database_url) as elsewhere,
        SqlJobViews(database) as views,
        SqlJobViews(elsewhere) as others,
    ):
        events = [event for number in range(150) for event in life(number, [TranscriptComplete])]
        await views.apply(events[:1])
        # Of a job that is known, and of one that is not.
        theirs = [event for event in events[:6] if isinstance(event, MetadataReady)]
        with before_the_next_change(database, lambda: others.apply(theirs)):
            await views.apply([event for event in events if event not in theirs])
        assert await views.count() == 150
        for job_id in {event.job_id for event in events}:
            view = await views.get(job_id)
            assert (view.stage, view.duration) == (JobStage.TRANSCRIPT_COMPLETE, 1.0)
