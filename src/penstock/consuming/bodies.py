"""Bodies: bytes on the wire, values in handlers. The annotation says what, the content type how.

bytes, str       as they are
a pydantic model by pydantic
anything else    by msgspec: Struct, dataclass, attrs, TypedDict, dict, list, int, datetime, unions…

Without a `content-type` attribute a body is JSON; `application/msgpack` is read as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Protocol, TypeAlias, get_args

import msgspec

from penstock.errors import InvalidArgumentError
from penstock.outcomes import Reject

CONTENT_TYPE = "content-type"
JSON = "application/json"
MSGPACK = "application/msgpack"
TEXT = "text/plain"
BYTES = "application/octet-stream"
UNDECODABLE = "undecodable"

Decode: TypeAlias = Callable[[bytes], Any]


class Readable(Protocol):
    """A message, or a record of a log."""

    @property
    def data(self) -> bytes: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


# Enums and tags: the one place where msgspec shows what it found.
_quoted = re.compile(r" '.*'").sub
_MSGPACK_NAMES = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")


def decoder_of(kind: Any) -> Callable[[Readable], Any]:
    """What makes a body of this kind out of a message, or raises `Reject`.

    `InvalidArgumentError` when nothing can.
    """
    if kind is bytes:
        return attrgetter("data")
    if kind is str:
        return _read_text
    by_json, by_msgpack = _decoders(kind)

    def read(message: Readable) -> Any:
        attributes = message.attributes
        decode = by_json
        if attributes and CONTENT_TYPE in attributes:
            decode = _by_content_type(attributes[CONTENT_TYPE], by_json, by_msgpack)
        try:
            return decode(message.data)
        except (ValueError, RecursionError) as error:
            raise Reject(UNDECODABLE) from _without_input(error)

    return read


def encode(value: Any, content_type: str = JSON) -> bytes:
    """A value as the body of a message; bytes stay as they are."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str) and content_type != MSGPACK:
        return value.encode()
    try:
        if content_type == MSGPACK:
            return msgspec.msgpack.encode(value, enc_hook=_plain)
        if is_pydantic(type(value)):
            text: str = value.model_dump_json()
            return text.encode()
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(
            f"A {type(value).__name__} cannot be the body of a message: {error}; use bytes, text, "
            "a msgspec Struct, a dataclass, a pydantic model or what JSON can say"
        ) from None


def check_content_type(content_type: str) -> str:
    if content_type not in (JSON, MSGPACK):
        raise InvalidArgumentError(
            f"Bodies are written as {JSON!r} or {MSGPACK!r}, not {content_type!r}; for anything "
            "else make the bytes yourself"
        )
    return content_type


def content_type_of(kind: Any) -> str:
    """How a body of this kind is written unless told otherwise."""
    return {bytes: BYTES, str: TEXT}.get(kind, JSON)


def is_pydantic(kind: Any) -> bool:
    """A pydantic model. Asking must not import pydantic: who has a model has imported it."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


def uses_pydantic(kind: Any) -> bool:
    return is_pydantic(kind) or any(uses_pydantic(part) for part in get_args(kind))


def _decoders(kind: Any) -> tuple[Decode, Decode]:
    if uses_pydantic(kind):
        from pydantic import TypeAdapter

        adapter = TypeAdapter(kind)
        return adapter.validate_json, lambda data: adapter.validate_python(
            msgspec.msgpack.decode(data)
        )
    if kind is object:
        kind = Any
    try:
        # Refuses what the decoder would only refuse when the first message comes.
        msgspec.json.schema(kind)
        return msgspec.json.Decoder(kind).decode, msgspec.msgpack.Decoder(kind).decode
    except TypeError as error:
        raise InvalidArgumentError(str(error).splitlines()[-1]) from None


def _by_content_type(content_type: str, by_json: Decode, by_msgpack: Decode) -> Decode:
    name = content_type.partition(";")[0].strip().lower()
    if name in (JSON, "text/json", "") or name.endswith("+json"):
        return by_json
    if name in _MSGPACK_NAMES or name.endswith("+msgpack"):
        return by_msgpack
    raise Reject(UNDECODABLE) from ValueError(
        f"its content type is {content_type!r}; {JSON} and {MSGPACK} can be read, and a handler "
        "that takes bytes reads anything"
    )


def _read_text(message: Readable) -> str:
    try:
        return message.data.decode()
    except UnicodeDecodeError as error:
        raise Reject(UNDECODABLE) from _without_input(error)


def _without_input(error: BaseException) -> ValueError:
    """What was wrong and where, never what was there: errors are logged, bodies are not."""
    if isinstance(error, UnicodeDecodeError):
        return ValueError(f"not UTF-8: {error.reason} at byte {error.start}")
    details = getattr(error, "errors", None)
    if callable(details):
        found = details(include_input=False, include_url=False, include_context=False)
        places = [f"{'.'.join(map(str, one['loc'])) or '$'}: {one['type']}" for one in found]
        return ValueError("; ".join(places))
    return ValueError(_quoted("", str(error)))


def _plain(value: Any) -> Any:
    """Pydantic models inside other values."""
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is not something JSON can say")
