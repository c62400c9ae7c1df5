"""Which YouTube video is meant: its id, from its address. Pure."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from penstock.errors import InvalidArgumentError

_VIDEO_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_VIDEO_HOSTS = frozenset({"youtube.com", "www.youtube.com", "m.youtube.com", "music.youtube.com"})
_VIDEO_PATHS = frozenset({"shorts", "embed", "live", "v"})


def video_id_of(text: str) -> str:
    """The id in the address of a YouTube video, or the id itself."""
    if _VIDEO_ID.fullmatch(text):
        return text
    try:
        parts = urlsplit(text)
        host, port, path = parts.hostname or "", parts.port, parts.path.strip("/").split("/")
    except ValueError:
        raise _not_a_video() from None
    if parts.scheme not in ("http", "https") or parts.username is not None or port is not None:
        raise _not_a_video()
    found = ""
    if host == "youtu.be" and len(path) == 1:
        found = path[0]
    elif host in _VIDEO_HOSTS and path == ["watch"]:
        values = parse_qs(parts.query).get("v", [])
        found = values[0] if len(values) == 1 else ""
    elif host in _VIDEO_HOSTS and len(path) == 2 and path[0] in _VIDEO_PATHS:
        found = path[1]
    if not _VIDEO_ID.fullmatch(found):
        raise _not_a_video()
    return found


def _not_a_video() -> InvalidArgumentError:
    return InvalidArgumentError(
        "That is not a YouTube video: give its address, such as "
        "https://www.youtube.com/watch?v=…, or its id of 11 characters"
    )
