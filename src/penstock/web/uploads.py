"""Media that was sent to us: streamed into the media folder, under a name of our own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.jobs.job import new_media_id
from penstock.jobs.settings import MediaSettings

FOLDER = "uploads"
# Extensions tell documents apart; nothing else of a file's name is kept.
EXTENSIONS = frozenset(
    (
        *("aac", "avi", "flac", "flv", "m4a", "mkv", "mov", "mp3", "mp4", "mpeg", "mpg", "oga"),
        *("ogg", "opus", "ts", "wav", "webm", "wma"),
        *("docx", "htm", "html", "md", "pdf", "txt"),
    )
)


class TooLargeError(InvalidArgumentError):
    """An upload beyond the limit; 413 in HTTP."""


class Upload(Struct, frozen=True, rename="camel"):
    upload_id: str
    size: int


class Uploads:
    """Each user's uploads in a folder of their own, so that nobody can name another's."""

    def __init__(self, settings: MediaSettings) -> None:
        self._root = None if settings.root is None else Path(settings.root)
        self._max_bytes = settings.max_upload_bytes

    async def keep(
        self, user_id: str, extension: str, body: AsyncIterator[bytes], length: int | None
    ) -> Upload:
        """Write a body to disk; all of it is there when this returns."""
        if extension not in EXTENSIONS:
            raise InvalidArgumentError(
                f"Uploads are named by one of these extensions: {', '.join(sorted(EXTENSIONS))}"
            )
        if length is not None and length > self._max_bytes:
            raise self._too_large()
        upload_id = f"{new_media_id()}.{extension}"
        path = self._folder(user_id) / upload_id
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
        partial = path.with_suffix(".partial")
        size = 0
        try:
            with open(partial, "xb", opener=_private) as file:  # noqa: ASYNC230
                async for chunk in body:
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise self._too_large()
                    await asyncio.to_thread(file.write, chunk)
                if size == 0:
                    raise InvalidArgumentError("The upload is empty")
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)
        return Upload(upload_id, size)

    def source_of(self, user_id: str, upload_id: str) -> str:
        """Where a stage finds an upload: a path inside the media folder."""
        name, _, extension = upload_id.partition(".")
        known = name.startswith("med_") and name[4:].isalnum() and extension in EXTENSIONS
        if not known or not (self._folder(user_id) / upload_id).is_file():
            raise NotFoundError("There is no such upload; send it to POST /uploads first")
        return f"{FOLDER}/{user_id}/{upload_id}"

    def _folder(self, user_id: str) -> Path:
        if self._root is None:
            raise FailedPreconditionError(
                "This API takes no uploads: it has no media folder (media.root)"
            )
        return self._root / FOLDER / user_id

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"Uploads may have up to {self._max_bytes:,} bytes")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
