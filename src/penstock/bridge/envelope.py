"""The envelope: what travels between two apps. Built, read and checked here.

Two spellings are in use for the time (`occurred_at`, `produced_at`), the type (`event_type`,
`type`) and the version (1, "1.0"). Both are read; the first of each is written.
"""

from __future__ import annotations

import json
import re
import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Required, TypedDict

import msgspec
from msgspec import Struct

from penstock.errors import InvalidArgumentError
from penstock.message import MAX_MESSAGE_ID_BYTES, Draft, check_text

SCHEMA_VERSION = 1
TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# In the order in which the other implementations write them.
_KEYS = (
    "event_id",
    "schema_version",
    "event_type",
    "producer",
    "resource_id",
    "occurred_at",
    "trace_id",
    "resource_type",
    "payload",
)
_READ = {*_KEYS, "type", "produced_at"}


class MalformedEventError(InvalidArgumentError):
    """A message that is no event: not JSON, or not an envelope. It never will be."""


class Envelope(Struct, frozen=True, kw_only=True):
    """What one app tells another. `event_id` is its identity; empty when the sender gave none.

    `occurred_at` is None when the sender's cannot be read. `extra`: keys that are not ours.
    """

    event_id: str
    event_type: str
    resource_type: str
    resource_id: str
    payload: Mapping[str, Any]
    producer: str = ""
    schema_version: int | str = SCHEMA_VERSION
    occurred_at: datetime | None = None
    trace_id: str = ""
    extra: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.event_type!r} {self.event_id!r}>"

    def encode(self) -> bytes:
        """Its bytes on the wire; `InvalidArgumentError` when the payload has none."""
        body = {key: getattr(self, key) for key in _KEYS}
        body["occurred_at"] = _written(self.occurred_at) if self.occurred_at else None
        try:
            return msgspec.json.encode({**body, **self.extra})
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"Event {self.event_type!r} cannot be written as JSON: {type(error).__name__}"
            ) from None

    @property
    def ordering_key(self) -> str | None:
        """Events of one resource are to be seen in order."""
        return f"{self.resource_type}/{self.resource_id}" if self.resource_id else None

    def draft(
        self, subject: str, *, traceparent: str | None = None, ordering_key: str | None = None
    ) -> Draft:
        """As a message: the event's id is the message's, so that a repeat is dropped.

        `ordering_key`: the resource, unless given; empty for none.
        """
        return Draft.of(
            self.encode(),
            {TRACEPARENT: traceparent} if traceparent else None,
            self.ordering_key if ordering_key is None else ordering_key,
            self.event_id,
            subject,
        )


class Event(Envelope, frozen=True, kw_only=True):
    """An envelope that arrived: what a handler sees.

    `deliveries`: 1 for the first. `sequence`: of the message in its stream.
    """

    subject: str = ""
    stream: str = ""
    sequence: int = 0
    consumer: str = ""
    deliveries: int = 1
    headers: Mapping[str, str] = {}
    raw: bytes = b""
    """The message as it came."""

    @property
    def type(self) -> str:
        return self.event_type

    @property
    def traceparent(self) -> str | None:
        """W3C trace context, when the sender gave one that can be read."""
        found = find_header(self.headers, TRACEPARENT)
        return found if found is not None and _TRACEPARENT.fullmatch(found) else None


class EventFields(TypedDict, total=False):
    """What is said of an event that is made; only the first two must be.

    `payload`: an object: a mapping, dataclass or msgspec struct. `resource_type`: by default what
    `event_type` begins with. `resource_id`: by default the payload's `id` or `resource_id`.
    `event_id`: what it is known by; made unless given. `occurred_at`: by default now.
    `traceparent`: W3C trace context, to go along; the current span's, where there is one.
    `trace_id`: by default that of `traceparent`, or a new one.
    """

    event_type: Required[str]
    payload: Required[Any]
    resource_type: str | None
    resource_id: str | int | None
    event_id: str | None
    occurred_at: datetime | None
    trace_id: str | None
    traceparent: str | None


