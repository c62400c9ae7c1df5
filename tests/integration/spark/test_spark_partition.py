"""The messages of one task, without Spark around them."""

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import msgspec
import pytest
from sqlalchemy import Engine, event

from penstock.errors import FailedPreconditionError
from penstock.jobs import MEDIA, Done, JobStage, MediaType, Retry, load_settings
from penstock.jobs.incoming import Incoming
from penstock.jobs.pipeline.media import MEDIA_REFERENCE
from penstock.jobs.processing import Processing
from penstock.jobs.service import JobService
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import jobs
from penstock.jobs.telemetry import JobObserver
from penstock.media import MediaError
from penstock.spark.jobs.partition import Partition
from penstock.spark.jobs.places import prepare_database
from penstock.spark.jobs.workplace import Workplace
from penstock.transactional import Database
from tests.support.job_scenes import INFO

SETTINGS = load_settings(environ={})


@asynccontextmanager
async def store_in(folder):
    async with (
        Database(f"sqlite:///{folder}/jobs.db") as database,
        ProcessingJobStore(database, SETTINGS) as made,
    ):
        yield made


async def asked_for(store, *sources):
    """Jobs, and their messages as the topic would have them."""
    made = [(await JobService(store).submit("ann", MediaType.AUDIO, s))[0] for s in sources]
    encoded = [store.pipeline.codec.encode_job(record.job) for record in made]
    return [record.job.job_id for record in made], [
        Incoming("job-processing", str(one.message_id), one.attributes, one.data) for one in encoded
    ]


async def nothing():
    pass


def partition(store, handler, concurrency=4, send=nothing, **options):
    stage = replace(MEDIA.stages[0], handler=handler)
    settings = SETTINGS.stages.of(MEDIA.stages[0])
    processing = Processing(stage, settings, store, JobObserver(), unknown_fails=True, **options)
    return Partition(processing, store, concurrency, send=send)


async def stages(store, ids):
    return [(await store.get(job_id)).job.stage for job_id in ids]


async def test_every_job_is_handled_once_and_goes_on(tmp_path):
    async with store_in(tmp_path) as store:
        calls = []

        async def handler(job):
            calls.append(job.job_id)
            return Done(info=INFO)

        ids, messages = await asked_for(store, *(["a.wav"] * 9))
        await partition(store, handler).run(messages)
        assert sorted(calls) == sorted(ids)
        assert set(await stages(store, ids)) == {JobStage.METADATA_READY}
        # A batch that is run again finds what was done.
        await partition(store, handler).run(messages)
        assert len(calls) == 9


async def test_an_unknown_job_fails_the_batch_and_buries_nothing(tmp_path):
    async with store_in(tmp_path) as store:

        async def handler(job):
            return Done(info=INFO)

        ids, messages = await asked_for(store, "a.wav")
        stranger = store.pipeline.codec.decode_job(messages[0].data, messages[0].attributes)
        draft = store.pipeline.codec.encode_job(
            msgspec.structs.replace(stranger, job_id="job_" + "0" * 32)
        )
        sent = await store.outbox.pending()
        with pytest.raises(FailedPreconditionError, match="is it the one of these jobs"):
            await partition(store, handler).run(
                [Incoming("job-processing", "x", draft.attributes, draft.data)]
            )
        assert await store.outbox.pending() == sent
        assert await stages(store, ids) == [JobStage.QUEUED]


async def test_a_job_whose_last_attempt_never_ended_is_tried_after_the_others_and_alone(tmp_path):
    async with store_in(tmp_path) as store:
        order = []

        async def handler(job):
            order.append(job.job_id)
            return Done(info=INFO)

        ids, messages = await asked_for(store, "a.wav", "b.wav", "c.wav")
        record = await store.get(ids[0])
        await store.begin(record.job)
        await partition(store, handler).run(messages)
        assert sorted(order[:2]) == sorted(ids[1:]) and order[2] == ids[0]


