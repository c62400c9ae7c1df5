"""What MEDIA are: files, addresses or videos, and how jobs for them are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from penstock.cli.plain_text import one_line
from penstock.errors import InvalidArgumentError
from penstock.jobs.model.names import MediaType
from penstock.media.extensions import DOCUMENTS, VIDEO, extension_of
from penstock.media.video_ids import video_id_of

if TYPE_CHECKING:
    from penstock.cli.jobs.api import Api

_LONGEST_TITLE = 500


def request(
    client: Api, media: str, kind: str, title: str | None, out: Console, *, remote: bool
) -> dict[str, Any]:
    """What to ask the API for; a file is uploaded first."""
    path = Path(media)
    body: dict[str, Any] = {"mediaType": str(kind)}
    if title is not None:
        body["title"] = title
    if remote or _is_address(media) or kind == MediaType.YOUTUBE:
        return body | {"source": media}
    # An upload has no name of its own, and nobody knows a job by its id.
    name = one_line(path.name)
    body.setdefault("title", name[:_LONGEST_TITLE])
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    ) as progress:
        task = progress.add_task(name, total=path.stat().st_size)
        upload = client.upload(path, lambda size: progress.advance(task, size))
    return body | {"uploadId": upload}


def name_of(media: str) -> str:
    """What to call it on a screen."""
    return media if _is_address(media) else Path(media).name or media


def kind_of(media: str, given: str | None, remote: bool) -> str:
    """What it is; an error when it is nothing that could be sent, before anything is."""
    if given == MediaType.YOUTUBE:
        video_id_of(media)
        return given
    named = remote or _is_address(media) or _is_file(media)
    if given is None and _is_video(media) and (_is_address(media) or not named):
        return MediaType.YOUTUBE
    if not named:
        raise InvalidArgumentError(
            f"There is no file {media}; give a file, an address (https://…) or a YouTube video, "
            "or say --remote when it is a path in the server's media folder"
        )
    return given or _guess(media)


def _is_address(media: str) -> bool:
    return "://" in media


def _is_file(media: str) -> bool:
    try:
        return Path(media).is_file()
    except OSError:
        return False


def _is_video(media: str) -> bool:
    try:
        video_id_of(media)
    except InvalidArgumentError:
        return False
    return True


def _guess(media: str) -> MediaType:
    if "youtube.com/" in media or "youtu.be/" in media:
        return MediaType.YOUTUBE
    extension = extension_of(media)
    if extension in VIDEO:
        return MediaType.VIDEO
    return MediaType.DOCUMENT if extension in DOCUMENTS else MediaType.AUDIO
