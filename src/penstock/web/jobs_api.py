"""The ingestion API: ask for jobs, and ask about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import (
    FromPath,
    FromQuery,
    HeaderParameter,
    JSONBody,
    PathParameter,
    QueryParameter,
)
from litestar.response import ServerSentEvent
from msgspec import Meta, Struct

from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.jobs.model.names import JobStage, MediaType
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.system import Ingestion
from penstock.media.transcript import Segment
from penstock.web.own_jobs import OwnJob, OwnJobs
from penstock.web.references import References, plain
from penstock.web.streams import Streams
from penstock.web.uploads import Upload, Uploads


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the routes have before them."""

    ingestion: Ingestion
    uploads: Uploads
    references: References
    own_jobs: OwnJobs
    pipeline: Pipeline
    streams: Streams


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and whom: nobody has the parts without being a user. One dependency for both,
    because those that stand side by side are provided by a task each, which costs more than all the
    rest of a request."""

    user: str
    parts: Parts


By = NamedDependency[Asker]
Id = Annotated[str, PathParameter(pattern=r"^job_[0-9a-f]{32}$", description="A job's id")]


class JobRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What to work on: `source`, a path in the media folder, an address of an allowed host, or a
    YouTube video; or `uploadId`, something that was uploaded before."""

    media_type: MediaType
    source: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    upload_id: Annotated[str, Meta(max_length=64)] | None = None
    title: Annotated[str, Meta(max_length=500)] | None = None
    correlation_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None


class PipelineBody(Struct, frozen=True, rename="camel"):
    """`stages`: where jobs are, one after the other, when nothing goes wrong."""

    name: str
    media_types: list[str]
    stages: list[str]
    workers: list[str]


class ResultBody(Struct, frozen=True, rename="camel"):
    job_id: str
    stage: str
    result: Any


class Page(Struct, frozen=True, rename="camel"):
    jobs: list[OwnJob]
    next_cursor: str | None = None


class TranscriptBody(Struct, frozen=True, rename="camel"):
    job_id: str
    title: str | None
    language: str | None
    model: str
    segments: list[Segment]
    pages: int | None = None
    truncated: bool = False
    doubtful: bool = False