@pytest.mark.real_time
async def test_what_cannot_be_worked_on_here_is_sent_again_and_holds_up_nobody(tmp_path):
    """Nobody brings a message of a batch back, and the attempt is not the job's."""
    async with store_in(tmp_path) as store:

        async def handler(job):
            if job.job_id == ids[1]:
                raise MediaError("configuration", "The key is refused")
            return Done(info=INFO)

        ids, messages = await asked_for(store, "a.wav", "b.wav", "c.wav")
        before = await store.outbox.pending()
        await partition(store, handler, sends_again=True).run(messages)
        ready = JobStage.METADATA_READY
        assert await stages(store, ids) == [ready, JobStage.QUEUED, ready]
        record = await store.get(ids[1])
        assert (record.attempts, record.trying) == (0, False)
        # Two events, two jobs for the next stage, and the one that is to come again.
        assert await store.outbox.pending() == before + 5


@pytest.mark.parametrize("others", [2, 120])
async def test_a_job_at_an_unknown_stage_is_put_off_and_holds_up_nobody(tmp_path, caplog, others):
    """Another program took it further than this one can follow; a worker leaves it alone, too."""
    async with store_in(tmp_path) as store:

        async def handler(job):
            return Done(info=INFO)

        ids, messages = await asked_for(store, *(["a.wav"] * (others + 1)))
        strange, *plain = ids
        async with store.database.transaction() as connection:
            await connection.execute(
                jobs.update().where(jobs.c.job_id == strange).values(stage="Summarised")
            )
        before = await store.outbox.pending()
        for _ in range(2):
            await partition(store, handler).run(messages)
        assert set(await stages(store, plain)) == {JobStage.METADATA_READY}
        with pytest.raises(FailedPreconditionError, match="is Summarised"):
            await store.get(strange)
        # An event and a message for each; and that of the other, once: again it has the same id.
        assert await store.outbox.pending() == before + 2 * others + 1
        assert f"Job {strange} is Summarised" in caplog.text


async def test_a_failure_that_may_pass_is_sent_again_and_counted(tmp_path):
    async with store_in(tmp_path) as store:

        async def handler(job):
            return Retry("busy")

        ids, messages = await asked_for(store, "a.wav")
        before = await store.outbox.pending()
        await partition(store, handler).run(messages)
        record = await store.get(ids[0])
        assert (record.job.stage, record.attempts, record.trying) == (JobStage.QUEUED, 1, False)
        assert await store.outbox.pending() == before + 1


@contextmanager
def commits():
    """The connections that committed meanwhile."""
    those = []

    def note(connection):
        those.append(connection)

    event.listen(Engine, "commit", note)
    try:
        yield those
    finally:
        event.remove(Engine, "commit", note)


async def test_jobs_that_are_quickly_done_cost_two_transactions_however_many_they_are(tmp_path):
    async with store_in(tmp_path) as store:
        ids, messages = await asked_for(store, *(["a.wav"] * 40))

        async def handler(job):
            return Done(info=INFO) if job.job_id in ids[:20] else Retry("busy")

        with commits() as those:
            await partition(store, handler).run(messages)
        # One counts the attempts, one keeps what came of them.
        assert len(those) == 2
        assert await stages(store, ids) == [
            *([JobStage.METADATA_READY] * 20),
            *([JobStage.QUEUED] * 20),
        ]


async def test_what_took_a_while_is_kept_before_more_is_begun(tmp_path):
    async with store_in(tmp_path) as store:
        ids, messages = await asked_for(store, "a.wav", "b.wav", "c.wav")
        before = []

        async def handler(job):
            before.append(len(those))
            time.sleep(0.15)  # noqa: ASYNC251 - a handler that computes
            return Done(info=INFO)

        with commits() as those:
            await partition(store, handler, concurrency=1).run(messages)
        assert before == [1, 2, 3]
        assert set(await stages(store, ids)) == {JobStage.METADATA_READY}


