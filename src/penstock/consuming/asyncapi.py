"""An app described by AsyncAPI 3: its topics, what it receives and sends, and the shape of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from types import UnionType
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec

from penstock.connect import broker_kind
from penstock.consuming.app import App
from penstock.consuming.bodies import BYTES, MSGPACK, TEXT, content_type_of, uses_pydantic
from penstock.consuming.calling import Binding
from penstock.consuming.declaration import Publication
from penstock.consuming.results import published_kind
from penstock.consuming.signature import OfMessage

_SCHEMAS = "#/components/schemas/{name}"
_PLAIN = {bytes: {"type": "string", "format": "binary"}, str: {"type": "string"}}
_not_a_key = re.compile(r"[^\w.\-]").sub

Document = dict[str, Any]


def describe(app: App) -> Document:
    """The document, checked like an app that starts: `InvalidArgumentError` for one that could not.

    The broker is named without user or password, and only where it is on a network.
    """
    return _Describing(app).document()


class _Describing:
    def __init__(self, app: App) -> None:
        self._app = app
        self._channels: dict[str, Document] = {}
        self._operations: dict[str, Document] = {}
        self._messages: dict[str, Document] = {}
        self._schemas: dict[str, Document] = {}

    def document(self) -> Document:
        for binding in self._app.bindings():
            self._receive(binding)
            for publication in binding.subscriber.publications:
                self._send(binding, publication)
        first = next(iter(self._app.subscribers()), None)
        module = getattr(first and first.function, "__module__", "app")
        title = self._app.title or module
        return {
            "asyncapi": "3.0.0",
            "info": {"title": title, "version": self._app.version},
            "defaultContentType": "application/json",
            **_servers(self._app.url),
            "channels": self._channels,
            "operations": self._operations,
            "components": {"messages": self._messages, "schemas": self._schemas},
        }

    def _receive(self, binding: Binding) -> None:
        subscriber, body = binding.subscriber, binding.signature.body
        kind = body.kind if body is not None else bytes
        message = self._message(kind, content_type_of(kind), _headers(binding))
        self._operations[_key(f"{subscriber.subscription}.receive")] = {
            "action": "receive",
            **self._through(subscriber.topic, message),
            **_told(subscriber.function),
            "x-penstock": {
                "handler": subscriber.name,
                "subscription": subscriber.subscription,
                "batch": binding.signature.batch,
                "dead-letters": subscriber.dead_letters,
                "max-attempts": subscriber.max_attempts,
            },
        }

    def _send(self, binding: Binding, publication: Publication) -> None:
        kind = published_kind(binding.signature.returns)
        content_type = content_type_of(kind)
        if publication.content_type == MSGPACK and content_type not in (BYTES, TEXT):
            content_type = MSGPACK
        message = self._message(kind, content_type, None)
        operation = f"{binding.subscriber.subscription}.send.{publication.topic}"
        self._operations[_key(operation)] = {
            "action": "send",
            **self._through(publication.topic, message),
        }

    def _through(self, topic: str, message: str) -> Document:
        channel = _key(topic)
        entry = self._channels.setdefault(channel, {"address": topic, "messages": {}})
        entry["messages"][message] = {"$ref": f"#/components/messages/{message}"}
        return {
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}],
        }

    def _message(self, kind: Any, content_type: str, headers: Document | None) -> str:
        message: Document = {"contentType": content_type, "payload": self._schema(kind)}
        if headers:
            message["headers"] = headers
        base = _key(_name(kind))
        names = [base, *(f"{base}.{number}" for number in range(2, len(self._messages) + 3))]
        name = next(one for one in names if self._messages.get(one, message) == message)
        self._messages[name] = message
        return name

    def _schema(self, kind: Any) -> Document:
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if uses_pydantic(kind):
            from pydantic import TypeAdapter

            schema = TypeAdapter(kind).json_schema(
                ref_template=_SCHEMAS.replace("{name}", "{model}")
            )
            self._schemas.update(schema.pop("$defs", {}))
            return schema
        [schema], shared = msgspec.json.schema_components([kind], ref_template=_SCHEMAS)
        self._schemas.update(shared)
        return schema


def _headers(binding: Binding) -> Document | None:
    read = [one for one in binding.signature.sources if isinstance(one, OfMessage)]
    wanted = {one.attribute: one for one in read if one.attribute is not None}
    if not wanted:
        return None
    required = sorted(key for key, one in wanted.items() if one.required)
    return {
        "type": "object",
        "properties": {key: {"type": "string"} for key in sorted(wanted)},
        **({"required": required} if required else {}),
    }


def _servers(url: str) -> Document:
    parts = urlsplit(url)
    protocol = broker_kind(url).protocol
    if protocol is None or not parts.hostname:
        return {}
    host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    return {"servers": {"broker": {"host": host, "protocol": protocol}}}


def _told(function: Any) -> Document:
    text = inspect.getdoc(function)
    return {"description": text} if text and inspect.isroutine(function) else {}


def _name(kind: Any) -> str:
    """What a kind is called: its own name, or those of its parts."""
    parts: Iterable[Any] = get_args(kind)
    names = [_name(part) for part in parts if part is not Ellipsis]
    own = getattr(kind, "__name__", "") if not isinstance(kind, UnionType) else ""
    return "_".join([own, *names] if own and own not in ("Union", "Optional") else names) or "any"


def _key(text: str) -> str:
    """As keys and references may be written."""
    return _not_a_key("_", text)
