"""Jobs from request to transcript, on every broker and database: seed 004, by its numbers."""

import asyncio
import dataclasses
import logging
import random
from collections import Counter
from contextlib import suppress

import msgspec
import pytest

from penstock import Backoff, Draft, LeaseExtension, PubSub
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from penstock.jobs import (
    MEDIA,
    AudioJob,
    Done,
    JobStage,
    MediaType,
    Reject,
    Retry,
    VideoInfo,
    decode_event,
    decode_job,
    encode_job,
    job_system,
    load_settings,
)
from penstock.jobs.store.records import Step
from penstock.jobs.views import projection
from penstock.retrying import Persistence
from penstock.transactional import Outbox
from penstock.transactional.outbox_table import table as outbox_table
from tests.support.job_scenes import INFO, TEXT, Scene, impatient, jobs_on, looks, until

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]
COMPLETE = JobStage.TRANSCRIPT_COMPLETE
VIDEO_INFO = VideoInfo(duration=2.5, size=1000, container="mp4", codec="h264")


async def test_req_1_9_to_1_12_a_job_goes_from_request_to_transcript(place):
    async with jobs_on(place) as scene, scene.working():
        record = await scene.submit(correlation_id="order-7")
        view = await scene.ended(record.job.job_id)
        assert view.stage is COMPLETE
        assert (view.duration, view.language, view.characters) == (2.5, "en", 11)
        assert await scene.system.store.text(record.job.job_id) == TEXT
        work = await scene.stored("job-processing")
        events = await scene.stored("job-events")
        assert [decode_job(r.data, r.attributes).stage for r in work] == [
            JobStage.QUEUED,
            JobStage.METADATA_READY,
        ]
        assert [type(decode_event(r.data, r.attributes)).__name__ for r in events] == [
            "JobQueued",
            "MetadataReady",
            "TranscriptComplete",
        ]
        assert {r.attributes["correlationId"] for r in (*work, *events)} == {"order-7"}
        assert decode_job(work[1].data, work[1].attributes).info == INFO


async def test_req_1_6_each_stage_gets_the_jobs_its_filter_names(place):
    async with jobs_on(place) as scene, scene.working(transcription=None):
        record = await scene.submit()
        await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
        async with scene.working(metadata=None):
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert sum(scene.calls.values()) == 2


async def test_req_1_6_4_2_filters_are_settings(place):
    only_audio = 'attributes.stage = "Queued" AND attributes.mediaType = "audio"'
    stages = {"metadata": {"filter": only_audio}}
    async with jobs_on(place, stages=stages) as scene, scene.working(transcription=None):
        document = await scene.submit("a.txt", media_type=MediaType.DOCUMENT)
        audio = await scene.submit()
        await scene.view_at(audio.job.job_id, JobStage.METADATA_READY)
        view = await scene.view_at(document.job.job_id, JobStage.QUEUED)
        assert view.stage is JobStage.QUEUED
        assert list(scene.calls) == [f"metadata {audio.job.job_id}"]


async def test_req_4_1_media_with_a_topic_of_its_own_is_worked_on_as_well(place):
    async with jobs_on(place, topics={"media": {"video": "video-processing"}}) as scene:
        async with scene.working():
            video = await scene.submit("a.mp4", media_type=MediaType.VIDEO)
            assert (await scene.ended(video.job.job_id)).stage is COMPLETE
            assert len(await scene.stored("video-processing")) == 2
            assert await scene.stored("job-processing") == []


async def test_req_1_11_media_that_cannot_be_used_fails_the_job_and_is_no_dead_letter(place):
    async def refuses(_):
        return Reject("malformed")

    async with jobs_on(place) as scene, scene.working(metadata=refuses):
        record = await scene.submit()
        view = await scene.ended(record.job.job_id)
        assert (view.stage, view.reason, view.attempts) == (JobStage.FAILED, "malformed", 1)
        assert await scene.stored("job-processing-dead") == []


async def test_req_1_13_5_3_a_job_that_is_given_up_fails_and_is_kept_as_a_dead_letter(place):
    async def busy(_):
        return Retry("busy")

    async with jobs_on(place, stages=impatient(max_attempts=3)) as scene:
        async with scene.working(metadata=busy, max_attempts=3):
            record = await scene.submit()
            view = await scene.ended(record.job.job_id)
            assert (view.stage, view.reason, view.attempts) == (JobStage.FAILED, "busy", 3)
            assert scene.calls[f"metadata {record.job.job_id}"] == 3
            dead = await scene.dead_letters(1)
            assert dead[0].attributes["jobId"] == record.job.job_id


