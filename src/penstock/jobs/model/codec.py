"""The wire form of jobs and events: JSON, by declared media type and schema version.

A payload of an older version is upgraded step by step before it is decoded, so a worker of today
reads what a producer of yesterday sent. To change the wire form of a media type: raise its
`schema_version`, add the step to its `upgrades`, and add a golden file; the old ones stay and prove
the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from penstock.errors import InvalidArgumentError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.model.job import Job
from penstock.jobs.model.names import JobStage, MediaType
from penstock.message import Draft

MAX_PAYLOAD_BYTES = 64 * 1024

_encode = msgspec.json.Encoder(order="deterministic").encode


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


class Codec:
    """Encodes and decodes the jobs and events of one pipeline.

    `previous`: the stage before each of its stages, in their order.
    """

    def __init__(
        self,
        jobs: Mapping[MediaType, type[Job]],
        events: Sequence[type[StageEvent]],
        previous: Mapping[JobStage, JobStage | None],
    ) -> None:
        self._jobs = jobs
        self._previous = previous
        self._event: Any = reduce(or_, events)
        self._job_decoders = {kind: msgspec.json.Decoder(of) for kind, of in jobs.items()}
        self._event_decoder = msgspec.json.Decoder(self._event)
        self._stages = {*previous, JobStage.FAILED, JobStage.CANCELLED}

    def encode_job(self, job: Job, copy: int = 0) -> Draft:
        """The message that asks for the next stage; the same job at the same stage is the same id.

        `copy` makes another message of it, for the store, which numbers what is sent again.
        """
        again = f".{copy}" if copy else ""
        return Draft(
            _sound(_encode(job), self._job_decoders[job.media_type]),
            attributes_of(job, job.stage, self._previous.get(job.stage)),
            message_id=f"{job.job_id}.{job.run}.{job.stage}{again}",
        )

    def encode_event(self, event: StageEvent) -> Draft:
        """The message that tells the world; the same stage of the same run is the same id."""
        return Draft(
            _sound(_encode(event), self._event_decoder),
            attributes_of(event, event.stage, event.previous),
            message_id=f"{event.job_id}.{event.run}.{event.stage}.event",
        )

    def decode_job(self, data: bytes, attributes: Mapping[str, str]) -> Job:
        """The job in a message, by the media type and version that its attributes declare;
        `InvalidMessageError` when there is none."""
        kind = self._media_type(attributes)
        version = _version(attributes)
        payload = self._upgraded(kind, version, data)
        try:
            job: Job = (
                self._job_decoders[kind].decode(data)
                if payload is None
                else msgspec.convert(payload, self._jobs[kind])
            )
        except msgspec.MsgspecError as error:
            raise InvalidMessageError(
                "invalid-payload", f"Not a {kind} job of version {version}: {without_input(error)}"
            ) from None
        self._check(job, attributes, "job")
        return job

    def decode_event(self, data: bytes, attributes: Mapping[str, str]) -> StageEvent:
        """The event in a message; `InvalidMessageError` when there is none."""
        version = _version(attributes)
        if version != 1:
            raise InvalidMessageError("unknown-version", f"No event has schema version {version}")
        _check_size(data, "an event")
        try:
            event: StageEvent = self._event_decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise InvalidMessageError(
                "invalid-payload", f"Not an event: {without_input(error)}"
            ) from None
        self._check(event, attributes, "event")
        return event

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of every job and event, for producers in other languages."""
        kinds: list[Any] = [*self._jobs.values(), self._event]
        (*jobs, event), components = msgspec.json.schema_components(kinds)
        # The names that other pipelines of this process declared are none of this one's.
        for name, known in (("JobStage", self._stages), ("MediaType", self._jobs)):
            if name in components:
                components[name]["enum"] = sorted(known)
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Penstock jobs and events",
            "jobs": {
                kind.value: {"schemaVersion": of.schema_version, "payload": schema}
                for (kind, of), schema in zip(self._jobs.items(), jobs, strict=True)
            },
            "event": {"schemaVersion": 1, "payload": event},
            "$defs": components,
        }

    def _check(self, about: Job | StageEvent, attributes: Mapping[str, str], what: str) -> None:
        before = about.previous if isinstance(about, StageEvent) else None
        if about.stage not in self._stages or before not in (None, *self._stages):
            raise InvalidMessageError("invalid-payload", "No job of this pipeline is at its stage")
        if about.media_type not in self._jobs:
            raise InvalidMessageError(
                "unknown-media-type", "No job of this pipeline is of its media type"
            )
        if attributes.get("jobId") != about.job_id or attributes.get("stage") != about.stage:
            raise InvalidMessageError(
                "attributes-differ", f"The attributes of this message are not those of its {what}"
            )

    def _media_type(self, attributes: Mapping[str, str]) -> MediaType:
        name = attributes.get("mediaType", "")
        kind = MediaType(name) if MediaType.is_known(name) else None
        if kind is None or kind not in self._jobs:
            known = ", ".join(self._jobs)
            raise InvalidMessageError(
                "unknown-media-type", f"A job's attribute mediaType must be one of {known}"
            )
        return kind

    def _upgraded(self, kind: MediaType, version: int, data: bytes) -> dict[str, Any] | None:
        """The payload in today's form; None when it already is."""
        _check_size(data, "a job")
        of = self._jobs[kind]
        today = of.schema_version
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
            payload = of.upgrades[step](payload)
        return payload


def attributes_of(
    about: Job | StageEvent, stage: JobStage, previous: JobStage | None
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


def _sound(data: bytes, decoder: msgspec.json.Decoder[Any]) -> bytes:
    """What others would refuse is not sent: values are checked when they are read, not made."""
    try:
        decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"This may not be sent: {without_input(error)}") from None
    return data


def _check_size(data: bytes, what: str) -> None:
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidMessageError("too-large", f"{len(data):,} bytes are too many for {what}")


def _version(attributes: Mapping[str, str]) -> int:
    text = attributes.get("schemaVersion", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidMessageError(
            "unknown-version", "The attribute schemaVersion must be a whole number"
        )
    return int(text)
