"""What a file is, by the end of its name: the one list of what we take."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

DocumentKind = Literal["text", "markdown", "html", "pdf", "docx"]

AUDIO = frozenset(("aac", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav", "wma"))
VIDEO = frozenset(("avi", "flv", "mkv", "mov", "mp4", "mpeg", "mpg", "ts", "webm"))
DOCUMENTS: dict[str, DocumentKind] = {
    "txt": "text",
    "md": "markdown",
    "html": "html",
    "htm": "html",
    "pdf": "pdf",
    "docx": "docx",
}
EXTENSIONS = AUDIO | VIDEO | DOCUMENTS.keys()


def extension_of(reference: str) -> str:
    """Of a path or an address: in lower case, without the dot; empty when there is none."""
    path = reference.partition("?")[0].partition("#")[0]
    return PurePosixPath(path).suffix.lower().removeprefix(".")
