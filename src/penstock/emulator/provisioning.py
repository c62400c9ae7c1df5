"""Topics, subscriptions and schemas from a file, made when the emulator starts.

    [[topics]]
    name = "orders"

    [[subscriptions]]
    name = "billing"
    topic = "orders"
    ackDeadlineSeconds = 30
    filter = 'attributes.stage = "Queued"'

or the same in YAML. Fields are those of Google's API, in either of its spellings; names may be
short.
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
    parse = _parse_yaml if file.suffix in (".yaml", ".yml") else tomllib.loads
    try:
        found = parse(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{file} cannot be read: it has no {' or '.join(_KINDS)}")
    unknown = set(found) - set(_KINDS)
    if unknown:
        raise InvalidArgumentError(
            f"{file} has {min(map(str, unknown))!r}; it can have {', '.join(sorted(_KINDS))}"
        )
    for kind, wanted in found.items():
        if not isinstance(wanted, list) or not all(isinstance(one, dict) for one in wanted):
            raise InvalidArgumentError(f"{file}: {kind} must be a list of them, each with a name")
    return found


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InvalidArgumentError(
            "YAML needs pyyaml: pip install pyyaml, or write it as TOML"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


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
    _expand(fields, "name", kind, project)
    _expand(fields, "topic", TOPICS, project)
    for within, field, of in (
        ("deadLetterPolicy", "deadLetterTopic", TOPICS),
        ("dead_letter_policy", "dead_letter_topic", TOPICS),
        ("schemaSettings", "schema", SCHEMAS),
        ("schema_settings", "schema", SCHEMAS),
    ):
        inner = fields.get(within)
        if isinstance(inner, dict):
            fields[within] = dict(inner)
            _expand(fields[within], field, of, project)
    return fields


def _expand(fields: dict[str, Any], field: str, kind: str, project: str) -> None:
    value = fields.get(field)
    if isinstance(value, str) and "/" not in value:
        fields[field] = f"projects/{project}/{kind}/{value}"