def build(
    *,
    producer: str,
    event_type: str,
    payload: Any,
    resource_type: str | None = None,
    resource_id: str | int | None = None,
    event_id: str | None = None,
    occurred_at: datetime | None = None,
    trace_id: str | None = None,
    traceparent: str | None = None,
) -> Envelope:
    """A new event, or `InvalidArgumentError`; see `EventFields`."""
    _check_filled("event_type", event_type)
    body = _object(payload)
    if resource_type is None:
        resource_type = event_type.partition(".")[0]
    _check_filled("resource_type", resource_type)
    if resource_id is None:
        resource_id = next((body[key] for key in ("id", "resource_id") if _has(body, key)), "")
    if event_id is not None:
        check_text("event_id", event_id, MAX_MESSAGE_ID_BYTES)
    if occurred_at is not None and (
        not isinstance(occurred_at, datetime) or occurred_at.tzinfo is None
    ):
        raise InvalidArgumentError("occurred_at must be a datetime with a time zone")
    return Envelope(
        event_id=(event_id or "").strip() or str(uuid.uuid4()),
        event_type=event_type,
        resource_type=resource_type,
        resource_id=_scalar("resource_id", resource_id),
        payload=body,
        producer=producer,
        occurred_at=(occurred_at or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0),
        trace_id=trace_id or _trace_id(traceparent) or secrets.token_hex(8),
    )


def parse(data: bytes) -> Envelope:
    """The envelope in `data`, or `MalformedEventError`, which does not quote it."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedEventError(f"Not JSON: {error}") from None
    if not isinstance(body, dict):
        raise MalformedEventError(f"An event is a JSON object, not {_kind(body)}")
    try:
        return _read(body)
    except InvalidArgumentError as error:
        raise MalformedEventError(f"Not an envelope: {error}") from None


def find_header(headers: Mapping[str, str], name: str) -> str | None:
    """By name in any case: senders differ."""
    found = headers.get(name)
    if found is None:
        found = next((headers[key] for key in headers if key.lower() == name.lower()), None)
    return found


def check_traceparent(text: str) -> str:
    if not isinstance(text, str) or not _TRACEPARENT.fullmatch(text):
        raise InvalidArgumentError(
            f"traceparent cannot be {text!r}; W3C trace context is 00-<32 hex>-<16 hex>-<2 hex>"
        )
    return text


def _read(body: dict[str, Any]) -> Envelope:
    event_type = _scalar("event_type", body.get("event_type") or body.get("type") or "")
    _check_filled("event_type", event_type)
    payload = body.get("payload")
    if payload is not None and not isinstance(payload, dict):
        raise InvalidArgumentError(f"payload must be an object, not {_kind(payload)}")
    version = body.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int | str | None):
        version = _scalar("schema_version", version)
    resource_type = _scalar("resource_type", body.get("resource_type"))
    event_id = _scalar("event_id", body.get("event_id")).strip()
    check_text("event_id", event_id, MAX_MESSAGE_ID_BYTES)
    return Envelope(
        event_id=event_id,
        event_type=event_type,
        resource_type=resource_type or event_type.partition(".")[0],
        resource_id=_scalar("resource_id", body.get("resource_id")),
        payload=payload or {},
        producer=_scalar("producer", body.get("producer")),
        schema_version=SCHEMA_VERSION if version is None else version,
        occurred_at=_time(body.get("occurred_at") or body.get("produced_at")),
        trace_id=_scalar("trace_id", body.get("trace_id")),
        extra={key: value for key, value in body.items() if key not in _READ},
    )


def _object(payload: Any) -> dict[str, Any]:
    try:
        plain = msgspec.to_builtins(payload, str_keys=True)
        # msgspec writes null for what JSON has no number for.
        json.dumps(plain, allow_nan=False)
    except (RecursionError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidArgumentError(f"The payload cannot be written as JSON: {error}") from None
    if not isinstance(plain, dict):
        raise InvalidArgumentError(f"The payload of an event is an object, not {_kind(plain)}")
    return plain


def _has(body: Mapping[str, Any], key: str) -> bool:
    return body.get(key) is not None and body[key] != ""


def _scalar(what: str, value: Any) -> str:
    """Text, or a number as text; empty for nothing."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgumentError(f"{what} must be text or a number, not {_kind(value)}")
    return str(value)


def _check_filled(what: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgumentError(f"An event needs {what}, as text")


def _trace_id(traceparent: str | None) -> str | None:
    if traceparent is None:
        return None
    found = _TRACEPARENT.fullmatch(check_traceparent(traceparent))
    return found[1] if found else None


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: Any) -> datetime | None:
    """A time that cannot be read is no reason to refuse the event."""
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return aware.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "true or false"}.get(
        type(value), "null" if value is None else "a number"
    )
