"""Requests and answers between JSON over HTTP and the calls they stand for. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import msgspec
from google.protobuf import json_format

from penstock.emulator.refusals import info_of, text_of
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.googlepubsub.calls import RPCS, HttpRule, Rpc
from penstock.googlepubsub.messages import POOL

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_VARIABLE = re.compile(r"\{([a-z_.]+)=([^}]+)\}")
# What Google's API takes with every call and no message has a field for.
_OF_THE_API = {
    *("alt", "$alt", "prettyPrint", "fields", "callback", "quotaUser", "$.xgafv"),
    *("key", "access_token", "oauth_token", "uploadType", "upload_protocol"),
}
_HTTP_CODES = {3: 400, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 12: 501, 14: 503, 16: 401, 4: 504}
_STATUSES = {
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    12: "UNIMPLEMENTED",
    14: "UNAVAILABLE",
    16: "UNAUTHENTICATED",
}


class Route(msgspec.Struct, frozen=True):
    rpc: Rpc
    rule: HttpRule
    pattern: re.Pattern[str]


def _pattern(path: str) -> re.Pattern[str]:
    """`/v1/{topic=projects/*/topics/*}:publish` as an expression with the field as a group."""
    parts, at = [], 0
    for variable in _VARIABLE.finditer(path):
        field, template = variable.groups()
        # A colon belongs to a project's name, and ends that of anything in it.
        inner = re.escape(template).replace(r"\*", "[^/]+")
        if template.count("*") > 1:
            inner = inner.removesuffix("[^/]+") + "[^/:]+"
        parts += [
            re.escape(path[at : variable.start()]),
            f"(?P<{field.replace('.', '__')}>{inner})",
        ]
        at = variable.end()
    return re.compile("".join([*parts, re.escape(path[at:])]))


_ROUTES = [Route(rpc, rule, _pattern(rule.path)) for rpc in RPCS for rule in rpc.http]


def find(verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The call behind a path, and the fields that the path names."""
    for route in _ROUTES:
        if route.rule.verb == verb and (found := route.pattern.fullmatch(path)):
            return route, {
                field.replace("__", "."): unquote(value)
                for field, value in found.groupdict().items()
            }
    return None


def request_of(
    route: Route, fields: dict[str, str], query: list[tuple[str, str]], body: bytes
) -> Any:
    """The message that a request stands for, or `InvalidArgumentError` that names the field."""
    message = route.rpc.request()
    try:
        if route.rule.body and body.strip():
            content = _decode(body)
            if route.rule.body != "*":
                content = {route.rule.body: content}
            json_format.ParseDict(content, message, descriptor_pool=POOL)
        json_format.ParseDict(_nested(query), message, descriptor_pool=POOL)
    except (json_format.ParseError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"Invalid JSON payload received. {error}") from None
    for field, value in fields.items():
        *parents, last = field.split(".")
        owner = message
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, last, value)
    return message


def answer_of(message: Any) -> bytes:
    return msgspec.json.encode(json_format.MessageToDict(message, descriptor_pool=POOL))


def error_of(error: PenstockError) -> tuple[int, bytes]:
    """Status and body of a refusal, as Google's API words them."""
    code = _HTTP_CODES.get(error.code, 500)
    status = _STATUSES.get(error.code, "INTERNAL")
    told: dict[str, Any] = {"code": code, "message": text_of(error), "status": status}
    info = info_of(error)
    if info is not None:
        known = json_format.MessageToDict(info)
        told["details"] = [{"@type": f"type.googleapis.com/{info.DESCRIPTOR.full_name}", **known}]
    return code, msgspec.json.encode({"error": told})


def _nested(query: list[tuple[str, str]]) -> dict[str, Any]:
    """`a.b=1&c=2&c=3` as a dictionary."""
    found: dict[str, Any] = {}
    for name, value in query:
        if name in _OF_THE_API:
            continue
        *parents, last = name.split(".")
        owner = found
        for parent in parents:
            owner = owner.setdefault(parent, {})
            if not isinstance(owner, dict):
                raise json_format.ParseError(f"{parent!r} has a value and fields, in {name!r}.")
        if last in owner:
            before = owner[last]
            owner[last] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            owner[last] = value
    return found
