"""google.pubsub.v1.SchemaService."""

from __future__ import annotations

from typing import Any

from penstock.emulator.administering.pages import page_of
from penstock.emulator.backend import Backend
from penstock.emulator.schemas.definitions import BINARY, JSON, Definitions
from penstock.emulator.schemas.revisions import Revisions
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.messages import Empty, Schema, message
from penstock.googlepubsub.names import SCHEMAS

_FULL = 2
_Listed = message("ListSchemasResponse")
_ListedRevisions = message("ListSchemaRevisionsResponse")
_SchemaIsValid = message("ValidateSchemaResponse")
_MessageIsValid = message("ValidateMessageResponse")


class SchemaService:
    def __init__(self, backend: Backend, revisions: Revisions, definitions: Definitions) -> None:
        self._backend = backend
        self._revisions = revisions
        self._definitions = definitions

    async def create_schema(self, request: Any) -> Any:
        project = self._backend.names.project_of(request.parent, "parent")
        name = f"projects/{project}/{SCHEMAS}/{request.schema_id}"
        self._backend.names.of(SCHEMAS, name, "schema_id")
        await self._read(request.schema)
        return self._revisions.create(name, request.schema)

    async def get_schema(self, request: Any) -> Any:
        found = self._revisions.find(request.name)
        # Whoever asks for one schema wants to see it.
        return _shown(found, request.view or _FULL)

    async def list_schemas(self, request: Any) -> Any:
        project = self._backend.names.project_of(request.parent, "parent")
        names = self._revisions.names(project)
        page, token = page_of(names, request.page_size, request.page_token)
        schemas = [_shown(self._revisions.find(name), request.view) for name in page]
        return _Listed(schemas=schemas, next_page_token=token)

    async def list_schema_revisions(self, request: Any) -> Any:
        revisions = self._revisions.all_of(request.name)
        # Newest first: a page's place is its number.
        numbered = {f"{at:04d}": schema for at, schema in enumerate(revisions)}
        page, token = page_of(numbered, request.page_size, request.page_token)
        schemas = [_shown(numbered[at], request.view) for at in page]
        return _ListedRevisions(schemas=schemas, next_page_token=token)

    async def commit_schema(self, request: Any) -> Any:
        self._revisions.all_of(request.name)
        await self._read(request.schema)
        return self._revisions.commit(request.name, request.schema.type, request.schema.definition)

    async def rollback_schema(self, request: Any) -> Any:
        old = self._revisions.find(f"{request.name}@{request.revision_id}")
        return self._revisions.commit(request.name, old.type, old.definition)

    async def delete_schema_revision(self, request: Any) -> Any:
        name, _, revision = request.name.partition("@")
        return self._revisions.delete_revision(name, revision or request.revision_id)

    async def delete_schema(self, request: Any) -> Any:
        self._revisions.delete(request.name)
        self._backend.forget(request.name)
        return Empty()

    async def validate_schema(self, request: Any) -> Any:
        self._backend.names.project_of(request.parent, "parent")
        await self._read(request.schema)
        return _SchemaIsValid()

    async def validate_message(self, request: Any) -> Any:
        self._backend.names.project_of(request.parent, "parent")
        if request.encoding not in (JSON, BINARY):
            raise InvalidArgumentError("encoding must be JSON or BINARY")
        match request.WhichOneof("schema_spec"):
            case "name":
                schema = self._revisions.find(request.name)
            case "schema":
                schema = request.schema
            case _:
                raise InvalidArgumentError("ValidateMessage needs a schema or the name of one")
        definition = await self._read(schema)
        try:
            definition.check(request.message, request.encoding)
        except ValueError as error:
            raise InvalidArgumentError(f"Invalid schema message: {error}") from None
        return _MessageIsValid()

    async def _read(self, schema: Any) -> Any:
        return await self._definitions.read(schema.type, schema.definition)


def _shown(schema: Any, view: int) -> Any:
    """With or without its definition."""
    if view == _FULL:
        return schema
    shown = Schema()
    shown.CopyFrom(schema)
    shown.ClearField("definition")
    return shown
