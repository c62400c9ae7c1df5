"""What is logged, counted and traced on both paths: seed 004, 2.5 and 5.4."""

import asyncio
import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from penstock import Draft
from penstock.jobs import (
    Done,
    JobStage,
    MediaType,
    Observer,
    PrometheusObserver,
    Reject,
    Retry,
    decode_event,
    decode_job,
    encode_job,
    telemetry,
)
from penstock.jobs.telemetry import JobObservers, LoggingObserver, Subject, span
from tests.support.job_scenes import INFO, TEXT, impatient, jobs_on, looks, until

pytestmark = pytest.mark.real_time


class Remembering(Observer):
    def __init__(self):
        self.told = []

    def published(self, subject, topic, seconds, error):
        self.told.append(("published", subject, topic, error))
        assert seconds >= 0

    def received(self, subject, subscription):
        self.told.append(("received", subject, subscription))

    def handled(self, subject, stage, outcome, seconds):
        self.told.append(("handled", subject, stage, outcome))
        assert seconds >= 0

    def ended(self, subject, stage):
        self.told.append(("ended", subject, stage))

    def dead_lettered(self, subject, topic, reason):
        self.told.append(("dead", subject, topic, reason))

    def of(self, what):
        return [one[1:] for one in self.told if one[0] == what]


async def test_req_5_4_both_paths_tell_the_observer(quick):
    observer = Remembering()
    async with jobs_on(quick, observer=observer) as scene, scene.working():
        record = await scene.submit(correlation_id="order-7")
        await scene.ended(record.job.job_id)
    about = {
        "job_id": record.job.job_id,
        "user_id": "user-1",
        "media_type": "audio",
        "correlation_id": "order-7",
    }
    for what in ("published", "received", "handled"):
        assert observer.of(what)
        for subject, *_ in observer.of(what):
            assert {name: getattr(subject, name) for name in about} == about
            assert subject.stage and subject.attempt == 1
    published = {(subject.stage, topic) for subject, topic, _ in observer.of("published")}
    assert published == {
        ("Queued", "job-processing"),
        ("Queued", "job-events"),
        ("MetadataReady", "job-processing"),
        ("MetadataReady", "job-events"),
        ("TranscriptComplete", "job-events"),
    }
    outcomes = {(stage, outcome) for _, stage, outcome in observer.of("handled")}
    assert {("metadata", "done"), ("transcription", "done")} <= outcomes


async def test_req_5_4_log_records_carry_the_fields(quick, caplog):
    caplog.set_level(logging.DEBUG, "penstock.jobs")
    async with jobs_on(quick) as scene, scene.working():
        record = await scene.submit(correlation_id="order-7")
        await scene.ended(record.job.job_id)
    fields = ("jobId", "userId", "stage", "attempt", "correlationId")
    for message in ("published", "received", "done"):
        found = [r for r in caplog.records if r.getMessage().startswith(message)]
        assert found
        assert all(hasattr(r, name) for r in found for name in fields)
        assert {r.jobId for r in found} == {record.job.job_id}


async def test_req_2_5_redeliveries_and_dead_letters_are_counted(quick):
    async def busy(_):
        return Retry("busy")

    registry = CollectorRegistry()
    async with jobs_on(
        quick, observer=PrometheusObserver(registry), stages=impatient(max_attempts=3)
    ) as scene:
        async with scene.working(metadata=busy, max_attempts=3):
            record = await scene.submit()
            assert (await scene.ended(record.job.job_id)).stage is JobStage.FAILED
            await scene.dead_letters(1)
    value = registry.get_sample_value
    assert value("penstock_jobs_redelivered_total", {"stage": "Queued"}) == 2
    dead = {"messaging_destination_name": "job-processing-dead", "reason": "busy"}
    assert value("penstock_jobs_dead_lettered_total", dead) == 1
    took = {"stage": "metadata", "outcome": "retry"}
    assert value("penstock_jobs_process_duration_seconds_count", took) == 2
    sent = {"messaging_destination_name": "job-events", "outcome": "ok"}
    assert value("penstock_jobs_publish_duration_seconds_count", sent) >= 1


