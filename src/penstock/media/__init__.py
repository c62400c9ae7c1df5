"""What happens to media: fetch, probe, transcribe, extract. No messaging in here.

Every function that reads bytes of strangers runs in a guarded child process, and everything that
goes wrong is a `MediaError` with a stable reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.extras import loaded_later
from penstock.media.errors import MediaError
from penstock.media.guard.calling import (
    GuardPool,
    Limits,
    run_guarded,
    run_guarded_blocking,
    stream_guarded,
)
from penstock.media.reading.documents import DocumentText, extract_text, extract_text_blocking
from penstock.media.reading.probe import AudioStream, MediaInfo, VideoStream, probe, probe_blocking
from penstock.media.reading.transcribe import Transcriber
from penstock.media.speakers import SpeakerRole, SpeakerRoleRegistry
from penstock.media.transcript import Segment, Transcript

if TYPE_CHECKING:
    from penstock.media.fetching.source import MediaSource
    from penstock.media.youtube import YouTubeClient, YouTubeVideo, parse_video_id

__all__ = [
    "AudioStream",
    "DocumentText",
    "GuardPool",
    "Limits",
    "MediaError",
    "MediaInfo",
    "MediaSource",
    "Segment",
    "SpeakerRole",
    "SpeakerRoleRegistry",
    "Transcriber",
    "Transcript",
    "VideoStream",
    "YouTubeClient",
    "YouTubeVideo",
    "extract_text",
    "extract_text_blocking",
    "parse_video_id",
    "probe",
    "probe_blocking",
    "run_guarded",
    "run_guarded_blocking",
    "stream_guarded",
]

# What needs the HTTP client is loaded when first used: a guarded child starts faster without.
_LATER = {
    "MediaSource": "fetching.source",
    "YouTubeClient": "youtube",
    "YouTubeVideo": "youtube",
    "parse_video_id": "youtube",
}

if not TYPE_CHECKING:  # Or a name that is not there would pass for one that is.
    __getattr__ = loaded_later(__name__, _LATER)
