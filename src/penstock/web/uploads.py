"""Media that was sent to us: streamed into the media folder, under a name of our own.

The name follows from the user, the extension and the content, so the same file sent twice is one
upload, and a job that is asked for again with its key is the same job.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from penstock.jobs.settings import UPLOAD, UPLOADS, MediaSettings
from penstock.lifetime import running_beside
from penstock.media.extensions import EXTENSIONS
from penstock.retrying import Outage, do_every

_log = logging.getLogger("penstock.web")
# Nothing else of a file's name is kept than its extension, which tells documents apart.
_NAME = re.compile(r"med_[0-9a-f]{32}\.([a-z0-9]{1,5})")
_PARTIAL = ".partial"
# Whoever still sends writes all the time, so what has not changed for a day was given up.
_KEEP_PARTIALS = 86_400.0
_SWEEP_EVERY = 3600.0


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
        self._keep = settings.keep_uploads

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
        folder = self._folder(user_id)
        try:
            return await self._write(folder, user_id, extension, body)
        except OSError as error:
            _log.error("An upload cannot be kept in %s: %s", folder, error.strerror)
            raise UnavailableError(
                "The upload cannot be kept: the media folder is full or not there. Whoever runs "
                "this API must see to it: its log says more"
            ) from None

    async def _write(
        self, folder: Path, user_id: str, extension: str, body: AsyncIterator[bytes]
    ) -> Upload:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        partial = folder / f"{secrets.token_hex(16)}{_PARTIAL}"
        digest = hashlib.sha256(f"{user_id}\0{extension}\0".encode())
        size = 0
        try:
            with open(partial, "xb", opener=_private) as file:  # noqa: ASYNC230

                def write(chunk: bytes) -> None:
                    digest.update(chunk)
                    file.write(chunk)

                async for chunk in body:
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise self._too_large()
                    await asyncio.to_thread(write, chunk)
                if size == 0:
                    raise InvalidArgumentError("The upload is empty; is that the right file?")
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            upload_id = f"med_{digest.hexdigest()[:32]}.{extension}"
            await asyncio.to_thread(self._place, partial, folder / upload_id)
        finally:
            with suppress(OSError):  # with its folder gone, so is it
                partial.unlink()
        return Upload(upload_id, size)

    def _place(self, partial: Path, path: Path) -> None:
        if not _touch(path):  # else it has the same content
            partial.rename(path)
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            _sync(folder)

    def source_of(self, user_id: str, upload_id: str) -> str:
        """How a job names an upload: no path, so that only what was checked here is opened."""
        if not (_is_upload(upload_id) and _touch(self._folder(user_id) / upload_id)):
            raise NotFoundError("There is no such upload; send it to POST /uploads first")
        return f"{UPLOAD}{user_id}/{upload_id}"

    def sweep(self, older_than: float) -> int:
        """Remove what was not sent or asked for within `older_than` seconds, and what was sent
        in part a day ago; returns how many files."""
        if self._root is None:
            return 0
        now = time.time()
        removed = 0
        for path in (self._root / UPLOADS).glob("*/*"):
            if path.suffix == _PARTIAL:
                keep = _KEEP_PARTIALS
            elif _is_upload(path.name):
                keep = older_than
            else:
                continue
            with suppress(OSError):  # another process sweeps, too
                if path.lstat().st_mtime < now - keep:
                    path.unlink()
                    removed += 1
        return removed

    @asynccontextmanager
    async def sweeping(self, *_: object) -> AsyncIterator[None]:
        """Sweep now and every hour, while entered."""

        async def sweep() -> None:
            try:
                removed = await asyncio.to_thread(self.sweep, self._keep)
            except OSError as error:
                raise UnavailableError(str(error.strerror)) from None
            if removed:
                _log.info("%d old uploads were removed", removed)

        outage = Outage(_log, "Old uploads cannot be removed")
        async with running_beside(do_every(_SWEEP_EVERY, sweep, outage)):
            yield

    def _folder(self, user_id: str) -> Path:
        if self._root is None:
            raise FailedPreconditionError(
                "This API takes no uploads: it has no media folder (media.root)"
            )
        return self._root / UPLOADS / user_id

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"Uploads may have up to {self._max_bytes:,} bytes")


def _is_upload(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and match[1] in EXTENSIONS


def _touch(path: Path) -> bool:
    """Whether it is there; if so it counts as new, so that no sweep takes it from its next job."""
    with suppress(OSError):
        os.utime(path)
    return path.is_file()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(folder: Path) -> None:
    """A name survives a power failure once its folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
