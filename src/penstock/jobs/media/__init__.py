"""What happens to media: fetch, probe, transcribe, extract. No messaging in here.

Every function that reads bytes of strangers runs in a guarded child process, and everything that
goes wrong is a `MediaError` with a stable reason.

Names are loaded when first used: a guarded child starts faster without the HTTP client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jobs.media.documents import (
        DocumentText,
        extract_text,
        extract_text_blocking,
    )
    from penstock.jobs.media.errors import MediaError
    from penstock.jobs.media.guard import (
        GuardPool,
        Limits,
        run_guarded,
        run_guarded_blocking,
        stream_guarded,
    )
    from penstock.jobs.media.probe import (
        AudioInfo,
        MediaInfo,
        VideoInfo,
        probe,
        probe_blocking,
    )
    from penstock.jobs.media.source import MediaSource
    from penstock.jobs.media.speakers import SpeakerRole, SpeakerRoleRegistry
    from penstock.jobs.media.transcribe import Segment, Transcriber, Transcript
    from penstock.jobs.media.youtube import YouTubeClient, YouTubeVideo, parse_video_id

__all__ = [
    "AudioInfo",
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
    "VideoInfo",
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

_HOMES = {
    "documents": ["DocumentText", "extract_text", "extract_text_blocking"],
    "errors": ["MediaError"],
    "guard": ["GuardPool", "Limits", "run_guarded", "run_guarded_blocking", "stream_guarded"],
    "probe": ["AudioInfo", "MediaInfo", "VideoInfo", "probe", "probe_blocking"],
    "source": ["MediaSource"],
    "speakers": ["SpeakerRole", "SpeakerRoleRegistry"],
    "transcribe": ["Segment", "Transcriber", "Transcript"],
    "youtube": ["YouTubeClient", "YouTubeVideo", "parse_video_id"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