async def test_a_job_that_fails_is_logged_and_counted_as_failed_and_its_reason_with_it(
    quick, caplog
):
    caplog.set_level(logging.INFO, "penstock.jobs")
    answers = [Retry("busy"), Reject("malformed")]

    async def fails(_):
        return answers.pop(0)

    registry = CollectorRegistry()
    remembering = Remembering()
    observer = JobObservers(LoggingObserver(), PrometheusObserver(registry), remembering)
    async with jobs_on(quick, observer=observer, stages=impatient()) as scene:
        async with scene.working(metadata=fails):
            record = await scene.submit()
            assert (await scene.ended(record.job.job_id)).reason == "malformed"
    told = [(what, subject.reason) for subject, _, what in remembering.of("handled")]
    assert told == [("retry", "busy"), ("failed", "malformed")]
    lines = [r for r in caplog.records if r.getMessage().startswith(("retry ", "failed "))]
    assert [(r.levelname, r.reason) for r in lines] == [
        ("WARNING", "busy"),
        ("WARNING", "malformed"),
    ]
    assert not [r for r in caplog.records if r.getMessage().startswith("done ")]
    value = registry.get_sample_value
    for outcome in ("retry", "failed"):
        took = {"stage": "metadata", "outcome": outcome}
        assert value("penstock_jobs_process_duration_seconds_count", took) == 1
    assert ended_in(registry) == {("metadata", "audio", "malformed"): 1}


def ended_in(registry):
    return {
        tuple(sample.labels[name] for name in ("stage", "media_type", "reason")): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "penstock_jobs_ended_total"
    }


async def test_every_job_that_ends_is_counted_once_by_stage_media_type_and_reason(quick):
    holding = asyncio.Event()

    async def looks_or_waits(job):
        if job.media_type is MediaType.DOCUMENT:
            await holding.wait()
        return Done(info=INFO if job.media_type is MediaType.AUDIO else None)

    async def gives_up(job):
        return Done(text=TEXT) if job.media_type is MediaType.AUDIO else Retry("busy")

    registry = CollectorRegistry()
    stages = impatient(max_attempts=2)
    async with jobs_on(quick, observer=PrometheusObserver(registry), stages=stages) as scene:
        async with scene.working(metadata=looks_or_waits, transcription=gives_up):
            for kind in (MediaType.AUDIO, MediaType.AUDIO, MediaType.VIDEO):
                record = await scene.submit(media_type=kind)
                await scene.ended(record.job.job_id)
            stopped = await scene.submit(media_type=MediaType.DOCUMENT)
            await scene.ingestion.service.cancel(stopped.job.job_id)
            await scene.ingestion.service.cancel(stopped.job.job_id)
            await scene.ended(stopped.job.job_id)
            holding.set()
    assert ended_in(registry) == {
        ("transcription", "audio", "complete"): 2,
        ("transcription", "video", "busy"): 1,
        ("metadata", "document", "cancelled"): 1,
    }


async def test_work_that_came_too_late_is_not_told_as_done(quick):
    """A message that comes again is a duplicate; work on a job that somebody cancelled is stale,
    and so is the work of the slower of two."""
    observer = Remembering()
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def slow(_):
        begun.set()
        await go_on.wait()
        return Done(info=INFO)

    async with jobs_on(quick, observer=observer) as scene:
        async with scene.working(metadata=slow, transcription=None):
            record = await scene.submit()
            await begun.wait()
            await scene.ingestion.service.cancel(record.job.job_id)
            go_on.set()
            await until_told(observer, 1)
            ready = await scene.submit("b.wav")
            await scene.view_at(ready.job.job_id, JobStage.METADATA_READY)
            await scene.system.client.publisher.publish([("job-processing", again(ready))])
            await until_told(observer, 3)
    assert [outcome for _, _, outcome in observer.of("handled")] == ["stale", "done", "duplicate"]


