"""What every job is, whatever it is about. Pure."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, TypeAlias, get_type_hints

from msgspec import Struct, structs

from penstock.jobs.model.fields import JobId, MediaId, Moment, OpaqueId, Run, TraceParent
from penstock.jobs.model.names import JobStage, MediaType

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class Job(
    Struct, frozen=True, kw_only=True, rename="camel", tag_field="mediaType", omit_defaults=True
):
    """The payload of a message that asks for a stage. Subclass it for each media type, which is
    the subclass's `tag`; a field `info` holds what stages find out and what goes on with the job.

    `run` counts from 1, one more each time it is retried by hand.
    """

    schema_version: ClassVar[int] = 1
    upgrades: ClassVar[Mapping[int, Upgrade]] = {}
    """How a payload of a version becomes one of the next."""

    job_id: JobId
    user_id: OpaqueId
    media_id: MediaId
    created_at: Moment
    stage: JobStage = JobStage.QUEUED
    run: Run = 1
    correlation_id: OpaqueId | None = None
    traceparent: TraceParent | None = None

    @property
    def media_type(self) -> MediaType:
        return media_type_of(type(self))

    @classmethod
    def of_source(cls, source: str) -> tuple[str, dict[str, Any]]:
        """What is asked for as it is kept, and the fields of its own that such a job has."""
        return source, {}


@cache
def media_type_of(kind: type[Job]) -> MediaType:
    return MediaType.named(str(kind.__struct_config__.tag))


@cache
def info_type(kind: type[Job]) -> Any:
    """What `info` of such a job may be; None when it has none."""
    return get_type_hints(kind).get("info", None)


@cache
def own_fields(kind: type[Job]) -> tuple[str, ...]:
    """What such a job has beyond what every job has, and its info; as JSON names it."""
    common = {*Job.__struct_fields__, "info"}
    return tuple(f.encode_name for f in structs.fields(kind) if f.name not in common)


def info_of(job: Job) -> Any:
    return getattr(job, "info", None)


def new_job_id(user_id: str, client_key: str | None = None) -> str:
    """The same for the same key of the same user, so that asking twice is asking once."""
    if client_key is None:
        return f"job_{secrets.token_hex(16)}"
    digest = hashlib.sha256(f"{user_id}\0{client_key}".encode()).hexdigest()
    return f"job_{digest[:32]}"


def new_media_id() -> str:
    return f"med_{secrets.token_hex(16)}"


def opaque_user_id(name: str, secret: bytes = b"") -> str:
    """An id for a user who is known by a name or an address; with a secret it cannot be guessed
    back."""
    return f"usr_{hashlib.blake2b(name.encode(), key=secret[:64], digest_size=16).hexdigest()}"


def now() -> datetime:
    return datetime.now(UTC)
