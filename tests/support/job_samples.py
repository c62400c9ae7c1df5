"""One of each job and event, with every field filled in."""

from datetime import UTC, datetime
from typing import Any

from penstock.jobs import (
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
)

WHEN = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
_COMMON: dict[str, Any] = {
    "job_id": "job_" + "0123456789abcdef" * 2,
    "user_id": "usr_42",
    "media_id": "med_" + "fedcba9876543210" * 2,
    "created_at": WHEN,
    "stage": JobStage.METADATA_READY,
    "run": 2,
    "correlation_id": "order-7",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}

JOBS: dict[str, ProcessingJob] = {
    "audio": AudioJob(
        **_COMMON,
        info=AudioInfo(
            duration=61.5,
            size=123_456,
            container="wav",
            codec="pcm_s16le",
            sample_rate=16_000,
            channels=1,
        ),
    ),
    "video": VideoJob(
        **_COMMON,
        info=VideoInfo(
            duration=61.5,
            size=123_456,
            container="mov,mp4,m4a",
            codec="h264",
            width=640,
            height=360,
            frame_rate=25.0,
            audio_codec="aac",
        ),
    ),
    "youtube": YouTubeJob(
        **_COMMON,
        video_id="dQw4w9WgXcQ",
        info=YouTubeInfo(
            duration=213.0,
            channel_id="UC_x5XG1OV2P6uZZ5FSM9Ttw",
            published_at=WHEN,
            speaker_role=SpeakerRole.HOST,
            captions=True,
        ),
    ),
    "document": DocumentJob(
        **_COMMON, info=DocumentInfo(size=2048, kind="pdf", pages=3, characters=1500)
    ),
}

_ABOUT: dict[str, Any] = {
    "job_id": _COMMON["job_id"],
    "user_id": "usr_42",
    "media_type": MediaType.AUDIO,
    "run": 1,
    "at": WHEN,
    "correlation_id": "order-7",
    "traceparent": _COMMON["traceparent"],
}

EVENTS: dict[str, JobEvent] = {
    "JobQueued": JobQueued(**_ABOUT),
    "MetadataReady": MetadataReady(**_ABOUT, previous=JobStage.QUEUED, duration=61.5, size=123_456),
    "TranscriptComplete": TranscriptComplete(
        **_ABOUT,
        previous=JobStage.METADATA_READY,
        language="en",
        segments=12,
        characters=900,
    ),
    "JobFailed": JobFailed(**_ABOUT, previous=JobStage.QUEUED, reason="malformed", attempts=3),
    "JobCancelled": JobCancelled(**_ABOUT, previous=JobStage.QUEUED),
}