def again(record):
    return encode_job(record.job, copy=7)


async def until_told(observer, count):
    async def enough():
        return len(observer.of("handled")) >= count

    await until(enough)


async def test_an_observer_that_fails_changes_nothing(quick):
    class Broken(Observer):
        def received(self, subject, subscription):
            raise ZeroDivisionError

        def handled(self, subject, stage, outcome, seconds):
            raise ZeroDivisionError

    async with jobs_on(quick, observer=Broken()) as scene, scene.working():
        record = await scene.submit()
        assert (await scene.ended(record.job.job_id)).stage is JobStage.TRANSCRIPT_COMPLETE


def test_observers_are_told_whatever_the_others_do():
    class Broken(Observer):
        def dead_lettered(self, subject, topic, reason):
            raise ZeroDivisionError

    remembering = Remembering()
    subject = Subject(job_id=None, user_id=None, media_type=None, stage=None)
    JobObservers(Broken(), remembering).dead_lettered(subject, "dead", "why")
    assert remembering.of("dead") == [(subject, "dead", "why")]


async def test_attributes_of_a_stranger_do_not_break_a_log_line(quick, caplog):
    caplog.set_level(logging.DEBUG, "penstock.jobs")
    async with jobs_on(quick) as scene, scene.working():
        broker = await scene.system.pubsub.broker()
        forged = {"stage": "Queued", "jobId": "x" * 500, "mediaType": "audio", "userId": "é ü"}
        await broker.publish("job-processing", [Draft.of(b"secret payload", forged)])
        await scene.dead_letters(1)
    assert "x" * 65 not in caplog.text
    assert "secret payload" not in caplog.text


@pytest.fixture(scope="module")
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


async def test_a_job_is_one_trace_from_request_to_last_event(quick, spans):
    spans.clear()
    async with jobs_on(quick) as scene, scene.working(metadata=looks):
        with trace.get_tracer("test").start_as_current_span("request") as request:
            record = await scene.submit()
        await scene.ended(record.job.job_id)
        work = await scene.stored("job-processing")
        events = await scene.stored("job-events")
    wanted = f"{request.get_span_context().trace_id:032x}"
    carried = [decode_job(r.data, r.attributes).traceparent for r in work]
    carried += [decode_event(r.data, r.attributes).traceparent for r in events]
    assert len(carried) == 5
    assert {one.split("-")[1] for one in carried} == {wanted}
    finished = {s.name: s for s in spans.get_finished_spans()}
    assert {"submit job", "process metadata", "process transcription"} <= finished.keys()
    assert {f"{s.context.trace_id:032x}" for s in finished.values()} == {wanted}


async def test_a_failed_attempt_is_a_failed_span_that_says_why(quick, spans):
    spans.clear()
    answers = [Retry("busy"), Reject("malformed")]

    async def fails(_):
        return answers.pop(0)

    async with jobs_on(quick, stages=impatient()) as scene, scene.working(metadata=fails):
        record = await scene.submit()
        await scene.ended(record.job.job_id)
    work = [s for s in spans.get_finished_spans() if s.name == "process metadata"]
    assert [(s.status.status_code.name, s.status.description) for s in work] == [
        ("ERROR", "busy"),
        ("ERROR", "malformed"),
    ]
    assert [s.attributes["penstock.job.outcome"] for s in work] == ["retry", "failed"]


def test_without_a_trace_what_came_in_is_passed_on(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    monkeypatch.setattr(telemetry, "_opentelemetry", telemetry._opentelemetry.__wrapped__)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with span("anything", parent) as passed_on:
        assert passed_on == parent
    with span("anything", None) as passed_on:
        assert passed_on is None
