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
# What each kind of media may be called: sound is read from films as well, and some containers of
# sound hold pictures.
_NAMES = {
    "audio": AUDIO | VIDEO,
    "video": VIDEO | {"m4a", "oga", "ogg", "wma"},
    "document": frozenset(DOCUMENTS),
}


def extension_of(reference: str) -> str:
    """Of a path or an address: in lower case, without the dot; empty when there is none."""
    path = reference.partition("?")[0].partition("#")[0]
    return PurePosixPath(path).suffix.lower().removeprefix(".")


def kinds_instead(kind: str, reference: str) -> tuple[str, ...]:
    """What something must be by its name, if that is not a `kind`; nothing for names that say
    nothing."""
    extension = extension_of(reference)
    if extension in _NAMES[kind]:
        return ()
    return tuple(other for other, names in _NAMES.items() if extension in names)