async def test_req_1_13_a_job_that_fails_at_first_is_tried_again(place):
    tries = []

    async def shaky(_):
        tries.append(True)
        return Done(info=INFO) if len(tries) == 3 else Retry("busy", after=0.0)

    async with jobs_on(place, stages=impatient()) as scene, scene.working(metadata=shaky):
        record = await scene.submit()
        assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert len(tries) == 3


async def test_an_event_says_how_long_its_work_took_and_how_often_it_was_tried_before(quick):
    tries = []

    async def shaky(_):
        tries.append(True)
        await asyncio.sleep(0.05)
        return Done(info=INFO) if len(tries) == 3 else Retry("busy", after=0.0)

    async with jobs_on(quick, stages=impatient()) as scene, scene.working(metadata=shaky):
        record = await scene.submit()
        await scene.ended(record.job.job_id)
        events = [decode_event(r.data, r.attributes) for r in await scene.stored("job-events")]
    queued, ready, complete = events
    assert (queued.took, queued.retries) == (None, 0)
    assert (ready.took >= 0.04, ready.retries) == (True, 2)
    assert (complete.took >= 0, complete.retries) == (True, 0)


@pytest.mark.parametrize("invalid", ["dead-letter", "retry"])
async def test_req_1_5_what_does_not_decode_is_dealt_with_as_configured(place, invalid):
    stages = impatient(invalid=invalid, max_attempts=1)
    async with jobs_on(place, stages=stages) as scene, scene.working():
        broker = await scene.system.pubsub.broker()
        strangers = [
            Draft.of(b"not a job", {"stage": "Queued", "mediaType": "audio"}, message_id="s-1"),
            Draft.of(b"{}", {"stage": "Queued", "schemaVersion": "9"}, message_id="s-2"),
        ]
        await broker.publish("job-processing", strangers)
        record = await scene.submit()
        assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        dead = await scene.dead_letters(2)
        assert {letter.data for letter in dead} == {b"not a job", b"{}"}
        assert sum(scene.calls.values()) == 2


async def test_req_5_3_a_message_that_comes_again_changes_nothing(place):
    async with jobs_on(place) as scene, scene.working():
        record = await scene.submit()
        await scene.ended(record.job.job_id)
        kept = await scene.system.store.get(record.job.job_id)
        broker = await scene.system.pubsub.broker()
        again = encode_job(record.job)
        repeated = Draft.of(again.data, again.attributes, message_id="a-copy")
        await broker.publish("job-processing", [repeated])
        other = await scene.submit()
        await scene.ended(other.job.job_id)
        assert await scene.system.store.get(record.job.job_id) == kept
        assert scene.calls[f"metadata {record.job.job_id}"] == 1
        ids = [r.message_id for r in await scene.stored("job-events")]
        assert len(ids) == len(set(ids)) == 6


async def test_req_1_7_asking_twice_with_a_key_is_asking_once(place):
    async with jobs_on(place) as scene, scene.working():
        answers = await asyncio.gather(*(scene.submit(client_key="key") for _ in range(10)))
        assert len({record.job.job_id for record in answers}) == 1
        await scene.ended(answers[0].job.job_id)
        assert len(await scene.stored("job-processing")) == 2
        with pytest.raises(Exception, match="asked for differently"):
            await scene.submit("other.wav", client_key="key")


async def test_a_job_can_be_cancelled_and_its_handler_is_too(place, monkeypatch):
    monkeypatch.setattr("penstock.jobs.processing._CANCEL_CHECK", 0.05)
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(_):
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with jobs_on(place) as scene, scene.working(metadata=slow):
        record = await scene.submit()
        async with asyncio.timeout(20):
            await started.wait()
            cancelled = await scene.ingestion.service.cancel(record.job.job_id, "user-1")
            await stopped.wait()
        assert cancelled.job.stage is JobStage.CANCELLED
        assert (await scene.ended(record.job.job_id)).stage is JobStage.CANCELLED
        again = await scene.ingestion.service.cancel(record.job.job_id, "user-1")
        assert again == cancelled


