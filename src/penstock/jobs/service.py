"""Asking for jobs: what the API and the command line do, without HTTP.

A job and its first messages are committed together, so they exist together or not at all; a relay
publishes them afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import (
    AlreadyExistsError,
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
MAX_WISHES = 1000
_MAX_TITLE = 500


class JobWish(Struct, frozen=True, kw_only=True):
    """A job to be asked for, as `JobService.submit` takes it."""

    media_type: MediaType
    source: str
    title: str | None = None
    client_key: str | None = None
    correlation_id: str | None = None


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
        wish = JobWish(
            media_type=media_type,
            source=source,
            title=title,
            client_key=client_key,
            correlation_id=correlation_id,
        )
        with span("submit job", None, {"penstock.media.type": media_type.value}) as traceparent:
            return await self.store.add(self._new_job(user_id, wish, traceparent))

    async def submit_many(
        self, user_id: str, wishes: Sequence[JobWish]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        """`submit` for several, up to 1,000, in one transaction; what each is answered. Those that
        are there already, and asked for differently, are errors among the answers; one that can be
        no job is raised, and none of them is kept."""
        if len(wishes) > MAX_WISHES:
            raise InvalidArgumentError(
                f"{len(wishes):,} jobs are too many for one request; ask for up to {MAX_WISHES:,}"
            )
        if not wishes:
            return []
        with span("submit jobs", None, {"penstock.jobs": len(wishes)}) as traceparent:
            return await self.store.add_many(list(self._new_jobs(user_id, wishes, traceparent)))

    def _new_jobs(
        self, user_id: str, wishes: Sequence[JobWish], traceparent: str | None
    ) -> Iterator[NewJob]:
        for number, wish in enumerate(wishes, 1):
            try:
                yield self._new_job(user_id, wish, traceparent)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"Job {number} of {len(wishes)}: {error}") from error

    def _new_job(self, user_id: str, wish: JobWish, traceparent: str | None) -> NewJob:
        _check_key(wish.client_key)
        kind = self._kind_of(wish.media_type)
        source, own = _read(kind, wish.source)
        fields: dict[str, Any] = {
            **own,
            "jobId": new_job_id(user_id, wish.client_key),
            "userId": user_id,
            "mediaType": wish.media_type.value,
            "mediaId": new_media_id(),
            "createdAt": now(),
            "correlationId": wish.correlation_id,
            "traceparent": traceparent,
        }
        more = {"title": wish.title, "correlation": wish.correlation_id}
        return NewJob(
            job=_convert(fields, kind),
            source=source,
            title=None if wish.title is None else wish.title[:_MAX_TITLE],
            request=_digest(wish.media_type, source, **more),
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
