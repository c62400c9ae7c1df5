"""The application: routes, who may use them, and what every answer carries."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import Message, Scope

import penstock
from penstock.errors import PenstockError, UnimplementedError
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.system import Ingestion, JobSystem
from penstock.web import page, problems
from penstock.web.access import Access
from penstock.web.connections import SECURITY_HEADERS
from penstock.web.gauges import Gauges
from penstock.web.health import Health
from penstock.web.jobs_api import Asker, By, JobsApi, Parts
from penstock.web.own_jobs import OwnJobs
from penstock.web.references import References
from penstock.web.streams import Streams
from penstock.web.uploads import TooLargeError, Uploads

_ALWAYS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


def create_app(system: JobSystem, ingestion: Ingestion) -> Litestar:
    """The API and its page in front of a job system that is running."""
    settings = system.settings.api
    access = Access(settings)
    uploads = Uploads(system.settings.media)
    pipeline = system.settings.pipeline
    parts = Parts(
        ingestion=ingestion,
        uploads=uploads,
        references=References(system.settings.media, pipeline),
        own_jobs=OwnJobs(ingestion),
        pipeline=pipeline,
        streams=Streams(ingestion.projection),
    )

    def asker(request: Request[Any, Any, Any]) -> Asker:
        return Asker(access.user_of(request), parts)

    async def check_site(request: Request[Any, Any, Any]) -> Response[Any] | None:
        if access.is_welcome(request.headers.get("host", ""), request.headers.get("origin")):
            return None
        return problems.problem(403, "This API answers programs and pages of this machine only")

    health = Health(system)
    gauges = Gauges(ingestion)

    @get("/health", summary="Whether jobs can be taken", tags=["operation"])
    async def get_health() -> dict[str, str]:
        await health.check()
        return {"status": "ok"}

    @get("/metrics", media_type=MediaType.TEXT, summary="Prometheus metrics", tags=["operation"])
    async def metrics(by: By) -> str:  # noqa: ARG001 - only users may look
        try:
            from prometheus_client import generate_latest
        except ImportError:
            raise UnimplementedError("Metrics need prometheus-client on the server") from None
        return generate_latest().decode() + await gauges.text()

    app = Litestar(
        route_handlers=[JobsApi, get_health, metrics, *page.routes(access, parts)],
        dependencies={"by": Provide(asker, sync_to_thread=False)},
        exception_handlers={
            TooLargeError: lambda _, error: problems.problem(413, str(error)),
            PenstockError: problems.on_penstock_error,
            HTTPException: problems.on_http_error,
            RecursionError: problems.on_deep_nesting,
            Exception: problems.on_error,
        },
        request_max_body_size=settings.max_body_bytes,
        before_request=check_site,
        lifespan=[uploads.sweeping],
        openapi_config=OpenAPIConfig(
            title="Penstock jobs",
            version=penstock.__version__,
            description="Ask for media jobs and follow them.",
            path="/schema",
            render_plugins=[JsonRenderPlugin()],
            components=Components(
                security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}
            ),
            security=[] if access.open else [{"token": []}],
        ),
        before_send=[_with_headers],
        logging_config=None,
    )
    _describe(app, pipeline)
    return app


def _describe(app: Litestar, pipeline: Pipeline) -> None:
    """Let the API's description name the stages and media types of its pipeline."""
    known = {
        "JobStage": (*pipeline.order, JobStage.FAILED, JobStage.CANCELLED),
        "MediaType": tuple(pipeline.job_types),
    }
    for name, values in known.items():
        app.openapi_schema.components.schemas[name].enum = [value.value for value in values]


async def _with_headers(message: Message, _: Scope) -> None:
    """Just before it is sent: errors of the framework itself, an address that there is not for
    instance, are answers as well."""
    if message["type"] == "http.response.start":
        there = {name.lower() for name, _ in message["headers"]}
        missing = [one for one in _ALWAYS if one[0] not in there]
        message["headers"] = [*message["headers"], *missing]
