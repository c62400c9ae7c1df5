"""What every broker takes: the limits of a message, and checks that refuse what is beyond them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain

from penstock.errors import InvalidArgumentError

MAX_DATA_BYTES = 10 * 2**20
MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024
MAX_MESSAGE_ID_BYTES = 1024
MAX_ACK_DEADLINE = 600.0
# What Google's own clients and its schemas add, and therefore may be passed on.
_GOOGLE_CLIENTS = "googclient_"

_control_character = re.compile(r"[\x00-\x1f\x7f]").search


def check_ack_deadline(seconds: float, *, least: float = 0) -> float:
    """`seconds` as a float within `least` to 600, or `InvalidArgumentError`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(
            f"Ack deadline must be a number of seconds, not {type(seconds).__name__}"
        )
    if not least <= seconds <= MAX_ACK_DEADLINE:
        raise InvalidArgumentError(
            f"Ack deadline must be between {least:g} and 600 seconds, not {seconds!r}"
        )
    return float(seconds)


def as_bytes(data: object) -> bytes:
    """A copy that nobody can change, or `InvalidArgumentError`."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "; encode it first: text.encode()" if isinstance(data, str) else ""
    raise InvalidArgumentError(f"Message data must be bytes, not {type(data).__name__}{hint}")


def checked_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(attributes, Mapping):
        raise InvalidArgumentError(
            f"Attributes must be a mapping of text to text, not {type(attributes).__name__}"
        )
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidArgumentError(
            f"A message has at most {MAX_ATTRIBUTES} attributes, not {len(attributes)}"
        )
    checked = dict(attributes)
    if _are_plain(checked):
        return checked
    for key, value in checked.items():
        if not _is_plain(key, MAX_ATTRIBUTE_KEY_BYTES):
            check_text("Attribute key", key, MAX_ATTRIBUTE_KEY_BYTES)
        if not key or (key.startswith("goog") and not key.startswith(_GOOGLE_CLIENTS)):
            raise InvalidArgumentError(
                f"Attribute key {key!r} is not allowed: it must not be empty or start with 'goog'"
            )
        if not _is_plain(value, MAX_ATTRIBUTE_VALUE_BYTES):
            check_text(f"Value of attribute {key!r}", value, MAX_ATTRIBUTE_VALUE_BYTES)
    return checked


def _are_plain(attributes: dict[str, str]) -> bool:
    """What nearly all attributes are, found out at once: together no longer than one may be."""
    try:
        text = all_text(attributes)
    except TypeError:
        return False
    plain = _is_plain(text, MAX_ATTRIBUTE_KEY_BYTES)
    return plain and "" not in attributes and "goog" not in text


def all_text(attributes: Mapping[str, str]) -> str:
    return "".join(chain.from_iterable(attributes.items()))


def _is_plain(text: object, limit: int) -> bool:
    """What nearly all text is, found out in a quarter of the time: nothing is wrong with it."""
    return isinstance(text, str) and len(text) <= limit and text.isascii() and text.isprintable()


def check_text(what: str, text: object, limit: int) -> None:
    """Text that may travel in a header: no control characters, and no longer than that."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} must be text, not {type(text).__name__}")
    if found := _control_character(text):
        raise InvalidArgumentError(
            f"{what} has the control character {found[0]!r} at position {found.start()}; remove it"
        )
    try:
        size = bytes_of(text)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} is not valid text: {error.reason}") from None
    if size > limit:
        raise InvalidArgumentError(f"{what} is {size} bytes long; at most {limit} are allowed")


def bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
