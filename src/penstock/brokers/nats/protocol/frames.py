"""How the server's words are cut: lines, and messages that say how long they are.

Whoever sends something else is no NATS server, or one whose words we have lost track of. Nothing
that follows can be understood then, so the connection ends.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnavailableError

END = b"\r\n"
# The longest is INFO, with the addresses of a cluster in it; a server reads no line above 4 KB
# itself, unless it is told to.
MAX_LINE = 64 * 1024
# The largest payload a server can be configured to take, and room for headers it adds.
MAX_MESSAGE = 65 * 2**20


def nonsense(what: str) -> UnavailableError:
    """`what` came, which no NATS server sends. It never holds what was in a message."""
    return UnavailableError(f"The NATS server sent {what}; connecting anew")


def find_end(data: bytes, at: int) -> int:
    """Where the line that begins at `at` ends; -1 when the rest of it is still to come."""
    end = data.find(END, at, at + MAX_LINE)
    if end < 0 and len(data) - at >= MAX_LINE:
        raise nonsense(f"a line of more than {MAX_LINE:,} bytes")
    return end


def read_head(words: list[bytes]) -> tuple[bytes, int, int]:
    """Reply subject, bytes of headers, and bytes of headers and payload, of the words that
    announce a message: `MSG subject sid [reply] size` or `HMSG subject sid [reply] size size`."""
    try:
        all_digits = words[-1].isdigit()
        if words[0] == b"HMSG":
            all_digits = all_digits and words[-2].isdigit()
            header, total, most = int(words[-2]), int(words[-1]), 6
        else:
            header, total, most = 0, int(words[-1]), 5
    except (ValueError, IndexError):
        raise nonsense("a message without its size") from None
    if not all_digits:  # `int` takes more than those.
        raise nonsense("a message with a size that is no number")
    if not 0 <= header <= total <= MAX_MESSAGE:
        check_sizes(header, total)
    if not most - 1 <= len(words) <= most:
        raise nonsense(f"a message announced by {len(words)} words")
    return words[3] if len(words) == most else b"", header, total


def check_sizes(header: int, total: int) -> None:
    """Raise unless a message may have so many bytes of headers, and of headers and payload."""
    if not 0 <= header <= total <= MAX_MESSAGE:
        raise nonsense(f"a message of {total:,} bytes with {header:,} bytes of headers")


def read_info(text: bytes) -> dict[str, Any]:
    """What the server says of itself."""
    try:
        info = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise nonsense("an INFO that cannot be read") from None
    check_info(info)
    return info


def check_info(info: dict[str, Any]) -> None:
    """Raise unless a server may say this of itself."""
    most = info.get("max_payload", 1)
    if type(most) is not int or most < 1:
        raise nonsense("an INFO without a size that payloads may have")


def check_body(data: bytes, end: int) -> None:
    """Raise unless a message that should be over at `end` is."""
    if data[end : end + 2] != END:
        raise nonsense("a message of another size than it said")
