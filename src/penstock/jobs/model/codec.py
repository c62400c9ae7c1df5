"""The wire form of jobs and events: JSON, by declared media type and schema version.

A payload of an older version is upgraded step by step before it is decoded, so a worker of today
reads what a producer of yesterday sent. To change the wire form of a media type: raise its
`schema_version`, add the step to `_UPGRADES`, and add a golden file; the old ones stay and prove
the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from penstock.errors import InvalidArgumentError
from penstock.jobs.model.job import (
    JOB_TYPES,
    JobEvent,
    JobStage,
    MediaType,
    ProcessingJob,
)
from penstock.message import Draft

MAX_PAYLOAD_BYTES = 64 * 1024

_Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

_encode = msgspec.json.Encoder(order="deterministic").encode
_job_decoders = {kind: msgspec.json.Decoder(JOB_TYPES[kind]) for kind in MediaType}
_event_decoder: msgspec.json.Decoder[JobEvent] = msgspec.json.Decoder(JobEvent)


class InvalidMessageError(InvalidArgumentError):
    """A message that is no job or event. `reason` is a word of ours; nothing of the payload is
    repeated."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


_SAYS_ONLY_OURS = re.compile(
    r"(Expected `[^`]*`(?! but)[^`']*(, got `\w+`)?|Object missing required field `\w+`|"
    r"Expected `str` (matching regex .*|of length .*))( - at `[$\w.\[\]]*`)?"
)


def without_input(error: Exception | str) -> str:
    """What a decoder says, unless it quotes what it was given: values and keys may be anything."""
    text = str(error)
    return text if _SAYS_ONLY_OURS.fullmatch(text) else "a value or field is not one of ours"


def encode_job(job: ProcessingJob, copy: int = 0) -> Draft:
    """The message that asks for the next stage; the same job at the same stage is the same id.

    `copy` makes another message of it, for the store, which numbers what is sent again.
    """
    again = f".{copy}" if copy else ""
    return Draft(
        _sound(_encode(job), _job_decoders[job.media_type]),
        attributes_of(job, job.stage, _previous(job)),
        message_id=f"{job.job_id}.{job.run}.{job.stage}{again}",
    )


def encode_event(event: JobEvent) -> Draft:
    return Draft(
        _sound(_encode(event), _event_decoder),
        attributes_of(event, event.stage, event.previous),
        message_id=f"{event.job_id}.{event.run}.{event.stage}.event",
    )


def _sound(data: bytes, decoder: msgspec.json.Decoder[Any]) -> bytes:
    """What others would refuse is not sent: values are checked when they are read, not made."""
    try:
        decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"This may not be sent: {without_input(error)}") from None
    return data


def attributes_of(
    about: ProcessingJob | JobEvent, stage: JobStage, previous: JobStage | None
) -> dict[str, str]:
    """All a router needs and nothing else."""
    attributes = {
        "jobId": about.job_id,
        "userId": about.user_id,
        "mediaType": about.media_type.value,
        "stage": stage.value,
        "schemaVersion": str(about.schema_version),
    }
    if previous is not None:
        attributes["previousStage"] = previous.value
    if about.correlation_id is not None:
        attributes["correlationId"] = about.correlation_id
    return attributes


def decode_job(data: bytes, attributes: Mapping[str, str]) -> ProcessingJob:
    """The job in a message, by the media type and version that its attributes declare."""
    kind = _media_type(attributes)
    version = _version(attributes)
    payload = _upgraded(kind, version, data)
    try:
        job = (
            _job_decoders[kind].decode(data)
            if payload is None
            else msgspec.convert(payload, JOB_TYPES[kind])
        )
    except msgspec.MsgspecError as error:
        raise InvalidMessageError(
            "invalid-payload", f"Not a {kind} job of version {version}: {without_input(error)}"
        ) from None
    if attributes.get("jobId") != job.job_id or attributes.get("stage") != job.stage:
        raise InvalidMessageError(
            "attributes-differ", "The attributes of this message are not those of its job"
        )
    return job


def decode_event(data: bytes, attributes: Mapping[str, str]) -> JobEvent:
    version = _version(attributes)
    if version != 1:
        raise InvalidMessageError("unknown-version", f"No event has schema version {version}")
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidMessageError("too-large", f"{len(data):,} bytes are too many for an event")
    try:
        event = _event_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidMessageError(
            "invalid-payload", f"Not an event: {without_input(error)}"
        ) from None
    if attributes.get("jobId") != event.job_id or attributes.get("stage") != event.stage:
        raise InvalidMessageError(
            "attributes-differ", "The attributes of this message are not those of its event"
        )
    return event


def json_schema() -> dict[str, Any]:
    """JSON Schema of every job and event, for producers in other languages."""
    kinds: list[Any] = [*JOB_TYPES.values(), JobEvent]
    (*jobs, event), components = msgspec.json.schema_components(kinds)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock jobs and events",
        "jobs": {
            kind.value: {"schemaVersion": JOB_TYPES[kind].schema_version, "payload": schema}
            for kind, schema in zip(JOB_TYPES, jobs, strict=True)
        },
        "event": {"schemaVersion": 1, "payload": event},
        "$defs": components,
    }


def _previous(job: ProcessingJob) -> JobStage | None:
    return JobStage.QUEUED if job.stage is JobStage.METADATA_READY else None


def _media_type(attributes: Mapping[str, str]) -> MediaType:
    try:
        return MediaType(attributes.get("mediaType", ""))
    except ValueError:
        known = ", ".join(MediaType)
        raise InvalidMessageError(
            "unknown-media-type", f"A job's attribute mediaType must be one of {known}"
        ) from None


def _version(attributes: Mapping[str, str]) -> int:
    text = attributes.get("schemaVersion", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidMessageError(
            "unknown-version", "The attribute schemaVersion must be a whole number"
        )
    return int(text)


def _upgraded(kind: MediaType, version: int, data: bytes) -> dict[str, Any] | None:
    """The payload in today's form; None when it already is."""
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidMessageError("too-large", f"{len(data):,} bytes are too many for a job")
    today = JOB_TYPES[kind].schema_version
    if version == today:
        return None
    if version > today or version < 1:
        raise InvalidMessageError(
            "unknown-version",
            f"A {kind} job of version {version} is unknown here, where {today} is the newest; "
            "upgrade this program",
        )
    try:
        payload = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InvalidMessageError(
            "invalid-payload", f"Not a {kind} job: {without_input(error)}"
        ) from None
    for step in range(version, today):
        payload = _UPGRADES[kind, step](payload)
    return payload


def _audio_1_to_2(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 1 gave the duration in milliseconds, beside the job instead of in its info."""
    upgraded = dict(payload)
    milliseconds = upgraded.pop("durationMs", None)
    if isinstance(milliseconds, int) and isinstance(info := upgraded.get("info"), dict):
        upgraded["info"] = {**info, "duration": milliseconds / 1000}
    return upgraded


_UPGRADES: dict[tuple[MediaType, int], _Upgrade] = {(MediaType.AUDIO, 1): _audio_1_to_2}
