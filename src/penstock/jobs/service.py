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
from penstock.jobs.model.job import (
    JOB_TYPES,
    JobStage,
    MediaType,
    OpaqueId,
    ProcessingJob,
    new_job_id,
    new_media_id,
    now,
)
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import JobRecord, NewJob, Step
from penstock.jobs.telemetry import span
from penstock.media.video_ids import video_id_of

MAX_CLIENT_KEY = 200
_MAX_TITLE = 500


class JobService:
    """Creates, cancels and retries jobs."""

    def __init__(self, store: ProcessingJobStore) -> None:
        self.store = store

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
            fields: dict[str, Any] = {
                "jobId": new_job_id(user_id, client_key),
                "userId": user_id,
                "mediaType": media_type.value,
                "mediaId": new_media_id(),
                "createdAt": now(),
                "correlationId": correlation_id,
                "traceparent": traceparent,
            }
            if media_type is MediaType.YOUTUBE:
                fields["videoId"] = source = video_id_of(source)
            job = _convert(fields, media_type)
            digest = hashlib.sha256(f"{media_type}\0{source}".encode()).hexdigest()
            return await self.store.add(
                NewJob(
                    job=job,
                    source=source,
                    title=None if title is None else title[:_MAX_TITLE],
                    request=digest,
                )
            )

    async def cancel(self, job_id: str, user_id: str | None = None) -> JobRecord:
        """Stop a job that is under way; one that was cancelled stays so."""
        return await self._change(job_id, user_id, JobStage.CANCELLED)

    async def retry(self, job_id: str, user_id: str | None = None) -> JobRecord:
        """Run a job that failed or was cancelled anew; one that is queued is sent again."""
        return await self._change(job_id, user_id, JobStage.QUEUED)

    async def _change(self, job_id: str, user_id: str | None, to: JobStage) -> JobRecord:
        for _ in range(10):
            record = await self.store.get(job_id)
            if record is None or user_id not in (None, record.job.user_id):
                raise NotFoundError(f"Job {job_id[:36]} not found")
            if record.job.stage is to:
                if to is JobStage.QUEUED:
                    await self.store.send_again(record.job)
                return record
            if not record.job.stage.may_become(to):
                verb = "retried" if to is JobStage.QUEUED else "cancelled"
                raise FailedPreconditionError(
                    f"Job {job_id} is {record.job.stage} and cannot be {verb}"
                )
            changed = await self.store.step(Step(job=record.job, to=to))
            if changed is not None:
                return changed
        raise FailedPreconditionError(f"Job {job_id} keeps changing; look at it and try again")


def check_user_id(user_id: str) -> str:
    """An id that may travel in messages: no names, no addresses."""
    try:
        return msgspec.convert(user_id, OpaqueId)
    except msgspec.ValidationError:
        raise InvalidArgumentError(
            "A user id must be opaque: up to 64 letters, digits, - and _; "
            "`opaque_user_id` makes one of a name"
        ) from None


def _convert(fields: dict[str, Any], media_type: MediaType) -> ProcessingJob:
    try:
        return msgspec.convert(fields, JOB_TYPES[media_type])
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(
            f"That is not a {media_type} job: {without_input(error)}"
        ) from None


def _check_key(client_key: str | None) -> None:
    if client_key is not None and not 1 <= len(client_key) <= MAX_CLIENT_KEY:
        raise InvalidArgumentError(f"An idempotency key must have 1 to {MAX_CLIENT_KEY} characters")
