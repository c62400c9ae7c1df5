"""Asking for jobs: what the API and the command line do, without HTTP.

A job and its first messages are written in one transaction through the outbox, so they exist
together or not at all; a relay publishes them afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.batching import GroupCommit
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.jobs.messaging.client import messages_of
from penstock.jobs.model.codec import encode_job, without_input
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
from penstock.jobs.settings import Topics
from penstock.jobs.store.records import JobRecord, NewJob, Step
from penstock.jobs.store.store import ProcessingJobStore
from penstock.jobs.telemetry import span
from penstock.media.video_ids import video_id_of
from penstock.message import Draft
from penstock.transactional import Outbox

MAX_CLIENT_KEY = 200
_MAX_TITLE = 500


class JobService:
    """Creates, cancels and retries jobs. `on_commit` is called after each change, to wake the
    relay."""

    def __init__(
        self,
        store: ProcessingJobStore,
        outbox: Outbox,
        topics: Topics,
        *,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self._outbox = outbox
        self._topics = topics
        self._on_commit = on_commit
        self._creating = GroupCommit(self._create, all_or_none=True)
        self._stepping = GroupCommit(self._step, all_or_none=True)

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

            answer = await self._creating.do(
                NewJob(
                    job=job,
                    source=source,
                    title=None if title is None else title[:_MAX_TITLE],
                    request=digest,
                )
            )
        if isinstance(answer, AlreadyExistsError):
            raise answer
        self._on_commit()
        return answer

    async def _create(
        self, new: Sequence[NewJob]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        async with self.store.database.transaction() as connection:
            answers = await self.store.create(connection, new)
            made = [a[0] for a in answers if not isinstance(a, AlreadyExistsError) and a[1]]
            await self._say(connection, made)
        return answers

    async def aclose(self) -> None:
        """Wait for what was begun."""
        await self._creating.aclose()
        await self._stepping.aclose()

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
                    await self._send_again(record)
                return record
            if not record.job.stage.may_become(to):
                verb = "retried" if to is JobStage.QUEUED else "cancelled"
                raise FailedPreconditionError(
                    f"Job {job_id} is {record.job.stage} and cannot be {verb}"
                )
            changed = await self._stepping.do(Step(job=record.job, to=to))
            if changed is not None:
                self._on_commit()
                return changed
        raise FailedPreconditionError(f"Job {job_id} keeps changing; look at it and try again")

    async def _send_again(self, record: JobRecord) -> None:
        """Its message may have been lost, by an operator's hand for instance."""
        again = encode_job(record.job, record.attempts + 1)
        async with self.store.database.transaction() as connection:
            await self._outbox.add(connection, self._topics.of(record.job.media_type), [again])
        self._on_commit()

    async def _step(self, steps: Sequence[Step]) -> Sequence[JobRecord | None]:
        async with self.store.database.transaction() as connection:
            before = await self.store.find(connection, [step.job.job_id for step in steps])
            answers = await self.store.take(connection, steps)
            taken = [answer for answer in answers if answer is not None]
            # How the run before ended may not have been said yet; nobody would after this.
            ends = [before[r.job.job_id] for r in taken if r.job.stage is JobStage.QUEUED]
            await self._say(connection, [*ends, *taken])
        return answers

    async def _say(self, connection: AsyncConnection, records: Sequence[JobRecord]) -> None:
        said: dict[str, list[Draft]] = {}
        for record in records:
            for topic, draft in messages_of(record, self._topics):
                said.setdefault(topic, []).append(draft)
        for topic, drafts in said.items():
            await self._outbox.add(connection, topic, drafts)


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
