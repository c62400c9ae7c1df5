"""Asking for jobs: what the API and the command line do, without HTTP.

A job and its first messages are committed together, so they exist together or not at all; a relay
publishes them afterwards.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.jobs.model.codec import without_input
from penstock.jobs.model.fields import OpaqueId
from penstock.jobs.model.job import Job, media_type_of, new_job_id, new_media_id, now
from penstock.jobs.model.names import JobStage, MediaType
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import JobRecord, NewJob, Step
from penstock.jobs.telemetry import CANCELLED, JobObserver, Subject, span

MAX_CLIENT_KEY = 200
_MAX_TITLE = 500


class JobService:
    """Creates, cancels and retries jobs."""

    def __init__(self, store: ProcessingJobStore, observer: JobObserver | None = None) -> None:
        self.store = store
        self._observer = observer or JobObserver()

    async def submit(
        self,
        user_id: str,
        media_type: MediaType,
        source: str,
        *,
        title: str | None = None,
        client_key: str | None = None,
        correlation_id: str | None = None,
    ) -> tuple[JobRecord, bool]:
        """A new job, and True; or the one that was asked for before with this key, and False."""
        _check_key(client_key)
        with span("submit job", None, {"penstock.media.type": media_type.value}) as traceparent:
            kind = self._kind_of(media_type)
            source, own = _read(kind, source)
            fields: dict[str, Any] = {
                **own,
                "jobId": new_job_id(user_id, client_key),
                "userId": user_id,
                "mediaType": media_type.value,
                "mediaId": new_media_id(),
                "createdAt": now(),
                "correlationId": correlation_id,
                "traceparent": traceparent,
            }
            job = _convert(fields, kind)
            return await self.store.add(
                NewJob(
                    job=job,
                    source=source,
                    title=None if title is None else title[:_MAX_TITLE],
                    request=_digest(media_type, source, title=title, correlation=correlation_id),
                )
            )

    async def cancel(self, job_id: str, user_id: str | None = None) -> JobRecord:
        """Stop a job that is under way; one that was cancelled stays so."""
        return await self._change(job_id, user_id, JobStage.CANCELLED)

    async def retry(self, job_id: str, user_id: str | None = None) -> JobRecord:
        """Run a job that failed or was cancelled anew; one that is under way is tried now, because
        it waits for its next attempt or its message was lost."""
        return await self._change(job_id, user_id, JobStage.QUEUED)

    async def _change(self, job_id: str, user_id: str | None, to: JobStage) -> JobRecord:
        pipeline = self.store.pipeline
        for _ in range(10):
            record = await self.store.get(job_id)
            if record is None or user_id not in (None, record.job.user_id):
                raise NotFoundError(f"Job {job_id[:36]} not found")
            stage = record.job.stage
            if stage is to and pipeline.is_end(to):
                return record
            if to is JobStage.QUEUED and not pipeline.is_end(stage):
                await self.store.send_again(record.job)
                return record
            if not pipeline.may_become(stage, to):
                verb, instead = ("cancelled", "there is nothing left to stop")
                if to is JobStage.QUEUED:
                    verb, instead = "retried", "ask for a new job instead"
                raise FailedPreconditionError(
                    f"Job {job_id} is {stage} and cannot be {verb}; {instead}"
                )
            changed = await self.store.step(Step(job=record.job, to=to))
            if changed is not None:
                if to is JobStage.CANCELLED:
                    self._tell_cancelled(record.job)
                return changed
        raise FailedPreconditionError(f"Job {job_id} keeps changing; look at it and try again")

    def _tell_cancelled(self, job: Job) -> None:
        subject = Subject(
            job_id=job.job_id,
            user_id=job.user_id,
            media_type=job.media_type.value,
            stage=job.stage.value,
            correlation_id=job.correlation_id,
            reason=CANCELLED,
        )
        at = next(one for one in self.store.pipeline.stages if one.consumes is job.stage)
        self._observer.ended(subject, at.name)

    def _kind_of(self, media_type: MediaType) -> type[Job]:
        kind = self.store.pipeline.job_types.get(media_type)
        if kind is None:
            known = ", ".join(self.store.pipeline.job_types)
            raise InvalidArgumentError(f"There are no such jobs here; a media type is {known}")
        return kind


def _digest(media_type: MediaType, source: str, **more: str | None) -> str:
    """Of all that was asked for: a key stands for one request. What is not given leaves no trace,
    so that digests of earlier versions still hold."""
    asked = f"{media_type}\0{source}"
    for name, value in more.items():
        if value is not None:
            asked += f"\0{name} {len(value)} {value}"
    return hashlib.sha256(asked.encode(errors="surrogatepass")).hexdigest()


def check_user_id(user_id: str) -> str:
    """An id that may travel in messages: no names, no addresses."""
    try:
        return msgspec.convert(user_id, OpaqueId)
    except msgspec.ValidationError:
        raise InvalidArgumentError(
            "A user id must be opaque: up to 64 letters, digits, - and _; "
            "`opaque_user_id` makes one of a name"
        ) from None


def _read(kind: type[Job], source: str) -> tuple[str, dict[str, Any]]:
    try:
        return kind.of_source(source)
    except (ValueError, LookupError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"That cannot be the source of a {media_type_of(kind)} job: "
            f"see {kind.__name__}.of_source"
        ) from None


def _convert(fields: dict[str, Any], kind: type[Job]) -> Job:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(
            f"That is not a {media_type_of(kind)} job: {without_input(error)}"
        ) from None


def _check_key(client_key: str | None) -> None:
    if client_key is not None and not 1 <= len(client_key) <= MAX_CLIENT_KEY:
        raise InvalidArgumentError(f"An idempotency key must have 1 to {MAX_CLIENT_KEY} characters")