async def test_a_job_that_failed_can_be_run_anew(place):
    tries = []

    async def fails_once(_):
        tries.append(True)
        return Reject("malformed") if len(tries) == 1 else Done(info=INFO)

    async with jobs_on(place) as scene, scene.working(metadata=fails_once):
        record = await scene.submit()
        assert (await scene.ended(record.job.job_id)).stage is JobStage.FAILED
        await scene.ingestion.service.retry(record.job.job_id, "user-1")
        view = await scene.ended(record.job.job_id, run=2)
        assert (view.stage, view.reason) == (COMPLETE, None)
        with pytest.raises(FailedPreconditionError, match="cannot be retried"):
            await scene.ingestion.service.retry(record.job.job_id)
        with pytest.raises(FailedPreconditionError, match="cannot be cancelled"):
            await scene.ingestion.service.cancel(record.job.job_id)


async def test_nobody_can_change_the_job_of_another(quick):
    async with jobs_on(quick) as scene:
        record = await scene.submit()
        for change in (scene.ingestion.service.cancel, scene.ingestion.service.retry):
            with pytest.raises(NotFoundError):
                await change(record.job.job_id, "user-2")


async def test_a_message_of_an_earlier_run_is_dropped(quick):
    async with jobs_on(quick) as scene:
        record = await scene.submit()
        await scene.ingestion.service.cancel(record.job.job_id)
        await scene.ingestion.service.retry(record.job.job_id)
        async with scene.working():
            view = await scene.ended(record.job.job_id, run=2)
        assert view.stage is COMPLETE
        assert scene.calls[f"metadata {record.job.job_id}"] == 1


