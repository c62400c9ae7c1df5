"""Jobs that ended on Spark are counted where the driver reads their events."""

from prometheus_client import REGISTRY

from penstock.jobs import MEDIA, JobCancelled, JobFailed, JobQueued, JobStage, TranscriptComplete
from penstock.spark.jobs.history import Told
from penstock.spark.jobs.progress import count_ended
from tests.support.job_samples import EVENTS, WHEN

ABOUT = {
    name: getattr(EVENTS["JobQueued"], name)
    for name in ("job_id", "user_id", "media_type", "run", "at")
}


def counted(stage, reason):
    labels = {"stage": stage, "media_type": "audio", "reason": reason}
    return REGISTRY.get_sample_value("penstock_jobs_ended_total", labels) or 0


def test_events_that_end_a_job_are_counted_once_by_the_stage_that_ended_it():
    wanted = [
        ("metadata", "malformed"),
        ("metadata", "cancelled"),
        ("transcription", "complete"),
        ("transcription", "busy"),
    ]
    before = [counted(*one) for one in wanted]
    ready = JobStage.METADATA_READY
    events = [
        JobQueued(**ABOUT),
        JobFailed(**ABOUT, previous=JobStage.QUEUED, reason="malformed"),
        JobCancelled(**ABOUT, previous=JobStage.QUEUED),
        TranscriptComplete(**ABOUT, previous=ready),
        JobFailed(**ABOUT, previous=ready, reason="busy"),
    ]
    batch = [Told(number, WHEN, event) for number, event in enumerate(events, 1)]
    assert count_ended(MEDIA, "ended-jobs-test", batch) == 0
    # A batch that failed half-way is run again, perhaps with more in it.
    assert count_ended(MEDIA, "ended-jobs-test", [*batch, Told(6, WHEN, events[-1])]) == 5
    assert [counted(*one) - was for one, was in zip(wanted, before, strict=True)] == [1, 1, 1, 2]
