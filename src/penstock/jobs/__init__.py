"""Typed media jobs: Queued, MetadataReady, TranscriptComplete. Needs `penstock[sql]`."""

from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.messaging.publisher import Publisher
from penstock.jobs.messaging.subscriber import Subscriber
from penstock.jobs.messaging.worker import StageWorker
from penstock.jobs.model.codec import (
    InvalidMessageError,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
    json_schema,
)
from penstock.jobs.model.job import (
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
    TranscriptComplete,
    VideoInfo,
    VideoJob,
    YouTubeInfo,
    YouTubeJob,
    opaque_user_id,
)
from penstock.jobs.pipeline.stage import Done, Outcome, Reject, Retry, Stage, Text
from penstock.jobs.service import JobService
from penstock.jobs.settings import JobSettings, StageSettings, load_settings
from penstock.jobs.store.job_store import ProcessingJobStore, idempotent
from penstock.jobs.store.records import JobRecord
from penstock.jobs.system import JobSystem, job_system
from penstock.jobs.telemetry import LoggingObserver, Observer, PrometheusObserver
from penstock.jobs.views.memory import JobView, JobViews
from penstock.jobs.views.projection import Projection
from penstock.jobs.views.sql import SqlJobViews
from penstock.media.speakers import SpeakerRole
from penstock.media.transcript import Segment

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
