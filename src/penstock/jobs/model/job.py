"""Jobs, what happens to them, and the rule by which they move. Pure.

A message about a job carries identifiers, numbers and words of ours, never text of a user: what
was said, titles, file names and addresses stay in the store and are found by the job's id. The
types below admit nothing else, and a test walks them to prove it.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from penstock.errors import InvalidArgumentError
from penstock.media.speakers import SpeakerRole


def _only(pattern: str) -> Meta:
    """Text that is this and nothing else: `$` alone would let a line feed follow."""
    return Meta(pattern=f"^{pattern}$(?!\\n)")


JobId: TypeAlias = Annotated[str, _only(r"job_[0-9a-f]{32}")]
MediaId: TypeAlias = Annotated[str, _only(r"med_[0-9a-f]{32}")]
OpaqueId: TypeAlias = Annotated[str, _only(r"[A-Za-z0-9_-]{1,64}")]
"""A user, a correlation: whatever its owner knows it by, without room for a name or an address."""
TraceParent: TypeAlias = Annotated[str, _only(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")]
VideoId: TypeAlias = Annotated[str, _only(r"[A-Za-z0-9_-]{11}")]
Word: TypeAlias = Annotated[str, _only(r"[a-z0-9][a-z0-9_.,-]{0,47}")]
"""A word of ours: a codec, a format, a language, a reason."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=366 * 86_400)]
Rate: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
Run: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]


class MediaType(StrEnum):
    AUDIO = "audio"
    VIDEO = "video"
    YOUTUBE = "youtube"
    DOCUMENT = "document"


class JobStage(StrEnum):
    """Where a job is. `rank` orders the stages of one run; the last three are its ends."""

    QUEUED = "Queued"
    METADATA_READY = "MetadataReady"
    TRANSCRIPT_COMPLETE = "TranscriptComplete"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def rank(self) -> int:
        return min(list(JobStage).index(self), 2)

    @property
    def terminal(self) -> bool:
        return self.rank == 2

    def may_become(self, other: JobStage) -> bool:
        """Whether a job may go from here to `other`, in the same run or, to QUEUED, a new one."""
        return other in _TRANSITIONS[self]


_TRANSITIONS = {
    JobStage.QUEUED: {JobStage.METADATA_READY, JobStage.FAILED, JobStage.CANCELLED},
    JobStage.METADATA_READY: {
        JobStage.TRANSCRIPT_COMPLETE,
        JobStage.FAILED,
        JobStage.CANCELLED,
    },
    JobStage.TRANSCRIPT_COMPLETE: set[JobStage](),
    JobStage.FAILED: {JobStage.QUEUED},
    JobStage.CANCELLED: {JobStage.QUEUED},
}


# What is known of the media once it was looked at.


class AudioInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    duration: Seconds
    size: Count
    container: Word
    codec: Word
    sample_rate: Count = 0
    channels: Count = 0


class VideoInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    duration: Seconds
    size: Count
    container: Word
    codec: Word
    width: Count = 0
    height: Count = 0
    frame_rate: Rate = 0.0
    audio_codec: Word | None = None


class YouTubeInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    duration: Seconds
    channel_id: OpaqueId
    published_at: Moment
    speaker_role: SpeakerRole = SpeakerRole.UNKNOWN
    captions: bool = False


class DocumentInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    size: Count
    kind: Word
    pages: Count = 0
    characters: Count = 0


Info: TypeAlias = AudioInfo | VideoInfo | YouTubeInfo | DocumentInfo


# Jobs.


class _Job(
    Struct, frozen=True, kw_only=True, rename="camel", tag_field="mediaType", omit_defaults=True
):
    """What every job has. `run` counts from 1, one more each time it is retried by hand."""

    media_type: ClassVar[MediaType]
    schema_version: ClassVar[int]

    job_id: JobId
    user_id: OpaqueId
    media_id: MediaId
    created_at: Moment
    stage: JobStage = JobStage.QUEUED
    run: Run = 1
    correlation_id: OpaqueId | None = None
    traceparent: TraceParent | None = None


class AudioJob(_Job, frozen=True, kw_only=True, tag="audio"):
    media_type: ClassVar[MediaType] = MediaType.AUDIO
    schema_version: ClassVar[int] = 2
    info: AudioInfo | None = None


class VideoJob(_Job, frozen=True, kw_only=True, tag="video"):
    media_type: ClassVar[MediaType] = MediaType.VIDEO
    schema_version: ClassVar[int] = 1
    info: VideoInfo | None = None


