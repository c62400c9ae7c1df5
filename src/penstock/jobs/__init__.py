"""Typed media jobs: Queued, MetadataReady, TranscriptComplete. Needs `penstock[sql]`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.jobs.client import Publisher, PubSubClient, Subscriber
    from penstock.jobs.codec import (
        InvalidMessageError,
        decode_event,
        decode_job,
        encode_event,
        encode_job,
        json_schema,
    )
    from penstock.jobs.job import (
        AudioInfo,
        AudioJob,
        DocumentInfo,
        DocumentJob,
        JobCancelled,
        JobEvent,
        JobFailed,
        JobQueued,
        JobStage,
        MediaType,
        MetadataReady,
        ProcessingJob,
        SpeakerRole,
        TranscriptComplete,
        VideoInfo,
        VideoJob,
        YouTubeInfo,
        YouTubeJob,
        opaque_user_id,
    )
    from penstock.jobs.projection import Projection
    from penstock.jobs.records import JobRecord
    from penstock.jobs.settings import JobSettings, StageSettings, load_settings
    from penstock.jobs.sql_views import SqlJobViews
    from penstock.jobs.stage import Done, Outcome, Reject, Retry, Segment, Stage, Text
    from penstock.jobs.store import ProcessingJobStore, idempotent
    from penstock.jobs.submit import JobService
    from penstock.jobs.system import JobSystem, job_system
    from penstock.jobs.telemetry import LoggingObserver, Observer, PrometheusObserver
    from penstock.jobs.views import JobView, JobViews
    from penstock.jobs.worker import StageWorker

# Names are loaded when asked for: the guarded processes that read media import this package, too,
# and must stay small.
_PLACES = {
    "client": ("Publisher", "PubSubClient", "Subscriber"),
    "codec": (
        "InvalidMessageError",
        "decode_event",
        "decode_job",
        "encode_event",
        "encode_job",
        "json_schema",
    ),
    "job": (
        "AudioInfo",
        "AudioJob",
        "DocumentInfo",
        "DocumentJob",
        "JobCancelled",
        "JobEvent",
        "JobFailed",
        "JobQueued",
        "JobStage",
        "MediaType",
        "MetadataReady",
        "ProcessingJob",
        "SpeakerRole",
        "TranscriptComplete",
        "VideoInfo",
        "VideoJob",
        "YouTubeInfo",
        "YouTubeJob",
        "opaque_user_id",
    ),
    "settings": ("JobSettings", "StageSettings", "load_settings"),
    "stage": ("Done", "Outcome", "Reject", "Retry", "Segment", "Stage", "Text"),
    "records": ("JobRecord",),
    "store": ("ProcessingJobStore", "idempotent"),
    "submit": ("JobService",),
    "system": ("JobSystem", "job_system"),
    "telemetry": ("LoggingObserver", "Observer", "PrometheusObserver"),
    "projection": ("Projection",),
    "sql_views": ("SqlJobViews",),
    "views": ("JobView", "JobViews"),
    "worker": ("StageWorker",),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)


__all__ = [
    "AudioInfo",
    "AudioJob",
    "DocumentInfo",
    "DocumentJob",
    "Done",
    "InvalidMessageError",
    "JobCancelled",
    "JobEvent",
    "JobFailed",
    "JobQueued",
    "JobRecord",
    "JobService",
    "JobSettings",
    "JobStage",
    "JobSystem",
    "JobView",
    "JobViews",
    "LoggingObserver",
    "MediaType",
    "MetadataReady",
    "Observer",
    "Outcome",
    "ProcessingJob",
    "ProcessingJobStore",
    "Projection",
    "PrometheusObserver",
    "PubSubClient",
    "Publisher",
    "Reject",
    "Retry",
    "Segment",
    "SpeakerRole",
    "SqlJobViews",
    "Stage",
    "StageSettings",
    "StageWorker",
    "Subscriber",
    "Text",
    "TranscriptComplete",
    "VideoInfo",
    "VideoJob",
    "YouTubeInfo",
    "YouTubeJob",
    "decode_event",
    "decode_job",
    "encode_event",
    "encode_job",
    "idempotent",
    "job_system",
    "json_schema",
    "load_settings",
    "opaque_user_id",
]
