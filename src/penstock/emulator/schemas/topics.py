"""Topics that ask for a schema: what is published to them is checked against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.emulator.refusals import ResourceNotFoundError
from penstock.emulator.schemas.definitions import BINARY, JSON, Definition, Definitions
from penstock.emulator.schemas.revisions import Revisions
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.messages import Schema
from penstock.googlepubsub.names import DELETED_SCHEMA

_ENCODINGS = {JSON: "JSON", BINARY: "BINARY"}


class TopicSchema:
    """The revisions a topic accepts, newest first."""

    def __init__(
        self, name: str, encoding: int, revisions: Sequence[tuple[str, Definition]]
    ) -> None:
        self._encoding = encoding
        self._revisions = [
            (
                definition,
                {
                    "googclient_schemaname": name,
                    "googclient_schemaencoding": _ENCODINGS[encoding],
                    "googclient_schemarevisionid": revision,
                },
            )
            for revision, definition in revisions
        ]

    def checked(self, messages: Sequence[Any]) -> list[Mapping[str, str]]:
        """Attributes that say which revision each message follows."""
        return [self._checked(at, message.data) for at, message in enumerate(messages)]

    def _checked(self, at: int, data: bytes) -> Mapping[str, str]:
        reason = ""
        for definition, attributes in self._revisions:
            try:
                definition.check(data, self._encoding)
            except ValueError as error:
                reason = reason or str(error)
            else:
                return attributes
        raise InvalidArgumentError(
            f"Invalid data in message: Message failed schema validation. (messages[{at}]: {reason})"
        )


class TopicSchemas:
    """`settings_of` finds what a topic was told about schemas."""

    def __init__(
        self,
        revisions: Revisions,
        definitions: Definitions,
        settings_of: Callable[[str], Any],
    ) -> None:
        self._revisions = revisions
        self._definitions = definitions
        self._settings_of = settings_of
        self._known: dict[str, TopicSchema] = {}
        revisions.on_change = self._known.clear

    async def of(self, topic: str) -> TopicSchema | None:
        """The schema of a topic; remembered until something about it changes."""
        known = self._known.get(topic)
        if known is None:
            settings = self._settings_of(topic)
            if settings is None:
                return None
            known = self._known[topic] = await self._read(settings)
        return known

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def check(self, topic: Any) -> None:
        """Refuse a topic that asks for what there is not."""
        if not topic.HasField("schema_settings"):
            return
        settings = topic.schema_settings
        if settings.schema == DELETED_SCHEMA:
            return
        if settings.encoding not in _ENCODINGS:
            raise InvalidArgumentError("schema_settings.encoding must be JSON or BINARY")
        self._accepted(settings)

    def show(self, topic: Any) -> None:
        """A topic outlives its schema, and says so."""
        settings = topic.schema_settings if topic.HasField("schema_settings") else None
        if settings is not None and not self._revisions.exists(settings.schema):
            settings.schema = DELETED_SCHEMA

    async def _read(self, settings: Any) -> TopicSchema:
        accepted = [
            (schema.revision_id, await self._definitions.read(schema.type, schema.definition))
            for schema in self._accepted(settings)
        ]
        return TopicSchema(settings.schema, settings.encoding, accepted)

    def _accepted(self, settings: Any) -> list[Any]:
        """From the last revision allowed back to the first."""
        revisions = self._revisions.all_of(settings.schema)
        newest = _index(revisions, settings.last_revision_id, 0)
        oldest = _index(revisions, settings.first_revision_id, len(revisions) - 1)
        if newest > oldest:
            raise InvalidArgumentError(
                "schema_settings.first_revision_id must not be newer than last_revision_id"
            )
        return revisions[newest : oldest + 1]


def _index(revisions: Sequence[Schema], revision: str, default: int) -> int:
    if not revision:
        return default
    for at, schema in enumerate(revisions):
        if schema.revision_id == revision:
            return at
    raise ResourceNotFoundError(f"{revisions[0].name}@{revision}")