class YouTubeJob(_Job, frozen=True, kw_only=True, tag="youtube"):
    media_type: ClassVar[MediaType] = MediaType.YOUTUBE
    schema_version: ClassVar[int] = 1
    video_id: VideoId
    info: YouTubeInfo | None = None


class DocumentJob(_Job, frozen=True, kw_only=True, tag="document"):
    media_type: ClassVar[MediaType] = MediaType.DOCUMENT
    schema_version: ClassVar[int] = 1
    info: DocumentInfo | None = None


ProcessingJob: TypeAlias = AudioJob | VideoJob | YouTubeJob | DocumentJob
JOB_TYPES: dict[MediaType, type[ProcessingJob]] = {
    kind.media_type: kind for kind in (AudioJob, VideoJob, YouTubeJob, DocumentJob)
}


INFO_TYPES: dict[MediaType, type[Info]] = {
    MediaType.AUDIO: AudioInfo,
    MediaType.VIDEO: VideoInfo,
    MediaType.YOUTUBE: YouTubeInfo,
    MediaType.DOCUMENT: DocumentInfo,
}


# Events.


class _Event(
    Struct, frozen=True, kw_only=True, rename="camel", tag_field="event", omit_defaults=True
):
    """Something that happened to a job. `at` is when the store recorded it."""

    stage: ClassVar[JobStage]
    schema_version: ClassVar[int] = 1

    job_id: JobId
    user_id: OpaqueId
    media_type: MediaType
    run: Run
    at: Moment
    previous: JobStage | None = None
    correlation_id: OpaqueId | None = None
    traceparent: TraceParent | None = None


class JobQueued(_Event, frozen=True, kw_only=True, tag="JobQueued"):
    stage: ClassVar[JobStage] = JobStage.QUEUED


class MetadataReady(_Event, frozen=True, kw_only=True, tag="MetadataReady"):
    stage: ClassVar[JobStage] = JobStage.METADATA_READY
    duration: Seconds | None = None
    size: Count | None = None


class TranscriptComplete(_Event, frozen=True, kw_only=True, tag="TranscriptComplete"):
    """The transcript itself is in the store, under the job's id."""

    stage: ClassVar[JobStage] = JobStage.TRANSCRIPT_COMPLETE
    language: Word | None = None
    segments: Count = 0
    characters: Count = 0


class JobFailed(_Event, frozen=True, kw_only=True, tag="JobFailed"):
    stage: ClassVar[JobStage] = JobStage.FAILED
    reason: Word
    attempts: Count = 1


class JobCancelled(_Event, frozen=True, kw_only=True, tag="JobCancelled"):
    stage: ClassVar[JobStage] = JobStage.CANCELLED


JobEvent: TypeAlias = JobQueued | MetadataReady | TranscriptComplete | JobFailed | JobCancelled


# Making them.


def new_job_id(user_id: str, client_key: str | None = None) -> str:
    """The same for the same key of the same user, so that asking twice is asking once."""
    if client_key is None:
        return f"job_{secrets.token_hex(16)}"
    digest = hashlib.sha256(f"{user_id}\0{client_key}".encode()).hexdigest()
    return f"job_{digest[:32]}"


def new_media_id() -> str:
    return f"med_{secrets.token_hex(16)}"


def opaque_user_id(name: str, secret: bytes = b"") -> str:
    """An id for a user who is known by a name or an address; with a secret it cannot be guessed
    back."""
    return f"usr_{hashlib.blake2b(name.encode(), key=secret[:64], digest_size=16).hexdigest()}"


def now() -> datetime:
    return datetime.now(UTC)


# Moving them.


def at_stage(job: ProcessingJob, stage: JobStage, info: Info | None = None) -> ProcessingJob:
    """The job as it goes on. `InvalidArgumentError` when it may not go there."""
    if not job.stage.may_become(stage):
        raise InvalidArgumentError(
            f"Job {job.job_id} is {job.stage} and cannot become {stage}; from {job.stage} it may "
            f"become {', '.join(sorted(_TRANSITIONS[job.stage])) or 'nothing else'}"
        )
    run = job.run + 1 if stage is JobStage.QUEUED else job.run
    again = stage is JobStage.QUEUED
    return replace(job, stage=stage, run=run, info=None if again else info or job.info)


def is_news(run: int, stage: JobStage, known_run: int, known_stage: JobStage) -> bool:
    """Whether (run, stage) is later in a job's life than what is known of it.

    Stages of a run come in one order and a run ends once, so messages may arrive late, twice or
    out of order: whatever is not later changes nothing.
    """
    return (run, stage.rank) > (known_run, known_stage.rank)
