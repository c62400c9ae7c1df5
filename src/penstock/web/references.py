"""Which sources of jobs are refused at the door, before there is a job that could only fail."""

from __future__ import annotations

import re
from pathlib import PurePath

from penstock.errors import InvalidArgumentError
from penstock.jobs.model.job import Job
from penstock.jobs.model.names import MediaType
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.media import AudioJob, DocumentJob, VideoJob
from penstock.jobs.settings import UPLOAD, UPLOADS, MediaSettings
from penstock.media.errors import MediaError
from penstock.media.extensions import extension_of, kinds_instead
from penstock.media.fetching.source import MediaSource

_OF_MEDIA = {AudioJob: "audio", VideoJob: "video", DocumentJob: "document"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class References:
    """Says by its looks whether a worker could open a reference. Whether something is there is not
    asked: it may come, and the folder may be another machine's."""

    def __init__(self, settings: MediaSettings, pipeline: Pipeline) -> None:
        self._words = {kind: _words_of(job) for kind, job in pipeline.job_types.items()}
        # An API that was told nothing about media knows neither folder nor hosts of its workers.
        self._knows_places = settings.root is not None or bool(settings.hosts)
        self._media = MediaSource(
            settings.root,
            frozenset(settings.hosts),
            allow_http=settings.allow_http,
            reserved=frozenset({UPLOADS}),
        )

    def check(self, media_type: MediaType, source: str) -> str:
        """The source as it is, or `InvalidArgumentError`."""
        plain("source", source)
        named = source.strip().lower().startswith(UPLOAD)
        if named or source.lstrip("./").startswith(f"{UPLOADS}/"):
            raise InvalidArgumentError("Uploads are named by their uploadId")
        self.check_name(media_type, source)
        if self._words.get(media_type):
            self._check_media(source)
        return source

    def check_name(self, media_type: MediaType, name: str) -> None:
        """`InvalidArgumentError` when an extension belongs to another media type."""
        for word in self._words.get(media_type, ()):
            if instead := kinds_instead(word, name):
                raise InvalidArgumentError(
                    f"What ends in .{extension_of(name)} is no {word}; ask for it as "
                    f"{' or '.join(instead)}, or give it the extension of what it is"
                )

    def _check_media(self, source: str) -> None:
        try:
            self._media.check(source)
        except MediaError as error:
            leaves = ".." in PurePath(source).parts
            if error.reason == "forbidden" and not (self._knows_places or leaves):
                return
            why = "The file is outside the media folder" if leaves else error.message
            raise InvalidArgumentError(
                f"That source would be refused by the workers: {why}; give a path in the media "
                "folder or an https address of a media host, or upload the file"
            ) from None


def plain(name: str, text: str | None) -> str | None:
    """Control characters belong into no name, and not every database takes them."""
    if text is not None and _CONTROL.search(text):
        raise InvalidArgumentError(f"{name} has control characters; send it without them")
    return text


def _words_of(job: type[Job]) -> tuple[str, ...]:
    """What such jobs are about, in the words of our media."""
    return tuple(word for kind, word in _OF_MEDIA.items() if issubclass(job, kind))
