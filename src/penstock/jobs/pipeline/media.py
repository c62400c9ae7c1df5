"""Media jobs: a recording, a video or a document, from a request to its text.

    Queued ─ metadata ─▶ MetadataReady ─ transcription ─▶ TranscriptComplete

metadata        looks at the media, or asks YouTube, and fills in the job's info.
transcription   writes down what is said; the text of a document is taken from it as it is, so a
                document goes through the same stages as a recording.

What does the work is in `jobs/media_tools.py`, which is loaded when a stage runs: whoever asks for
jobs and answers about them needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

from msgspec import Struct

from penstock.jobs.model.event import JobCancelled, JobFailed, JobQueued, StageEvent
from penstock.jobs.model.fields import Count, Moment, OpaqueId, Rate, Seconds, VideoId, Word
from penstock.jobs.model.job import Job, Upgrade
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.declaration import Pipeline, tools_at
from penstock.jobs.pipeline.stage import Outcome, Stage
from penstock.media.speakers import SpeakerRole
from penstock.media.video_ids import video_id_of

# No docstrings but those there are: they are part of the schema of the messages.

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
    truncated: bool = False


Info: TypeAlias = AudioInfo | VideoInfo | YouTubeInfo | DocumentInfo


# Jobs.


def _audio_1_to_2(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 1 gave the duration in milliseconds, beside the job instead of in its info."""
    upgraded = dict(payload)
    milliseconds = upgraded.pop("durationMs", None)
    if isinstance(milliseconds, int) and isinstance(info := upgraded.get("info"), dict):
        upgraded["info"] = {**info, "duration": milliseconds / 1000}
    return upgraded


class AudioJob(Job, frozen=True, kw_only=True, tag="audio"):
    schema_version: ClassVar[int] = 2
    upgrades: ClassVar[Mapping[int, Upgrade]] = {1: _audio_1_to_2}
    info: AudioInfo | None = None


class VideoJob(Job, frozen=True, kw_only=True, tag="video"):
    info: VideoInfo | None = None


class YouTubeJob(Job, frozen=True, kw_only=True, tag="youtube"):
    video_id: VideoId
    info: YouTubeInfo | None = None

    @classmethod
    def of_source(cls, source: str) -> tuple[str, dict[str, Any]]:
        video_id = video_id_of(source)
        return video_id, {"videoId": video_id}


class DocumentJob(Job, frozen=True, kw_only=True, tag="document"):
    info: DocumentInfo | None = None


ProcessingJob: TypeAlias = AudioJob | VideoJob | YouTubeJob | DocumentJob


# Events.


class MetadataReady(StageEvent, frozen=True, kw_only=True):
    duration: Seconds | None = None
    size: Count | None = None


class TranscriptComplete(StageEvent, frozen=True, kw_only=True):
    """The transcript itself is in the store, under the job's id."""

    language: Word | None = None
    segments: Count = 0
    characters: Count = 0
    pages: Count | None = None
    truncated: bool = False
    doubtful: bool = False


JobEvent: TypeAlias = JobQueued | MetadataReady | TranscriptComplete | JobFailed | JobCancelled


# Stages.


class Worker(Protocol):
    """What does the work of both stages."""

    async def look(self, job: ProcessingJob) -> Outcome: ...

    async def listen(self, job: ProcessingJob) -> Outcome: ...


async def look(job: ProcessingJob, tools: Worker) -> Outcome:
    return await tools.look(job)


async def listen(job: ProcessingJob, tools: Worker) -> Outcome:
    return await tools.listen(job)


MEDIA = Pipeline(
    name="media",
    prefix="job",
    jobs=(AudioJob, VideoJob, YouTubeJob, DocumentJob),
    stages=(
        Stage(
            name="metadata",
            consumes=JobStage.QUEUED,
            emits=JobStage.METADATA_READY,
            event=MetadataReady,
            handler=look,
            defaults={"concurrency": 16, "time_limit": 120.0},
        ),
        Stage(
            name="transcription",
            consumes=JobStage.METADATA_READY,
            emits=JobStage.TRANSCRIPT_COMPLETE,
            event=TranscriptComplete,
            handler=listen,
            defaults={"concurrency": 2, "time_limit": 4 * 3600.0},
        ),
    ),
    tools=tools_at("penstock.jobs.media_tools:open_media_tools"),
)

MEDIA_REFERENCE = f"{__name__}:MEDIA"

encode_job, decode_job = MEDIA.codec.encode_job, MEDIA.codec.decode_job
encode_event, decode_event = MEDIA.codec.encode_event, MEDIA.codec.decode_event
json_schema = MEDIA.codec.json_schema
