"""What a media file is: container, streams, duration. Never what its tags say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from msgspec import Meta, Struct

from penstock.media.errors import MediaError
from penstock.media.guard.calling import GuardPool, Limits, run_guarded, run_guarded_blocking

# Formats that hold one thing and refer to nothing outside themselves. Playlists, manifests and
# devices are not among them.
FORMATS = (
    "aac,ac3,aiff,amr,asf,avi,caf,flac,flv,matroska,mov,mp3,mp4,mpeg,mpegts,ogg,oga,opus,w64,"
    "wav,webm,au"
)
# Decoders that may run while a file is looked at; others are named without being opened.
CODECS = (
    "aac,aac_fixed,ac3,alac,amrnb,amrwb,av1,libdav1d,eac3,flac,h263,h264,hevc,mjpeg,mp1,mp1float,"
    "mp2,mp2float,mp3,mp3float,mpeg1video,mpeg2video,mpeg4,opus,libopus,pcm_alaw,pcm_f32be,"
    "pcm_f32le,pcm_f64le,pcm_mulaw,pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,pcm_s32be,pcm_s32le,"
    "pcm_s8,pcm_u8,speex,libspeex,theora,vorbis,vp8,vp9,wmav1,wmav2,adpcm_ms,adpcm_ima_wav,"
    "gsm_ms"
)
LONGEST = 7 * 24 * 3600.0

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.,-]{1,64}$")]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST)]
Rate = Annotated[int, Meta(gt=0, le=20_000_000_000)]
Count = Annotated[int, Meta(ge=0, le=10_000)]
Side = Annotated[int, Meta(gt=0, le=65_536)]


class AudioStream(Struct, frozen=True, kw_only=True):
    """The sound in a file."""

    codec: Name
    sample_rate: Annotated[int, Meta(ge=1000, le=1_536_000)]
    channels: Annotated[int, Meta(ge=1, le=255)]
    bit_rate: Rate | None = None


class VideoStream(Struct, frozen=True, kw_only=True):
    """The moving pictures in a file."""

    codec: Name
    width: Side
    height: Side
    frame_rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None


class MediaInfo(Struct, frozen=True, kw_only=True):
    """`duration` is None where the file does not say; `audio` and `video` where it has none."""

    container: Name
    duration: Seconds | None
    size: Annotated[int, Meta(ge=0)]
    streams: Count
    audio: AudioStream | None = None
    video: VideoStream | None = None


LIMITS = Limits(seconds=20, memory_bytes=384 << 20, output_bytes=64 << 10)


async def probe(
    path: Path | str | int, *, limits: Limits = LIMITS, pool: GuardPool | None = None
) -> MediaInfo:
    """What the file at `path` is; MediaError when it is nothing we read."""
    return await run_guarded(read_info, media=path, limits=limits, pool=pool)


def probe_blocking(
    path: Path | str | int, *, limits: Limits = LIMITS, pool: GuardPool | None = None
) -> MediaInfo:
    """`probe`, for code that has a thread to itself."""
    return run_guarded_blocking(read_info, media=path, limits=limits, pool=pool)


class NamelessFile:
    """Bytes for the decoder, without a name it could guess from or open again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read = file.read
        self.seek = file.seek
        self.tell = file.tell
        self.size = file.seek(0, 2)
        file.seek(0)


def open_container(file: NamelessFile) -> Any:
    """Runs in the guarded child. Refuses formats that are not on the list."""
    import av

    av.logging.set_level(av.logging.PANIC)
    if not file.size:
        raise MediaError("malformed", "The file is empty")
    options = {
        "format_whitelist": FORMATS,
        "codec_whitelist": CODECS,
        "protocol_whitelist": "none",
        "max_streams": "64",
        "probesize": "4000000",
        "analyzeduration": "5000000",
    }
    try:
        return av.open(file, options=options, metadata_errors="replace")
    except MemoryError:
        raise
    except Exception as error:
        text = f"It is no media we know how to read ({type(error).__name__})"
        raise MediaError("unsupported", text) from None


def check_decoder() -> None:
    """Runs in the guarded child: that what decodes is there."""
    import av

    av.logging.set_level(av.logging.PANIC)


def read_info(file: BinaryIO) -> MediaInfo:
    """Runs in the guarded child."""
    nameless = NamelessFile(file)
    with open_container(nameless) as container:
        streams = list(container.streams)
        audio = [s for s in streams if s.type == "audio"]
        video = [s for s in streams if s.type == "video" and not _is_a_picture(s)]
        if not audio and not video:
            raise MediaError("unsupported", "It has neither audio nor video")
        return MediaInfo(
            container=container.format.name,
            duration=_duration(container, audio + video),
            size=nameless.size,
            streams=len(streams),
            audio=_audio(audio[0]) if audio else None,
            video=_video(video[0]) if video else None,
        )


def _is_a_picture(stream: Any) -> bool:
    return bool(stream.disposition & stream.disposition.attached_pic)


def _duration(container: Any, streams: list[Any]) -> float | None:
    import av

    seconds: list[float] = []
    if container.duration is not None:
        seconds.append(container.duration / av.time_base)
    else:
        seconds += [float(s.duration * s.time_base) for s in streams if s.duration and s.time_base]
    return _sane(max(seconds), 0, LONGEST, "duration") if seconds else None


def _audio(stream: Any) -> AudioStream:
    context = stream.codec_context
    return AudioStream(
        codec=context.codec.canonical_name,
        sample_rate=int(_sane(context.sample_rate, 1000, 1_536_000, "sample rate")),
        channels=int(_sane(context.channels, 1, 255, "number of channels")),
        bit_rate=context.bit_rate or None,
    )


def _video(stream: Any) -> VideoStream:
    context = stream.codec_context
    rate = stream.average_rate
    return VideoStream(
        codec=context.codec.canonical_name,
        width=int(_sane(context.width, 1, 65_536, "width")),
        height=int(_sane(context.height, 1, 65_536, "height")),
        frame_rate=_sane(float(rate), 0, 1_000_000, "frame rate") if rate else None,
    )


def _sane(value: float | None, least: float, most: float, what: str) -> float:
    if value is None or not math.isfinite(value) or not least <= value <= most:
        raise MediaError(
            "malformed", f"The file gives a {what} that no {what} can be; make the file anew"
        )
    return value
