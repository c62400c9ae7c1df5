"""google.pubsub.v1.Subscriber: snapshots, and going back to them or to a time."""

from __future__ import annotations

from typing import Any

from penstock.emulator.administering.pages import page_of_project
from penstock.emulator.administering.resources import merged
from penstock.emulator.backend import Backend
from penstock.emulator.refusals import already_exists
from penstock.errors import AlreadyExistsError, InvalidArgumentError
from penstock.googlepubsub.messages import Empty, Snapshot, message
from penstock.googlepubsub.names import DELETED_TOPIC, SNAPSHOTS, SUBSCRIPTIONS, TOPICS
from penstock.googlepubsub.resources import moment_of, write_time

_Listed = message("ListSnapshotsResponse")
_Sought = message("SeekResponse")


class Snapshots:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._admin = backend.admin
        self._names = backend.names

    async def create_snapshot(self, request: Any) -> Any:
        name = self._names.of(SNAPSHOTS, request.name, "name")
        subscription = self._names.of(SUBSCRIPTIONS, request.subscription, "subscription")
        try:
            await self._admin.create_snapshot(name, subscription)
        except AlreadyExistsError:
            within = request.name.rpartition("/")[2]
            raise AlreadyExistsError(already_exists(within)) from None
        self._backend.keep(request.name, Snapshot(labels=request.labels))
        return await self._described(name)

    async def get_snapshot(self, request: Any) -> Any:
        return await self._described(self._name(request))

    async def update_snapshot(self, request: Any) -> Any:
        name = self._names.of(SNAPSHOTS, request.snapshot.name, "snapshot.name")
        async with self._backend.changing:
            now = await self._described(name)
            changed = merged(now, request.snapshot, request.update_mask)
            self._backend.keep(now.name, changed)
            return await self._described(name)

    async def list_snapshots(self, request: Any) -> Any:
        known = await self._admin.list_snapshots()
        found, token = await page_of_project(request, self._names, known, self._described)
        return _Listed(snapshots=found, next_page_token=token)

    async def delete_snapshot(self, request: Any) -> Any:
        await self._admin.delete_snapshot(self._name(request))
        self._backend.forget(request.snapshot)
        return Empty()

    async def seek(self, request: Any) -> Any:
        name = self._names.of(SUBSCRIPTIONS, request.subscription, "subscription")
        match request.WhichOneof("target"):
            case "time":
                await self._admin.seek(name, moment_of(request.time))
            case "snapshot":
                await self._admin.seek(
                    name, self._names.of(SNAPSHOTS, request.snapshot, "snapshot")
                )
            case _:
                raise InvalidArgumentError("Seek needs a target: either time or snapshot")
        self._backend.loans_ended(name)
        return _Sought()

    def _name(self, request: Any) -> str:
        return self._names.of(SNAPSHOTS, request.snapshot, "snapshot")

    async def _described(self, name: str) -> Any:
        status = await self._admin.describe_snapshot(name)
        resource = self._names.resource(SNAPSHOTS, name)
        snapshot = self._backend.kept(Snapshot, resource)
        snapshot.name = resource
        snapshot.topic = (
            DELETED_TOPIC if status.topic_deleted else self._names.resource(TOPICS, status.topic)
        )
        write_time(snapshot.expire_time, status.expires.timestamp_ns())
        return snapshot
