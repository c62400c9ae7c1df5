"""Schemas and their revisions, as they are kept."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from penstock.clock import Clock
from penstock.emulator.refusals import ResourceNotFoundError, already_exists
from penstock.emulator.store import Store
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from penstock.googlepubsub.messages import Schema, message
from penstock.googlepubsub.names import SCHEMAS, Names
from penstock.googlepubsub.resources import write_time

_Revisions = message("ListSchemaRevisionsResponse")
_MOST_REVISIONS = 20
_PREFIX = "schema:"


class Revisions:
    """Every schema has at least one revision; they are listed newest first."""

    def __init__(self, store: Store, names: Names, clock: Clock) -> None:
        self._store = store
        self._names = names
        self._clock = clock
        self.on_change: Callable[[], object] = lambda: None

    def names(self, project: str) -> list[str]:
        prefix = f"{_PREFIX}projects/{project}/{SCHEMAS}/"
        return [key.removeprefix(_PREFIX) for key in self._store.keys(prefix)]

    def exists(self, name: str) -> bool:
        return self._store.get(_PREFIX + name) is not None

    def all_of(self, name: str) -> list[Any]:
        self._names.of(SCHEMAS, name, "name")
        kept = self._store.get(_PREFIX + name)
        if kept is None:
            raise ResourceNotFoundError(name)
        return list(_Revisions.FromString(kept).schemas)

    def find(self, name: str) -> Any:
        """One revision: `name@revision`, or the newest."""
        bare, _, revision = name.partition("@")
        for schema in self.all_of(bare):
            if not revision or schema.revision_id == revision:
                return schema
        raise ResourceNotFoundError(name)

    def create(self, name: str, schema: Any) -> Any:
        self._names.of(SCHEMAS, name, "schema_id")
        if self.exists(name):
            raise AlreadyExistsError(already_exists(name.rpartition("/")[2]))
        return self._add(name, [], schema.type, schema.definition)

    def commit(self, name: str, kind: int, definition: str) -> Any:
        revisions = self.all_of(name)
        if kind != revisions[0].type:
            raise InvalidArgumentError(f"The type of schema {name} cannot be changed.")
        if len(revisions) >= _MOST_REVISIONS:
            raise ResourceExhaustedError(
                f"Schema {name} has {_MOST_REVISIONS} revisions already; delete one first."
            )
        return self._add(name, revisions, kind, definition)

    def delete_revision(self, name: str, revision: str) -> Any:
        revisions = self.all_of(name)
        left = [schema for schema in revisions if schema.revision_id != revision]
        if len(left) == len(revisions):
            raise ResourceNotFoundError(f"{name}@{revision}")
        if not left:
            raise FailedPreconditionError(
                f"Revision {revision} is the only one of schema {name}; delete the schema instead."
            )
        self._save(name, left)
        return left[0]

    def delete(self, name: str) -> None:
        self.all_of(name)
        self._store.drop(_PREFIX + name)
        self.on_change()

    def _add(self, name: str, revisions: list[Any], kind: int, definition: str) -> Any:
        added = Schema(
            name=name, type=kind, definition=definition, revision_id=secrets.token_hex(4)
        )
        write_time(added.revision_create_time, self._clock.time_ns())
        self._save(name, [added, *revisions])
        return added

    def _save(self, name: str, revisions: list[Any]) -> None:
        self._store.put(_PREFIX + name, _Revisions(schemas=revisions).SerializeToString())
        self.on_change()