async def test_an_outcome_that_cannot_be_kept_fails_the_batch_and_keeps_the_others(tmp_path):
    async with store_in(tmp_path) as store:
        ids, messages = await asked_for(store, "a.wav", "b.wav", "c.wav")
        add_new = store.outbox.add_new

        async def refuse_one(connection, topic, drafts):
            if ids[1] in {draft.attributes["jobId"] for draft in drafts}:
                raise FailedPreconditionError("This one cannot be kept")
            await add_new(connection, topic, drafts)

        async def handler(job):
            return Done(info=INFO)

        store.outbox.add_new = refuse_one
        with pytest.raises(FailedPreconditionError, match="This one cannot be kept"):
            await partition(store, handler).run(messages)
        ready, queued = JobStage.METADATA_READY, JobStage.QUEUED
        assert await stages(store, ids) == [ready, queued, ready]


class Broken(BaseException):
    """Nothing that a handler may raise."""


async def test_whatever_breaks_the_batch_does_not_lose_what_was_done_before(tmp_path):
    async with store_in(tmp_path) as store:
        ids, messages = await asked_for(store, "a.wav", "b.wav")

        async def handler(job):
            if job.job_id == ids[1]:
                raise Broken
            return Done(info=INFO)

        with pytest.raises(BaseExceptionGroup) as raised:
            await partition(store, handler, concurrency=1).run(messages)
        assert raised.group_contains(Broken)
        assert await stages(store, ids) == [JobStage.METADATA_READY, JobStage.QUEUED]


@pytest.mark.parametrize(
    ("stage", "media"),
    [
        ("metadata", {"root": None}),
        ("metadata", {"root": "/nowhere/at/all"}),
        ("transcription", {"root": "/", "model": "/nowhere/at/all"}),
    ],
)
def test_a_stage_that_cannot_work_where_its_task_runs_fails_the_batch_and_no_job(
    tmp_path, stage, media
):
    settings = load_settings(environ={}, database=f"sqlite:///{tmp_path}/jobs.db", media=media)

    async def asked():
        async with store_in(tmp_path) as store:
            return await asked_for(store, "a.wav")

    async def kept(ids):
        async with store_in(tmp_path) as store:
            return [await store.get(job_id) for job_id in ids]

    identity = asyncio.run(prepare_database(settings))
    ids, messages = asyncio.run(asked())
    workplace = Workplace(settings.to_json(), MEDIA_REFERENCE, identity)
    try:
        for _ in range(7):
            with pytest.raises(MediaError, match="configuration"):
                workplace.runner().run(stage, messages)
    finally:
        workplace.leave()
    (record,) = asyncio.run(kept(ids))
    assert (record.job.stage, record.attempts) == (JobStage.QUEUED, 0)


@pytest.mark.real_time
async def test_what_a_quick_job_says_is_sent_while_a_slow_one_is_worked_on(tmp_path):
    async with store_in(tmp_path) as store:
        ids, messages = await asked_for(store, "quick.wav", "slow.wav")
        sent = asyncio.Event()

        async def handler(job):
            if job.job_id == ids[1]:
                await sent.wait()
            return Done(info=INFO)

        async def send():
            if JobStage.METADATA_READY in await stages(store, ids):
                sent.set()

        await partition(store, handler, send=send).run(messages)
        assert await stages(store, ids) == [JobStage.METADATA_READY] * 2


async def test_what_was_kept_is_sent_though_the_batch_fails(tmp_path):
    async with store_in(tmp_path) as store:
        sent = []

        async def handler(job):
            return Done(info=INFO)

        async def send():
            sent.append(await store.outbox.pending())

        _, messages = await asked_for(store, "a.wav")
        stranger = msgspec.structs.replace(messages[0], data=b"no job", message_id="stranger")
        store.begin_together = None
        with pytest.raises(TypeError):
            await partition(store, handler, send=send).run([stranger, *messages])
        assert sent == [3]