class JobsApi(Controller):
    """Jobs of the user who asks; those of others do not exist for them."""

    tags = ["jobs"]  # noqa: RUF012 - the framework's way

    @post("/uploads", status_code=201, summary="Upload media", request_max_body_size=None)
    async def upload(
        self, request: Request[Any, Any, Any], by: By, extension: FromQuery[str]
    ) -> Upload:
        """Send the file as the body; `extension` says what it is, such as `mp3` or `pdf`."""
        text = request.headers.get("content-length", "")
        length = int(text) if text.isdigit() else None
        return await by.parts.uploads.keep(by.user, extension.lower(), request.stream(), length)

    @post("/jobs", status_code=202, summary="Ask for a job")
    async def submit(
        self,
        data: JSONBody[JobRequest],
        by: By,
        key: Annotated[
            str | None,
            HeaderParameter(
                name="Idempotency-Key",
                max_length=200,
                description="Asking again with the same key gives the same job",
            ),
        ] = None,
    ) -> Response[OwnJob]:
        record, created = await by.parts.ingestion.service.submit(
            by.user,
            data.media_type,
            _source(data, by),
            title=plain("title", data.title),
            client_key=key,
            correlation_id=data.correlation_id,
        )
        headers = {"Location": f"/jobs/{record.job.job_id}"}
        if not created:
            headers["Idempotent-Replayed"] = "true"
        return Response(by.parts.own_jobs.of(record), status_code=202, headers=headers)

    @get("/jobs", summary="List jobs, the newest first")
    async def list_jobs(
        self,
        by: By,
        stage: FromQuery[JobStage | None] = None,
        media_type: Annotated[MediaType | None, QueryParameter(name="mediaType")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
        cursor: Annotated[str | None, QueryParameter(pattern=r"^[A-Za-z0-9_-]{1,120}$")] = None,
    ) -> Page:
        views, following = await by.parts.ingestion.views.list(
            user_id=by.user, stage=stage, media_type=media_type, limit=limit, cursor=cursor
        )
        found = await by.parts.own_jobs.newest(views)
        return Page([job for job in found if stage in (None, job.stage)], following)

    @get("/jobs/{job_id:str}", summary="Where a job is")
    async def job(self, job_id: Id, by: By) -> OwnJob:
        return await by.parts.own_jobs.get(job_id, by.user)

    @get("/jobs/{job_id:str}/transcript", summary="What was said")
    async def transcript(self, job_id: Id, by: By) -> TranscriptBody:
        record = await by.parts.own_jobs.record(job_id, by.user)
        text = await by.parts.ingestion.service.store.text(job_id)
        if text is None:
            raise NotFoundError(f"Job {job_id} is {record.job.stage}: it has no transcript")
        said = (text.language, text.model, text.segments)
        about = (text.pages, text.truncated, text.doubtful)
        return TranscriptBody(job_id, record.title, *said, *about)

    @get("/jobs/{job_id:str}/results/{stage:str}", summary="What a stage found out")
    async def result(self, job_id: Id, stage: FromPath[str], by: By) -> ResultBody:
        record = await by.parts.own_jobs.record(job_id, by.user)
        name = by.parts.pipeline.stage(stage).name
        found = await by.parts.ingestion.service.store.result(job_id, name)
        if found is None:
            raise NotFoundError(
                f"Job {job_id} is {record.job.stage}: it has no result of stage {name}"
            )
        return ResultBody(job_id, name, found)

    @post("/jobs/{job_id:str}/cancel", status_code=200, summary="Stop a job")
    async def cancel(self, job_id: Id, by: By) -> OwnJob:
        service = by.parts.ingestion.service
        return by.parts.own_jobs.of(await service.cancel(job_id, by.user))

    @post("/jobs/{job_id:str}/retry", status_code=202, summary="Run a job anew")
    async def retry(self, job_id: Id, by: By) -> OwnJob:
        service = by.parts.ingestion.service
        return by.parts.own_jobs.of(await service.retry(job_id, by.user))

    @get("/events", summary="Changes of all jobs, as server-sent events")
    async def all_events(self, by: By) -> ServerSentEvent:
        return by.parts.streams.of_user(by.user, by.parts.own_jobs)

    @get("/jobs/{job_id:str}/events", summary="Changes of a job, as server-sent events")
    async def job_events(self, job_id: Id, by: By) -> ServerSentEvent:
        await by.parts.own_jobs.get(job_id, by.user)
        return by.parts.streams.of_job(by.user, job_id, by.parts.own_jobs)

    @get("/pipeline", summary="Which jobs there are, and what becomes of them")
    async def declared(self, by: By) -> PipelineBody:
        pipeline = by.parts.pipeline
        return PipelineBody(
            name=pipeline.name,
            media_types=[kind.value for kind in pipeline.job_types],
            stages=[stage.value for stage in pipeline.order],
            workers=[stage.name for stage in pipeline.stages],
        )

    @get("/status", summary="How the API itself is", tags=["operation"])
    async def status(self, by: By) -> dict[str, Any]:
        """What waits to be published, and how far the read model is behind: null where the broker
        does not say."""
        ingestion = by.parts.ingestion
        outbox = await ingestion.outbox.status()
        lag = await ingestion.projection.lag()
        model: dict[str, Any] = {
            "jobs": await ingestion.views.count(),
            "eventsBehind": lag.events,
            "secondsBehind": None if lag.seconds is None else round(lag.seconds, 3),
        }
        if lag.trouble is not None:
            model["trouble"] = lag.trouble
        return {
            "user": by.user,
            "outbox": {
                "pending": outbox.pending,
                "oldestAge": round(outbox.oldest_age, 3),
                "dead": outbox.dead,
            },
            "readModel": model,
        }


def _source(data: JobRequest, by: Asker) -> str:
    if (data.source is None) == (data.upload_id is None):
        raise InvalidArgumentError("Give either source or uploadId")
    if data.upload_id is not None:
        by.parts.references.check_name(data.media_type, data.upload_id)
        return by.parts.uploads.source_of(by.user, data.upload_id)
    return by.parts.references.check(data.media_type, str(data.source))
