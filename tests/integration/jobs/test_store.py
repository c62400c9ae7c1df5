"""The store: idempotent by job id, changed by legal and expected steps only."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest
from sqlalchemy import select

from penstock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.jobs import (
    AudioJob,
    Done,
    JobStage,
    ProcessingJobStore,
    YouTubeJob,
    idempotent,
)
from penstock.jobs.model.job import new_job_id, new_media_id, now
from penstock.jobs.store.records import NewJob, Step
from penstock.testing.waiting import eventually
from penstock.transactional import Database
from penstock.transactional.outbox_table import table as outbox
from tests.support.job_samples import JOBS
from tests.support.job_scenes import INFO, TEXT
from tests.support.statements import before_the_next_change, statements_of

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def store_on(url):
    async with Database(url) as database, ProcessingJobStore(database) as store:
        yield store


def new_job(**more):
    fields = {
        "job_id": new_job_id("user-1"),
        "user_id": "user-1",
        "media_id": new_media_id(),
        "created_at": now(),
    }
    return AudioJob(**{**fields, **more})


async def create(store, job, source="a.wav", **more):
    async with store.database.transaction() as connection:
        (answer,) = await store.create(connection, [NewJob(job=job, source=source, **more)])
    if isinstance(answer, Exception):
        raise answer
    return answer


def asked_again(job, **more):
    """The same job as another request would make it."""
    return msgspec.structs.replace(job, media_id=new_media_id(), **more)


async def take(store, job, to):
    async with store.database.transaction() as connection:
        (answer,) = await store.take(connection, [Step(job=job, to=to)])
    return answer


async def advance(store, job, to, done=Done(info=INFO)):  # noqa: B008
    return await store.step(Step(job=job, to=to, done=done))


def failing(job, reason, attempts):
    return Step(job=job, to=JobStage.FAILED, reason=reason, attempts=attempts)


async def test_new_jobs_are_not_read_back(database_url):
    async with store_on(database_url) as store:
        new = [NewJob(job=new_job(), source="a.wav", title="A", request="r") for _ in range(20)]
        async with store.database.transaction() as connection:
            with statements_of(store.database) as told:
                answers = await store.create(connection, new)
            kept = await store.find(connection, [one.job.job_id for one in new])
        assert not [one for one in told if one.startswith("SELECT")]
        assert [created for _, created in answers] == [True] * 20
        assert {record.job.job_id: record for record, _ in answers} == kept


async def test_of_jobs_that_come_together_each_is_told_whether_it_was_there(database_url):
    async with store_on(database_url) as store:
        known, fresh = new_job(), new_job()
        await create(store, known)
        wanted = [asked_again(known), fresh, asked_again(fresh), new_job()]
        async with store.database.transaction() as connection:
            news = [NewJob(job=job, source="a.wav") for job in wanted]
            answers = await store.create(connection, news)
        assert [created for _, created in answers] == [False, True, False, True]


async def test_a_job_is_kept_as_it_is(database_url):
    async with store_on(database_url) as store:
        for kind, sample in JOBS.items():
            job = msgspec.structs.replace(
                sample, job_id=new_job_id("usr_42"), stage=JobStage.QUEUED, run=1, info=None
            )
            record, created = await create(store, job, f"{kind}.bin")
            assert created
            assert record.job == job
            assert (await store.get(job.job_id)) == record
            assert isinstance(job, YouTubeJob) is (kind == "youtube")


async def test_req_1_7_creating_a_job_twice_creates_it_once(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        first, created = await create(store, job, request="digest")
        second, created_again = await create(store, asked_again(job), request="digest")
        assert (created, created_again) == (True, False)
        assert second == first


async def test_the_same_id_for_something_else_is_refused(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job, request="digest")
        with pytest.raises(AlreadyExistsError):
            await create(store, asked_again(job), request="another")
        with pytest.raises(AlreadyExistsError):
            await create(store, asked_again(job, user_id="user-2"), request="digest")


async def test_many_who_create_the_same_job_at_once_create_it_once(database_url):
    async with store_on(database_url) as one, store_on(database_url) as other:
        job = new_job()
        answers = await asyncio.gather(
            *(create(store, asked_again(job), request="d") for store in (one, other) * 10)
        )
        assert sum(created for _, created in answers) == 1
        assert len({record.job.media_id for record, _ in answers}) == 1


async def test_a_step_is_taken_once(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job)
        answers = await asyncio.gather(
            *(advance(store, job, JobStage.METADATA_READY) for _ in range(10))
        )
        taken = [answer for answer in answers if answer is not None]
        assert len(taken) == 1
        assert taken[0].version == 2
        assert taken[0].job.info == INFO


async def test_a_step_of_a_run_that_is_over_changes_nothing(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job)
        failed = await store.step(failing(job, "malformed", 2))
        assert (failed.reason, failed.attempts) == ("malformed", 2)
        again = await take(store, failed.job, JobStage.QUEUED)
        assert (again.job.run, again.job.stage, again.reason) == (2, JobStage.QUEUED, None)
        assert await advance(store, job, JobStage.METADATA_READY) is None
        assert (await store.get(job.job_id)) == again


async def test_an_illegal_step_is_refused_before_the_database_is_asked(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job)
        with pytest.raises(InvalidArgumentError, match="may become Cancelled, Failed, MetadataRe"):
            await advance(store, job, JobStage.TRANSCRIPT_COMPLETE)


async def test_a_transcript_is_kept_with_the_step_that_completes_the_job(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job)
        ready = await advance(store, job, JobStage.METADATA_READY)
        done = await advance(store, ready.job, JobStage.TRANSCRIPT_COMPLETE, Done(text=TEXT))
        assert await store.text(job.job_id) == TEXT
        assert (done.language, done.segments, done.characters) == ("en", 1, 11)
        late = Done(text=msgspec.structs.replace(TEXT, language="fr"))
        assert await advance(store, ready.job, JobStage.TRANSCRIPT_COMPLETE, late) is None
        assert await store.text(job.job_id) == TEXT


async def test_steps_of_many_jobs_are_taken_together_each_for_itself(database_url):
    async with store_on(database_url) as store:
        made = [new_job() for _ in range(30)]
        for job in made[:20]:
            await create(store, job)
        answers = await asyncio.gather(
            *(store.step(failing(job, f"reason-{n}", n)) for n, job in enumerate(made))
        )
        assert [answer is not None for answer in answers] == [True] * 20 + [False] * 10
        for number, job in enumerate(made[:20]):
            kept = await store.get(job.job_id)
            assert (kept.reason, kept.attempts) == (f"reason-{number}", number)


async def test_who_knows_a_job_takes_its_step_without_reading_it_again(database_url):
    async with store_on(database_url) as store:
        made = [new_job() for _ in range(3)]
        for job in made:
            await create(store, job, title="A")
        begun, _ = await store.begin_together(made)
        steps = [
            Step(job=j, to=JobStage.METADATA_READY, done=Done(info=INFO), known=begun[j.job_id])
            for j in made
        ]
        with statements_of(store.database) as told:
            taken, _ = await store.end_together(steps, [])
        assert not [one for one in told if one.startswith("SELECT")]
        for record in taken:
            assert await store.get(record.job.job_id) == record
            assert (record.title, record.trying, record.version) == ("A", False, 2)


async def test_what_was_known_of_a_job_is_not_what_is_kept_once_something_was_said_of_it(
    database_url,
):
    async with store_on(database_url) as store:
        gone, again, same = made = [new_job() for _ in range(3)]
        for job in made:
            await create(store, job)
        begun, _ = await store.begin_together(made)
        await advance(store, gone, JobStage.CANCELLED, Done())
        await store.try_again(again, 0.0)
        # Counting an attempt says nothing: somebody else has the message as well.
        await store.begin(same)
        steps = [
            Step(job=job, to=JobStage.METADATA_READY, done=Done(info=INFO), known=begun[job.job_id])
            for job in made
        ]
        taken, _ = await store.end_together(steps, [])
        assert taken[0] is None
        assert [record.version for record in taken[1:]] == [3, 2]
        kept = [await store.get(job.job_id) for job in made]
        assert [one.job.stage for one in kept] == [
            JobStage.CANCELLED, JobStage.METADATA_READY, JobStage.METADATA_READY,
        ]  # fmt: skip
        assert [one.trying for one in kept] == [False] * 3


async def said_of(store):
    """How many messages wait in the outbox, by job."""
    query = select(outbox.c.message_id)
    async with store.database.transaction(reading=True) as connection:
        found = (await connection.scalars(query)).all()
    return Counter(message_id.split(".")[0] for message_id in found)


MANY = 150  # More than are begun under locks.


async def test_many_jobs_are_begun_in_a_transaction_that_only_writes(database_url):
    async with store_on(database_url) as store:
        made = [new_job() for _ in range(MANY)]
        await store.add_many([NewJob(job=job, source="a.wav") for job in made])
        await store.begin(made[0])
        with statements_of(store.database) as told:
            begun, suspects = await store.begin_together(made)
        kinds = [one.split()[0] for one in told if one.startswith(("SELECT", "UPDATE"))]
        assert kinds == ["SELECT", "UPDATE"]
        assert suspects == {made[0].job_id}
        for job in made[1:4]:
            kept = await store.get(job.job_id)
            assert begun[job.job_id] == kept
            assert (kept.attempts, kept.trying) == (1, True)


async def test_a_job_that_changes_while_many_are_begun_is_seen_as_it_is_then(database_url):
    async with store_on(database_url) as store, store_on(database_url) as other:
        made = [new_job() for _ in range(MANY)]
        await store.add_many([NewJob(job=job, source="a.wav") for job in made])

        async def change():
            await other.begin(made[7])
            await advance(other, made[8], JobStage.CANCELLED, Done())

        with before_the_next_change(store.database, change):
            begun, suspects = await store.begin_together(made)
        assert suspects == {made[7].job_id}
        assert begun[made[8].job_id].job.stage is JobStage.CANCELLED
        attempts = [(await store.get(job.job_id)).attempts for job in made[6:10]]
        assert attempts == [1, 1, 0, 1]


async def test_a_step_of_a_job_that_was_cancelled_meanwhile_is_the_only_one_not_taken(database_url):
    async with store_on(database_url) as store, store_on(database_url) as other:
        made = [new_job() for _ in range(5)]
        await store.add_many([NewJob(job=job, source="a.wav") for job in made])
        begun, _ = await store.begin_together(made)
        to, done = JobStage.METADATA_READY, Done(info=INFO)
        steps = [Step(job=job, to=to, done=done, known=begun[job.job_id]) for job in made]

        async def change():
            await advance(other, made[2], JobStage.CANCELLED, Done())

        with before_the_next_change(store.database, change):
            taken, _ = await store.end_together(steps, [])
        assert [record is not None for record in taken] == [True, True, False, True, True]
        kept = [(await store.get(job.job_id)).job.stage for job in made]
        assert kept == [to, to, JobStage.CANCELLED, to, to]
        # Of what was to be said of it, nothing was.
        assert await said_of(store) == {job.job_id: 4 for job in made if job != made[2]} | {
            made[2].job_id: 3
        }


async def test_a_batch_waits_for_a_job_without_keeping_others_from_theirs(database_url):
    async with store_on(database_url) as store, store_on(database_url) as other:
        first, second = sorted((new_job() for _ in range(2)), key=lambda job: job.job_id)
        await store.add_many([NewJob(job=job, source="a.wav") for job in (first, second)])
        begun, _ = await store.begin_together([first, second])
        known = begun[second.job_id]
        step = Step(job=second, to=JobStage.METADATA_READY, done=Done(info=INFO), known=known)
        with statements_of(store.database) as told:
            async with other.database.transaction() as connection:
                await other.find(connection, [first.job_id], lock=True)
                ending = asyncio.ensure_future(store.end_together([step], [(first, 0.0)]))
                await eventually(lambda: any("FOR UPDATE" in s or "IMMEDIATE" in s for s in told))
                assert await other.find(connection, [second.job_id], lock=True)
            taken, postponed = await ending
        assert taken[0] is not None and postponed == [True]


async def test_a_job_that_takes_two_steps_at_once_takes_the_first(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job)
        begun, _ = await store.begin_together([job])
        step = Step(
            job=job, to=JobStage.METADATA_READY, done=Done(info=INFO), known=begun[job.job_id]
        )
        taken, _ = await store.end_together([step, step], [])
        assert [record is not None for record in taken] == [True, False]


async def test_a_retried_job_has_no_text(database_url):
    async with store_on(database_url) as store:
        job = new_job()
        await create(store, job)
        ready = await advance(store, job, JobStage.METADATA_READY)
        cancelled = await take(store, ready.job, JobStage.CANCELLED)
        again = await take(store, cancelled.job, JobStage.QUEUED)
        assert (again.job.info, again.job.run) == (None, 2)
        assert await store.text(job.job_id) is None


async def test_req_1_8_an_idempotent_handler_is_called_for_work_that_is_due_only(database_url):
    async with store_on(database_url) as store:
        calls = []

        @idempotent(store)
        async def handler(job):
            calls.append(job.stage)
            await advance(store, job, JobStage.METADATA_READY)
            return "handled"

        job = new_job()
        await create(store, job)
        assert await handler(job) == "handled"
        assert await handler(job) is None
        assert calls == [JobStage.QUEUED]
        with pytest.raises(NotFoundError):
            await handler(new_job())


async def test_two_processes_may_create_the_tables_at_once(database_url):
    async def one():
        async with store_on(database_url) as store:
            return await create(store, new_job())

    answers = await asyncio.gather(*(one() for _ in range(4)))
    assert all(created for _, created in answers)


async def test_what_is_done_together_shares_the_transaction_of_what_changes(database_url):
    told, seen = [], []
    job = new_job()

    async def work(connection):
        seen.append((list(await store.find(connection, [job.job_id])), len(told)))

    async with Database(database_url) as database:
        async with ProcessingJobStore(database, on_commit=lambda: told.append("")) as store:
            await store.do_together(work)
            assert not told and seen.pop() == ([], 0)
            adding = asyncio.ensure_future(store.add(NewJob(job=job, source="a.wav")))
            await asyncio.gather(adding, store.do_together(work))
    assert seen == [([job.job_id], 0)] and told == [""]


async def test_what_is_done_together_waits_for_no_other_transaction(database_url):
    """There may be more changes than one takes, and more of them all the time."""
    told = []

    async def work(_):
        told.append("work")

    async with Database(database_url) as database:
        async with ProcessingJobStore(database, on_commit=lambda: told.append("changes")) as store:
            adding = [store.add(NewJob(job=new_job(), source="a.wav")) for _ in range(600)]
            await asyncio.gather(*adding, store.do_together(work))
    assert told[0] == "work" and told.count("changes") > 1
