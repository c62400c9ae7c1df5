"""Topics, subscriptions and schemas from a file, made when the emulator starts.

    [[topics]]
    name = "orders"

    [[subscriptions]]
    name = "billing"
    topic = "orders"
    ackDeadlineSeconds = 30
    filter = 'attributes.stage = "Queued"'

Fields are those of Google's API, in either of its spellings; names may be short.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from penstock.emulator.services import Serve
from penstock.errors import AlreadyExistsError, InvalidArgumentError, PenstockError
from penstock.googlepubsub.messages import POOL, Subscription, Topic, message
from penstock.googlepubsub.names import SCHEMAS, SUBSCRIPTIONS, TOPICS

_KINDS = (SCHEMAS, TOPICS, SUBSCRIPTIONS)


def read(file: Path) -> dict[str, list[dict[str, Any]]]:
    """What a file asks for, by kind."""
    try:
        found = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error}") from None
    unknown = set(found) - set(_KINDS)
    if unknown:
        raise InvalidArgumentError(
            f"{file} has {sorted(unknown)[0]!r}; it can have {', '.join(sorted(_KINDS))}"
        )
    return found


async def provision(
    wanted: Mapping[str, list[dict[str, Any]]], project: str, serves: Mapping[str, Serve]
) -> None:
    """Make what is not there. What is there stays as it is."""
    for kind in _KINDS:
        for fields in wanted.get(kind, ()):
            name = fields.get("name", "")
            try:
                await _make(kind, _expanded(dict(fields), kind, project), project, serves)
            except AlreadyExistsError:
                continue
            except PenstockError as error:
                raise InvalidArgumentError(f"{kind} {name!r}: {error}") from None


async def _make(
    kind: str, fields: dict[str, Any], project: str, serves: Mapping[str, Serve]
) -> None:
    if kind == SCHEMAS:
        name = str(fields.pop("name", ""))
        request = message("CreateSchemaRequest")(
            parent=f"projects/{project}", schema_id=name.rpartition("/")[2]
        )
        await serves["CreateSchema"](_parsed(fields, request, request.schema))
    elif kind == TOPICS:
        await serves["CreateTopic"](_parsed(fields, Topic()))
    else:
        await serves["CreateSubscription"](_parsed(fields, Subscription()))


def _parsed(fields: dict[str, Any], request: Any, target: Any = None) -> Any:
    try:
        json_format.ParseDict(fields, request if target is None else target, descriptor_pool=POOL)
    except json_format.ParseError as error:
        raise InvalidArgumentError(str(error)) from None
    return request


def _expanded(fields: dict[str, Any], kind: str, project: str) -> dict[str, Any]:
    """Short names in full."""
    for field, of in (("name", kind), ("topic", TOPICS)):
        value = fields.get(field)
        if isinstance(value, str) and "/" not in value:
            fields[field] = f"projects/{project}/{of}/{value}"
    for spelling, topic in (
        ("deadLetterPolicy", "deadLetterTopic"),
        ("dead_letter_policy", "dead_letter_topic"),
    ):
        policy = fields.get(spelling)
        if isinstance(policy, dict) and "/" not in policy.get(topic, "/"):
            fields[spelling] = {**policy, topic: f"projects/{project}/{TOPICS}/{policy[topic]}"}
    for spelling in ("schemaSettings", "schema_settings"):
        settings = fields.get(spelling)
        if isinstance(settings, dict) and "/" not in settings.get("schema", "/"):
            schema = f"projects/{project}/{SCHEMAS}/{settings['schema']}"
            fields[spelling] = {**settings, "schema": schema}
    return fields
