"""What the stages of media jobs do to each kind of media.

YouTube offers no recordings. `media.youtube_media` says where ours are, as a reference with
`{video_id}` in it, such as `youtube/{video_id}.m4a` in the media folder; without it such jobs end
with metadata and the reason `no_recording`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from penstock.jobs.pipeline.media import (
    AudioInfo,
    DocumentInfo,
    DocumentJob,
    Info,
    ProcessingJob,
    VideoInfo,
    VideoJob,
    YouTubeInfo,
    YouTubeJob,
)
from penstock.jobs.pipeline.stage import Done, Outcome, Reject, Retry, Text
from penstock.jobs.settings import UPLOAD, UPLOADS, JobSettings, MediaSettings
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.media.errors import MediaError
from penstock.media.extensions import DOCUMENTS, DocumentKind, extension_of
from penstock.media.fetching.source import MediaSource
from penstock.media.guard.calling import run_guarded
from penstock.media.reading.documents import CHARACTERS, PAGES, extract_text
from penstock.media.reading.probe import MediaInfo, check_decoder, probe
from penstock.media.reading.transcribe import Transcriber
from penstock.media.speakers import SpeakerRoleRegistry
from penstock.media.transcript import Segment
from penstock.media.youtube import YouTubeClient

NO_PICTURES = "none"
"""The codec of a video that is sound alone."""
# Containers of pictures with sound that are as common with sound alone.
_EITHER = frozenset(
    ("asf", "avi", "flv", "matroska", "mov", "mp4", "mpeg", "mpegts", "ogg", "webm")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaTools:
    """What handlers work with. One per process: a model is loaded once."""

    store: ProcessingJobStore
    source: MediaSource
    uploads: MediaSource
    transcriber: Transcriber
    speakers: SpeakerRoleRegistry
    youtube: YouTubeClient | None = None
    youtube_media: str | None = None
    max_pages: int = PAGES
    max_characters: int = CHARACTERS

    @asynccontextmanager
    async def media_of(self, job: ProcessingJob) -> AsyncIterator[tuple[str, Path]]:
        """A job's media, and what it is called. Where it is is in the store: addresses are not
        sent."""
        source, reference = self.source, ""
        if isinstance(job, YouTubeJob):
            if self.youtube_media is None:
                raise MediaError("no_recording", "media.youtube_media is not set")
            reference = self.youtube_media.replace("{video_id}", job.video_id)
        else:
            record = await self.store.get(job.job_id)
            if record is None:
                raise MediaError("not_found", f"Job {job.job_id} is not in the store")
            reference = record.source
            if reference.startswith(UPLOAD):
                source = self.uploads
                await asyncio.to_thread(source.check_ready, UPLOADS)
                reference = f"{UPLOADS}/{reference.removeprefix(UPLOAD)}"
        async with source.open(reference) as path:
            yield reference, path

    async def check_ready(self, stage: str) -> None:
        """`MediaError` of the reason `configuration` when a stage could work on no job."""
        if stage not in ("metadata", "transcription"):
            return
        if self.youtube is None or not self.source.is_closed:
            await asyncio.to_thread(self.source.check_ready)
        await run_guarded(check_decoder)
        if stage == "transcription":
            await asyncio.to_thread(self.transcriber.check)

    async def look(self, job: ProcessingJob) -> Outcome:
        """The stage metadata."""
        if isinstance(job, YouTubeJob):
            return await self._ask_youtube(job)
        async with self.media_of(job) as (reference, path):
            return Done(info=await _info(job, reference, path))

    async def _ask_youtube(self, job: YouTubeJob) -> Outcome:
        if self.youtube is None:
            return Reject("no_youtube_key")
        video = await self.youtube.video(job.video_id)
        if video.live:
            return Retry("live", after=600.0)
        info = YouTubeInfo(
            duration=video.duration,
            channel_id=video.channel_id,
            published_at=video.published_at,
            speaker_role=self.speakers.role(channel=video.channel_id),
            captions=video.caption,
        )
        return Done(info=info, title=video.title)

    async def listen(self, job: ProcessingJob) -> Outcome:
        """The stage transcription."""
        async with self.media_of(job) as (reference, path):
            if isinstance(job, DocumentJob):
                return await self._read_document(job, reference, path)
            return Done(text=await _transcribed(self.transcriber, path))

    async def _read_document(self, job: DocumentJob, reference: str, path: Path) -> Done:
        kind = _kind(reference)
        found = await extract_text(
            path, kind, max_pages=self.max_pages, max_characters=self.max_characters
        )
        info = DocumentInfo(
            size=job.info.size if job.info is not None else await _size(path),
            kind=kind,
            pages=found.pages,
            characters=found.characters,
            truncated=found.truncated,
        )
        text = Text(
            segments=[Segment(0, 0, found.text)], pages=found.pages, truncated=found.truncated
        )
        return Done(info=info, text=text)


def open_media_tools(
    settings: JobSettings, store: ProcessingJobStore
) -> AbstractAsyncContextManager[MediaTools]:
    """As the pipeline of media jobs names it."""
    return media_tools(settings.media, store)


@asynccontextmanager
async def media_tools(
    settings: MediaSettings, store: ProcessingJobStore
) -> AsyncIterator[MediaTools]:
    async with AsyncExitStack() as stack:
        youtube = None
        if settings.youtube_api_key is not None:
            youtube = await stack.enter_async_context(
                YouTubeClient(settings.youtube_api_key, settings.youtube_url)
            )
        speakers = SpeakerRoleRegistry()
        if settings.speakers is not None:
            speakers = await asyncio.to_thread(SpeakerRoleRegistry.load, settings.speakers)
        yield MediaTools(
            store=store,
            source=MediaSource(
                settings.root,
                frozenset(settings.hosts),
                max_bytes=settings.max_bytes,
                timeout=settings.fetch_timeout,
                allow_http=settings.allow_http,
                allow_loopback=settings.allow_loopback,
                reserved=frozenset({UPLOADS}),
            ),
            uploads=MediaSource(settings.root, max_bytes=settings.max_bytes),
            transcriber=Transcriber(
                settings.model, language=settings.language, threads=settings.threads
            ),
            speakers=speakers,
            youtube=youtube,
            youtube_media=settings.youtube_media,
            max_pages=settings.max_pages,
            max_characters=settings.max_characters,
        )


async def _info(job: ProcessingJob, reference: str, path: Path) -> Info:
    if isinstance(job, DocumentJob):
        return DocumentInfo(size=await _size(path), kind=_kind(reference))
    found = await probe(path)
    if isinstance(job, VideoJob):
        return _video_info(found)
    return _audio_info(found)


def _audio_info(found: MediaInfo) -> AudioInfo:
    if found.audio is None:
        raise MediaError("no_audio", "There is no sound in it")
    return AudioInfo(
        duration=found.duration or 0.0,
        size=found.size,
        container=found.container.lower()[:48],
        codec=found.audio.codec.lower()[:48],
        sample_rate=found.audio.sample_rate,
        channels=found.audio.channels,
    )


def _video_info(found: MediaInfo) -> VideoInfo:
    info = VideoInfo(
        duration=found.duration or 0.0,
        size=found.size,
        container=found.container.lower()[:48],
        codec=NO_PICTURES,
        audio_codec=found.audio.codec.lower()[:48] if found.audio else None,
    )
    if found.video is None:
        if not _EITHER & {*found.container.split(",")}:
            raise MediaError("no_video", "There are no pictures in it")
        # Sound alone, in a container whose name does not tell: there is all that is written down.
        return info
    return structs.replace(
        info,
        codec=found.video.codec.lower()[:48],
        width=found.video.width,
        height=found.video.height,
        frame_rate=min(found.video.frame_rate or 0.0, 1e6),
    )


async def _size(path: Path) -> int:
    return (await asyncio.to_thread(path.stat)).st_size


def _kind(reference: str) -> DocumentKind:
    """By its extension: the formats of documents cannot be told by their content alone."""
    kind = DOCUMENTS.get(extension_of(reference))
    if kind is None:
        known = ", ".join(sorted(DOCUMENTS))
        raise MediaError("unsupported", f"Documents are known by their extensions: {known}")
    return kind


async def _transcribed(transcriber: Transcriber, path: Path) -> Text:
    found = await transcriber.transcribe_async(path)
    return Text(
        segments=list(found.segments),
        language=found.language.lower()[:48],
        model=found.model,
        doubtful=found.doubtful,
    )