async def test_req_5_3_no_more_handlers_run_than_the_concurrency_allows(place):
    running, most = 0, 0

    async def counts(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return Done(info=INFO)

    stages = {"metadata": {"concurrency": 3}}
    async with jobs_on(place, stages=stages) as scene:
        async with scene.working(metadata=counts, transcription=None):
            records = await asyncio.gather(*(scene.submit() for _ in range(15)))
            for record in records:
                await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
    assert most == 3


@pytest.mark.parametrize("extended", [True, False])
async def test_req_2_6_a_long_handler_keeps_its_message(quick, extended, monkeypatch):
    """The broker lends it for half a second; the handler takes three times as long."""
    if not extended:
        monkeypatch.setattr(LeaseExtension, "pause", lambda *_: 60.0)

    def short(settings):
        metadata = msgspec.structs.replace(
            settings.stages.metadata, ack_deadline=0.5, extension_interval=0.1
        )
        stages = msgspec.structs.replace(settings.stages, metadata=metadata)
        return msgspec.structs.replace(settings, stages=stages)

    async with jobs_on(quick, change=short) as scene:
        deliveries = []

        async def slow(_):
            deliveries.append(True)
            await asyncio.sleep(1.5)
            while not extended and len(deliveries) == 1:
                await asyncio.sleep(0.05)
            return Done(info=INFO)

        async with scene.working(metadata=slow, transcription=None):
            record = await scene.submit()
            await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
        assert (len(deliveries) == 1) is extended


async def test_req_4_4_a_worker_that_is_left_gives_its_jobs_back(place):
    started = asyncio.Event()

    async def never(_):
        started.set()
        await asyncio.sleep(3600)

    async with jobs_on(place, stages=impatient(drain=0.05)) as scene:
        record = await scene.submit()
        async with scene.working(metadata=never, transcription=None):
            await started.wait()
        async with scene.working():
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE


async def test_a_job_whose_result_was_kept_but_not_said_is_said_when_its_message_returns(quick):
    """What a worker leaves that dies between the database and the broker."""
    async with jobs_on(quick) as scene:
        record = await scene.submit()
        store = scene.system.store
        done = Done(info=INFO)
        await store.step(Step(job=record.job, to=JobStage.METADATA_READY, done=done))
        async with scene.working():
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert scene.calls[f"metadata {record.job.job_id}"] == 0
        kinds = [r.attributes["stage"] for r in await scene.stored("job-events")]
        assert kinds == ["Queued", "MetadataReady", "TranscriptComplete"]


async def test_the_outbox_is_cleaned_again_after_an_error_that_nobody_foresaw(quick, monkeypatch):
    calls, again = 0, asyncio.Event()

    async def clean(*_):
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        again.set()

    monkeypatch.setattr(Outbox, "clean", clean)
    async with jobs_on(quick):
        await asyncio.wait_for(again.wait(), 30)


async def test_a_job_of_another_database_is_given_up_not_invented(quick):
    async with jobs_on(quick, stages=impatient(max_attempts=2)) as scene:
        stranger = AudioJob(
            job_id="job_" + "a" * 32,
            user_id="user-1",
            media_id="med_" + "b" * 32,
            created_at=(await scene.submit()).job.created_at,
        )
        async with scene.working(max_attempts=2):
            await scene.system.client.publisher.publish_job(stranger)
            dead = await scene.dead_letters(1)
        assert dead[0].attributes["jobId"] == stranger.job_id
        assert scene.calls[f"metadata {stranger.job_id}"] == 0


async def test_a_worker_with_another_database_lets_every_message_wait(quick, tmp_path, caplog):
    """Nothing is buried, and the worker that comes with the right one finds all of it."""
    stages = impatient(max_attempts=2)
    async with PubSub() as pubsub:
        right = load_settings(environ={}, database=quick.database, stages=stages)
        wrong = load_settings(environ={}, database=f"sqlite:///{tmp_path}/x.db", stages=stages)
        async with job_system(right, pubsub=pubsub) as system, system.ingesting() as ingestion:
            scene = Scene(system, ingestion)
            async with job_system(wrong, pubsub=pubsub) as other:
                stage = scene.stage("metadata", looks)
                async with other.worker(stage):
                    kinds = (MediaType.AUDIO, MediaType.VIDEO, MediaType.DOCUMENT) * 2
                    made = [await scene.submit(media_type=kind) for kind in kinds]

                    async def said():
                        return "is it the one of these jobs" in caplog.text

                    await until(said)
                    await asyncio.sleep(0.3)
            assert await scene.stored("job-processing-dead") == []
            assert not scene.calls

            async def done(_):
                return Done()

            async with scene.working(metadata=done):
                for record in made:
                    assert (await scene.ended(record.job.job_id)).stage is COMPLETE
    assert caplog.text.count("is it the one of these jobs") == 1
    said = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert not [text for text in said if text.startswith("received")]


@pytest.mark.parametrize("answer", [Reject("configuration"), Retry("configuration")])
async def test_a_handler_that_says_configuration_fails_no_job(quick, answer):
    answers = [answer] * 7

    async def unfit(_):
        return answers.pop() if answers else Done(info=INFO)

    async with jobs_on(quick, stages=impatient(max_attempts=2)) as scene:
        async with scene.working(metadata=unfit):
            record = await scene.submit()
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert not answers and await scene.stored("job-processing-dead") == []


async def test_a_job_that_killed_its_worker_each_time_fails_without_another_try(quick):
    """Attempts are counted before they are made: nobody lives to count them after."""
    async with jobs_on(quick) as scene:
        record = await scene.submit()
        for _ in range(2):
            await scene.system.store.begin(record.job)
        async with scene.working(max_attempts=2):
            view = await scene.ended(record.job.job_id)
        assert (view.stage, view.reason) == (JobStage.FAILED, "gave-up")
        assert scene.calls[f"metadata {record.job.job_id}"] == 0
        assert len(await scene.dead_letters(1)) == 1


async def test_trouble_with_the_database_fails_no_job(quick, monkeypatch):
    async with jobs_on(quick, stages=impatient(max_attempts=2)) as scene:
        begin, troubles = scene.system.store.begin_unless_suspect, []

        async def begins(job):
            if len(troubles) < 10:
                troubles.append(True)
                raise UnavailableError("gone")
            return await begin(job)

        monkeypatch.setattr(scene.system.store, "begin_unless_suspect", begins)
        async with scene.working():
            record = await scene.submit()
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert len(troubles) == 10
        assert await scene.stored("job-processing-dead") == []


async def test_a_result_is_kept_through_trouble_with_the_database(quick, monkeypatch):
    async with jobs_on(quick) as scene:
        step, troubles = scene.system.store.step, []

        async def steps(*arguments):
            if len(troubles) < 3:
                troubles.append(True)
                raise UnavailableError("gone")
            return await step(*arguments)

        monkeypatch.setattr(scene.system.store, "step", steps)
        async with scene.working():
            record = await scene.submit()
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert scene.calls[f"metadata {record.job.job_id}"] == 1


async def test_a_blip_of_the_database_does_not_stop_a_long_handler(quick, monkeypatch):
    monkeypatch.setattr("penstock.jobs.processing._CANCEL_CHECK", 0.02)

    async def slow(_):
        await asyncio.sleep(0.3)
        return Done(info=INFO)

    async with jobs_on(quick) as scene, scene.working(metadata=slow):
        record = await scene.submit()
        await until(lambda: called(scene, record))

        async def gone(_):
            raise UnavailableError("gone")

        with monkeypatch.context() as patch:
            patch.setattr(scene.system.store, "get", gone)
            await asyncio.sleep(0.1)
        assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert scene.calls[f"metadata {record.job.job_id}"] == 1


async def called(scene, record):
    return scene.calls[f"metadata {record.job.job_id}"] > 0


async def test_restarts_of_workers_use_up_no_attempts(place):
    async def never(_):
        await asyncio.sleep(3600)

    async with jobs_on(place, stages=impatient(drain=0.05, max_attempts=2)) as scene:
        record = await scene.submit()
        for restart in range(1, 5):
            async with scene.working(metadata=never, transcription=None):
                await until(lambda n=restart: called_times(scene, record, n))
        assert (await scene.system.store.get(record.job.job_id)).attempts == 0
        async with scene.working():
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE


async def called_times(scene, record, times):
    return scene.calls[f"metadata {record.job.job_id}"] >= times


async def test_a_message_for_another_stage_changes_nothing(place):
    """A filter that is too wide."""
    wide = {"metadata": {"filter": 'attributes.mediaType = "audio"'}}
    async with jobs_on(place, stages=wide) as scene, scene.working():
        record = await scene.submit()
        assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        assert sum(scene.calls.values()) == 2


async def test_a_stage_by_any_name_gets_the_jobs_it_consumes(quick):
    async with jobs_on(quick) as scene:
        stage = dataclasses.replace(scene.stage("metadata", looks), name="probe")
        async with scene.system.worker(stage):
            record = await scene.submit()
            await scene.view_at(record.job.job_id, JobStage.METADATA_READY)


async def test_an_event_that_was_not_said_is_said_when_its_message_returns(quick):
    """The worker died after the work was sent, before the event was; the next stage was quick."""
    async with jobs_on(quick) as scene:
        record = await scene.submit()
        store, publisher = scene.system.store, scene.system.client.publisher
        ready = await store.step(
            Step(job=record.job, to=JobStage.METADATA_READY, done=Done(info=INFO))
        )
        await publisher.publish_job(ready.job)
        async with scene.working(metadata=None):
            await scene.ended(record.job.job_id)
        async with scene.working(transcription=None):
            await until(lambda: has_events(scene, 3))
        stages = [r.attributes["stage"] for r in await scene.stored("job-events")]
        assert sorted(stages) == ["MetadataReady", "Queued", "TranscriptComplete"]
        await until(lambda: has_duration(scene, record))


async def has_duration(scene, record):
    return (await scene.ingestion.views.get(record.job.job_id)).duration == 2.5


async def has_events(scene, count):
    return len(await scene.stored("job-events")) == count


async def test_a_subscription_that_was_deleted_is_used_again_when_it_is_back(quick, monkeypatch):
    monkeypatch.setattr(
        "penstock.jobs.messaging.listening._REOPEN", Backoff(initial=0.05, maximum=0.1)
    )
    async with jobs_on(quick) as scene, scene.working():
        handle = scene.system.pubsub.subscription("job-metadata")
        await handle.delete()
        await asyncio.sleep(0.2)
        await scene.system.client.provision()
        record = await scene.submit()
        assert (await scene.ended(record.job.job_id)).stage is COMPLETE


async def test_every_process_tells_its_watchers_everything(place):
    if place.url == "memory://":
        pytest.skip("nothing is shared between processes")
    shared = {"api": {"views": "sql"}}
    async with jobs_on(place, **shared) as one, jobs_on(place, **shared) as other:
        watchers = [scene.ingestion.projection.watch("user-1") for scene in (one, other)]
        async with one.working():
            records = [await one.submit() for _ in range(10)]
            for watcher in watchers:
                left = {record.job.job_id for record in records}
                async with asyncio.timeout(30):
                    async for view in watcher:
                        if view is not None and view.stage is COMPLETE:
                            left.discard(view.job_id)
                        if not left:
                            break


async def test_a_queued_job_whose_message_was_lost_can_be_sent_again(quick):
    async with jobs_on(quick) as scene:
        record = await scene.submit()
        await scene.view_at(record.job.job_id, JobStage.QUEUED)
        lost = scene.system.pubsub.subscription("job-metadata")
        async for message in lost:
            message.ack()
            break
        await lost.close()
        async with scene.working():
            await scene.ingestion.service.retry(record.job.job_id, "user-1")
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE


async def test_a_job_retried_by_hand_that_fails_again_is_tried_again(place):
    """A person and the runner both send the job's message again; neither may hide the other's."""
    tries = []

    async def stubborn(_):
        tries.append(True)
        return Done(info=INFO) if len(tries) > 3 else Retry("stubborn")

    async with jobs_on(place, stages=impatient()) as scene:
        record = await scene.submit()
        await scene.view_at(record.job.job_id, JobStage.QUEUED)
        await scene.ingestion.service.retry(record.job.job_id, "user-1")
        async with scene.working(metadata=stubborn):
            assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        ids = [r.message_id for r in await scene.stored("job-processing")]
        assert len(ids) == len(set(ids))


async def test_a_job_that_waits_for_its_next_attempt_is_tried_at_once_when_asked(quick):
    tries = []

    async def shaky(_):
        tries.append(True)
        return Done(info=INFO) if len(tries) > 1 else Retry("busy", after=3600)

    async with jobs_on(quick) as scene, scene.working(metadata=shaky):
        record = await scene.submit()

        async def waits():
            return (await scene.ingestion.outbox.status()).waiting == 1

        await until(waits)
        await scene.ingestion.service.retry(record.job.job_id, "user-1")
        assert (await scene.ended(record.job.job_id)).stage is COMPLETE
        # The message that waited was let go, not followed by another.
        assert len(await scene.stored("job-processing")) == 3


async def test_a_retry_of_the_handlers_does_not_outlive_the_job(quick):
    """It is cancelled while its next attempt waits: the message comes to a job that is over."""

    async def busy(_):
        return Retry("busy", after=3600)

    async with jobs_on(quick) as scene, scene.working(metadata=busy):
        record = await scene.submit()

        async def waits():
            return (await scene.ingestion.outbox.status()).waiting == 1

        await until(waits)
        await scene.ingestion.service.cancel(record.job.job_id)
        async with scene.system.database.transaction() as connection:
            await connection.execute(outbox_table.update().values(next_attempt_at=0))
        scene.ingestion.relay.wake()
        await until(lambda: nothing_pending(scene))
        assert (await scene.ended(record.job.job_id)).stage is JobStage.CANCELLED
        assert scene.calls[f"metadata {record.job.job_id}"] == 1


async def nothing_pending(scene):
    return await scene.ingestion.outbox.pending() == 0


async def test_what_does_not_decode_is_put_back_until_its_attempts_are_used_up(place):
    stages = impatient(invalid="retry", max_attempts=3)
    async with jobs_on(place, stages=stages) as scene, scene.working(transcription=None):
        broker = await scene.system.pubsub.broker()
        said = {"stage": "Queued", "mediaType": "audio"}
        long_ids = ["x" * 1020 + end for end in ("ab", "cd")]
        strangers = [Draft.of(b"no job", said, message_id=name) for name in ("s-1", *long_ids)]
        await broker.publish("job-processing", strangers)
        dead = await scene.dead_letters(3)
        assert len({letter.message_id for letter in dead}) == 3
        assert "s-1.dead" in {letter.message_id for letter in dead}
        came = [r.message_id for r in await scene.stored("job-processing")]
        assert [i for i in came if i.startswith("s-1")] == ["s-1", "s-1.again-1", "s-1.again-2"]
        assert len(came) == len(set(came)) == 9


async def test_topics_of_their_own_share_the_concurrency_of_a_stage(quick):
    running = most = 0

    async def counts(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return Done(info=VIDEO_INFO)

    topics = {"media": {"video": "video-processing"}}
    stages = {"metadata": {"concurrency": 1}}
    async with jobs_on(quick, topics=topics, stages=stages) as scene:
        async with scene.working(metadata=counts, transcription=None):
            made = [await scene.submit("a.mp4", media_type=MediaType.VIDEO) for _ in range(4)]
            for record in made:
                await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
    assert most == 1


async def test_req_3_4_the_read_model_is_rebuilt_from_the_events(place):
    if place.url == "memory://":
        pytest.skip("nothing outlives the process")
    async with jobs_on(place) as scene, scene.working():
        records = [await scene.submit() for _ in range(5)]
        for record in records:
            await scene.ended(record.job.job_id)
    async with jobs_on(place) as scene:
        page, _ = await scene.ingestion.views.list(user_id="user-1")
        assert {v.job_id for v in page} == {r.job.job_id for r in records}
        assert {v.stage for v in page} == {COMPLETE}
        assert (await scene.ingestion.projection.lag()).events == 0


async def test_req_1_12_3_4_the_read_model_may_be_kept_in_the_database(place):
    async with jobs_on(place, api={"views": "sql"}) as scene, scene.working():
        record = await scene.submit()
        view = await scene.ended(record.job.job_id)
        assert view.stage is COMPLETE
    if place.url == "memory://":
        # A new broker has no events; the database has.
        async with jobs_on(place, api={"views": "sql"}) as scene:
            assert await scene.ingestion.views.get(record.job.job_id) == view


async def test_the_lag_of_the_read_model_is_visible(quick):
    async with jobs_on(quick) as scene:
        projection, gate = scene.ingestion.projection, asyncio.Event()
        apply = scene.ingestion.views.apply

        async def waits(events):
            await gate.wait()
            return await apply(events)

        async def is_behind(wanted):
            return ((await projection.lag()).events > 0) is wanted

        scene.ingestion.views.apply = waits
        await scene.submit()
        await until(lambda: is_behind(True))
        gate.set()
        await until(lambda: is_behind(False))


async def test_submitting_what_cannot_be_a_job_is_refused(quick):
    async with jobs_on(quick) as scene:
        with pytest.raises(InvalidArgumentError, match="YouTube"):
            await scene.submit("https://example.org", media_type=MediaType.YOUTUBE)
        with pytest.raises(InvalidArgumentError, match="key"):
            await scene.submit(client_key="")
        with pytest.raises(InvalidArgumentError):
            await scene.submit(correlation_id="ada@example.org")
        with pytest.raises(InvalidArgumentError):
            await scene.ingestion.service.submit("Ada L", MediaType.AUDIO, "a.wav")


async def test_req_2_3_nothing_of_a_users_text_is_in_any_message(place):
    private = "interview with zoe@example.org"
    async with jobs_on(place) as scene, scene.working():
        record = await scene.submit(f"{private}.wav", title=private, client_key=private)
        await scene.ended(record.job.job_id)
        kept = await scene.system.store.get(record.job.job_id)
        assert kept.title == private and private in kept.source
        for topic in ("job-processing", "job-events"):
            for message in await scene.stored(topic):
                sent = message.data.decode() + msgspec.json.encode(message.attributes).decode()
                assert "zoe" not in sent and TEXT.segments[0].text not in sent
                assert "example.org" not in sent + message.message_id + message.subject


async def test_many_jobs_all_complete_once(place):
    count = 60
    stages = {"metadata": {"concurrency": 16}, "transcription": {"concurrency": 16}}
    async with jobs_on(place, stages=stages) as scene, scene.working(metadata=looks):
        records = await asyncio.gather(*(scene.submit() for _ in range(count)))
        for record in records:
            view = await scene.ended(record.job.job_id)
            assert view.stage is COMPLETE
        assert sum(scene.calls.values()) == 2 * count
        ids = [r.message_id for r in await scene.stored("job-events")]
        assert len(ids) == len(set(ids)) == 3 * count


async def test_cancels_and_retries_racing_with_workers_leave_one_truth(place):
    """Whoever wins, a run ends once, and the read model says what the store says."""
    chance = random.Random(7)

    async def dawdles(_):
        await asyncio.sleep(chance.random() * 0.03)
        return Done(info=INFO)

    async def writes(_):
        await asyncio.sleep(chance.random() * 0.03)
        return Done(text=TEXT)

    async with jobs_on(place, stages=impatient(concurrency=8)) as scene:
        async with scene.working(dawdles, writes):
            jobs = [(await scene.submit()).job.job_id for _ in range(12)]

            async def meddle():
                service = scene.ingestion.service
                for _ in range(40):
                    with suppress(FailedPreconditionError):
                        await chance.choice((service.cancel, service.retry))(chance.choice(jobs))
                    await asyncio.sleep(chance.random() * 0.01)

            await asyncio.gather(meddle(), meddle())
            # Whatever was cancelled last is run to its end.
            for job_id in jobs:
                with suppress(FailedPreconditionError):
                    await scene.ingestion.service.retry(job_id)
            await until(lambda: all_complete(scene, jobs), within=240)
            await until(lambda: views_agree(scene, jobs))
        ends = Counter(
            (event.job_id, event.run)
            for event in (
                decode_event(r.data, r.attributes) for r in await scene.stored("job-events")
            )
            if MEDIA.is_end(event.stage)
        )
        for job_id in jobs:
            run = (await scene.system.store.get(job_id)).job.run
            assert [ends[job_id, n] for n in range(1, run + 1)] == [1] * run


async def all_complete(scene, jobs):
    records = [await scene.system.store.get(job_id) for job_id in jobs]
    return all(record.job.stage is COMPLETE for record in records)


async def views_agree(scene, jobs):
    for job_id in jobs:
        record = await scene.system.store.get(job_id)
        view = await scene.ingestion.views.get(job_id)
        if (view.run, view.stage) != (record.job.run, record.job.stage):
            return False
    return True


async def test_an_outage_of_the_database_is_told_once_however_many_jobs_meet_it(
    quick, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, logger="penstock.jobs")
    ending, away, met = asyncio.Event(), True, Counter()

    async def holds(_):
        await ending.wait()
        return Done(info=INFO)

    async def meets_it_often(name):
        async def enough():
            return met[name] >= 9

        await until(enough)

    def is_told_once():
        texts = [one.getMessage() for one in caplog.records]
        assert sum("gone" in text for text in texts) == 1
        assert sum("Back again" in text for text in texts) == 1
        caplog.clear()

    async with jobs_on(quick, stages=impatient(concurrency=4)) as scene:

        def trouble(name):
            usual = getattr(scene.system.store, name)

            async def call(*arguments):
                if away:
                    met[name] += 1
                    raise UnavailableError("gone")
                return await usual(*arguments)

            monkeypatch.setattr(scene.system.store, name, call)

        trouble("begin_unless_suspect")
        trouble("step")
        records = [await scene.submit(f"{number}.wav") for number in range(4)]
        async with scene.working(metadata=holds, transcription=None):
            await meets_it_often("begin_unless_suspect")
            away = False
            for record in records:
                await until(lambda record=record: called(scene, record))
            is_told_once()
            away = True
            ending.set()
            await meets_it_often("step")
            away = False
            for record in records:
                await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
            is_told_once()


async def test_a_result_that_cannot_be_kept_for_too_long_costs_the_job_no_attempt(
    quick, monkeypatch, caplog
):
    once = Persistence(backoff=Backoff(), attempts=1)
    monkeypatch.setattr("penstock.jobs.processing._KEEPING", once)
    async with jobs_on(quick, stages=impatient(max_attempts=2)) as scene:
        step, troubles = scene.system.store.step, []

        async def steps(*arguments):
            if len(troubles) < 4:
                troubles.append(True)
                raise UnavailableError("gone")
            return await step(*arguments)

        monkeypatch.setattr(scene.system.store, "step", steps)
        async with scene.working(transcription=None):
            record = await scene.submit()
            view = await scene.view_at(record.job.job_id, JobStage.METADATA_READY, JobStage.FAILED)
        assert view.stage is JobStage.METADATA_READY
        assert len(troubles) == 4
        # It ended here each time: nobody died of it.
        assert "never ended" not in caplog.text


async def test_what_this_process_has_sent_is_looked_for_at_once(quick, monkeypatch):
    for name in ("_POLL", "_IDLE_POLL"):
        monkeypatch.setattr(projection, name, 3600.0)
    async with jobs_on(quick) as scene, scene.working():
        record = await scene.submit()
        await scene.ended(record.job.job_id, within=60)
