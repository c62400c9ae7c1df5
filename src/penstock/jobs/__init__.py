"""Jobs that go from stage to stage, as a pipeline declares. Needs `penstock[sql]`.

`MEDIA` is the pipeline of media jobs: Queued, MetadataReady, TranscriptComplete.
"""

from typing import TYPE_CHECKING

from penstock.extras import loaded_later
from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.messaging.publisher import Publisher
from penstock.jobs.messaging.subscriber import Subscriber
from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.model.event import JobCancelled, JobFailed, JobQueued, StageEvent
from penstock.jobs.model.fields import Count, Moment, OpaqueId, Rate, Seconds, Word
from penstock.jobs.model.job import Job, opaque_user_id
from penstock.jobs.model.names import JobStage, MediaType
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.media import (
    MEDIA,
    AudioInfo,
    AudioJob,
    DocumentInfo,
    DocumentJob,
    JobEvent,
    MetadataReady,
    ProcessingJob,
    TranscriptComplete,
    VideoInfo,
    VideoJob,
    YouTubeInfo,
    YouTubeJob,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
    json_schema,
)
from penstock.jobs.pipeline.stage import Done, Outcome, Reject, Retry, Stage, Text
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.settings import JobSettings, load_settings
from penstock.jobs.telemetry import JobObserver as Observer
from penstock.jobs.telemetry import LoggingObserver
from penstock.jobs.telemetry import PrometheusJobObserver as PrometheusObserver
from penstock.jobs.views.memory import JobViews
from penstock.jobs.views.view import JobView
from penstock.media.speakers import SpeakerRole
from penstock.media.transcript import Segment

if TYPE_CHECKING:
    from penstock.jobs.messaging.worker import StageWorker
    from penstock.jobs.service import JobService, JobWish
    from penstock.jobs.store.idempotent import idempotent
    from penstock.jobs.store.job_store import ProcessingJobStore
    from penstock.jobs.store.records import JobRecord
    from penstock.jobs.system import JobSystem, job_system
    from penstock.jobs.views.projection import Projection
    from penstock.jobs.views.sql import SqlJobViews

__all__ = [
    "MEDIA",
    "AudioInfo",
    "AudioJob",
    "Count",
    "DocumentInfo",
    "DocumentJob",
    "Done",
    "InvalidMessageError",
    "Job",
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
    "JobWish",
    "LoggingObserver",
    "MediaType",
    "MetadataReady",
    "Moment",
    "Observer",
    "OpaqueId",
    "Outcome",
    "Pipeline",
    "ProcessingJob",
    "ProcessingJobStore",
    "Projection",
    "PrometheusObserver",
    "PubSubClient",
    "Publisher",
    "Rate",
    "Reject",
    "Retry",
    "Seconds",
    "Segment",
    "SpeakerRole",
    "SqlJobViews",
    "Stage",
    "StageEvent",
    "StageSettings",
    "StageWorker",
    "Subscriber",
    "Text",
    "TranscriptComplete",
    "VideoInfo",
    "VideoJob",
    "Word",
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

# What keeps jobs is loaded when first used: who only asks for them, or shows help, has no database.
_LATER = {
    "JobRecord": "store.records",
    "JobService": "service",
    "JobWish": "service",
    "JobSystem": "system",
    "ProcessingJobStore": "store.job_store",
    "Projection": "views.projection",
    "SqlJobViews": "views.sql",
    "StageWorker": "messaging.worker",
    "idempotent": "store.idempotent",
    "job_system": "system",
}

if not TYPE_CHECKING:  # Or a name that is not there would pass for one that is.
    __getattr__ = loaded_later(__name__, _LATER, needs="sql")
