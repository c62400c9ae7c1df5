"""google.iam.v1.IAMPolicy: policies are kept and shown; nobody is refused anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy

from penstock.emulator.backend import Backend, policy_key
from penstock.emulator.refusals import ResourceNotFoundError
from penstock.emulator.schemas.revisions import Revisions
from penstock.errors import NotFoundError
from penstock.googlepubsub.names import SCHEMAS, SNAPSHOTS, SUBSCRIPTIONS, TOPICS

_Tested = iam_policy_pb2.TestIamPermissionsResponse


class IamPolicy:
    def __init__(self, backend: Backend, schemas: Revisions) -> None:
        self._backend = backend
        self._schemas = schemas
        admin = backend.admin
        self._describe: dict[str, Callable[[str], Awaitable[object]]] = {
            TOPICS: admin.describe_topic,
            SUBSCRIPTIONS: admin.describe_subscription,
            SNAPSHOTS: admin.describe_snapshot,
        }

    async def set_iam_policy(self, request: Any) -> Any:
        await self._check(request.resource)
        self._backend.keep(policy_key(request.resource), request.policy)
        return request.policy

    async def get_iam_policy(self, request: Any) -> Any:
        await self._check(request.resource)
        return self._backend.kept(Policy, policy_key(request.resource))

    async def test_iam_permissions(self, request: Any) -> Any:
        try:
            await self._check(request.resource)
        except NotFoundError:
            return _Tested()  # On what is not there nobody may do anything.
        return _Tested(permissions=request.permissions)

    async def _check(self, resource: str) -> None:
        """It must be there."""
        kind = [*resource.split("/"), "", "", ""][2]
        describe = self._describe.get(kind)
        if describe is not None:
            await describe(self._backend.names.of(kind, resource, "resource"))
        elif kind != SCHEMAS or not self._schemas.exists(resource):
            raise ResourceNotFoundError(resource)
