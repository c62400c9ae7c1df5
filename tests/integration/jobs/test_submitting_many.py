"""Many jobs asked for at once: one transaction, and each answered for itself."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock import PubSub
from penstock.errors import AlreadyExistsError, InvalidArgumentError
from penstock.jobs import JobService, JobStage, JobWish, MediaType, ProcessingJobStore
from penstock.transactional import Database, Relay
from tests.support.statements import statements_of

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def service_on(url):
    async with Database(url) as database, ProcessingJobStore(database) as store:
        yield JobService(store)


def wish(source="a.wav", **more):
    return JobWish(media_type=MediaType.AUDIO, source=source, **more)


async def test_many_jobs_are_one_transaction_and_two_messages_each(database_url):
    async with service_on(database_url) as service:
        wishes = [wish(f"{n}.wav", title=f"T{n}", correlation_id=f"c{n}") for n in range(300)]
        with statements_of(service.store.database) as told:
            answers = await service.submit_many("user-1", wishes)
        assert len([one for one in told if one.startswith("INSERT INTO penstock_jobs")]) == 1
        assert all(created for _, created in answers)
        assert len({record.job.job_id for record, _ in answers}) == 300
        for number in (0, 299):
            record, _ = answers[number]
            kept = await service.store.get(record.job.job_id)
            assert kept == record
            assert (kept.source, kept.title) == (f"{number}.wav", f"T{number}")
            assert (kept.job.user_id, kept.job.correlation_id) == ("user-1", f"c{number}")
            assert kept.job.stage is JobStage.QUEUED
        assert await service.store.outbox.pending() == 600


async def test_a_key_that_was_used_is_answered_with_its_job_or_its_conflict(database_url):
    async with service_on(database_url) as service:
        first, _ = await service.submit("user-1", MediaType.AUDIO, "a.wav", client_key="k")
        same, other, fresh = await service.submit_many(
            "user-1", [wish(client_key="k"), wish("b.wav", client_key="k"), wish()]
        )
        assert same == (first, False)
        assert isinstance(other, AlreadyExistsError)
        assert fresh[1]
        assert await service.store.outbox.pending() == 4


async def test_one_that_can_be_no_job_keeps_all_of_them_out(database_url):
    async with service_on(database_url) as service:
        wrong = JobWish(media_type=MediaType.YOUTUBE, source="no video")
        with pytest.raises(InvalidArgumentError, match=r"^Job 2 of 3: "):
            await service.submit_many("user-1", [wish(), wrong, wish()])
        with pytest.raises(InvalidArgumentError, match="1,001 jobs are too many"):
            await service.submit_many("user-1", [wish()] * 1001)
        assert await service.store.outbox.pending() == 0
        assert await service.submit_many("user-1", []) == []


async def test_a_key_that_comes_twice_in_one_request_is_one_job(database_url):
    async with service_on(database_url) as service:
        first, again, other = await service.submit_many(
            "user-1", [wish(client_key="k"), wish(client_key="k"), wish("b.wav", client_key="k")]
        )
        assert (first[1], again) == (True, (first[0], False))
        assert isinstance(other, AlreadyExistsError)
        assert await service.store.outbox.pending() == 2


async def test_two_who_ask_for_the_same_jobs_the_other_way_round_are_both_answered(database_url):
    async with service_on(database_url) as one, service_on(database_url) as other:
        for number in range(3):
            wishes = [wish(client_key=f"{number}-{n}") for n in range(300)]
            async with asyncio.TaskGroup() as group:
                here = group.create_task(one.submit_many("user-1", wishes))
                there = group.create_task(other.submit_many("user-1", wishes[::-1]))
            jobs = [record.job for record, _ in here.result()]
            assert jobs == [record.job for record, _ in reversed(there.result())]


async def test_a_job_that_is_retried_before_its_message_is_sent_has_one_message(database_url):
    async with Database(database_url) as database, PubSub() as pubsub:
        outbox = Relay(database, pubsub).held_outbox()
        async with ProcessingJobStore(database, outbox=outbox) as store:
            service = JobService(store)
            record, _ = await service.submit("user-1", MediaType.AUDIO, "a.wav")
            assert await outbox.pending() == 2
            await service.retry(record.job.job_id)
            assert await outbox.pending() == 2


async def test_those_who_ask_for_many_at_once_are_a_transaction_each(database_url):
    """And what others do need not wait for all of them."""
    async with service_on(database_url) as service:
        with statements_of(service.store.database) as told:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(service.submit_many("user-1", [wish()] * 200))
                group.create_task(service.submit("user-1", MediaType.AUDIO, "a.wav"))
        made = [one for one in told if one.startswith("INSERT INTO penstock_jobs")]
        assert len(made) == 4
        assert await service.store.outbox.pending() == 2 * 601
