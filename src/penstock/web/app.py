"""The application: routes, who may use them, and what every answer carries."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import MutableScopeHeaders
from litestar.di import NamedDependency, Provide
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
from penstock.web.gauges import Gauges
from penstock.web.health import Health
from penstock.web.jobs_api import JobsApi
from penstock.web.own_jobs import OwnJobs
from penstock.web.references import References
from penstock.web.refusing import SECURITY_HEADERS
from penstock.web.streams import Streams
from penstock.web.uploads import TooLargeError, Uploads


def create_app(system: JobSystem, ingestion: Ingestion) -> Litestar:
    """The API and its page in front of a job system that is running."""
    settings = system.settings.api
    access = Access(settings)
    uploads = Uploads(system.settings.media)
    pipeline = system.settings.pipeline
    references = References(system.settings.media, pipeline)
    own_jobs = OwnJobs(ingestion)
    streams = Streams(ingestion.projection)

    async def current_user(request: Request[Any, Any, Any]) -> str:
        return access.user_of(request)

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
    async def metrics(user: NamedDependency[str]) -> str:  # noqa: ARG001 - only users may look
        try:
            from prometheus_client import generate_latest
        except ImportError:
            raise UnimplementedError("Metrics need prometheus-client on the server") from None
        return generate_latest().decode() + await gauges.text()

    # Each asks for the one before: what stands side by side is provided by a task each, which
    # costs more than all the rest of a request. The user comes first; nobody gets past that.

    def own_ingestion(user: NamedDependency[Any]) -> Any:  # noqa: ARG001
        return ingestion

    def own_uploads(ingestion: NamedDependency[Any]) -> Any:  # noqa: ARG001
        return uploads

    def own_references(uploads: NamedDependency[Any]) -> Any:  # noqa: ARG001
        return references

    def jobs_of_users(references: NamedDependency[Any]) -> Any:  # noqa: ARG001
        return own_jobs

    def own_pipeline(own_jobs: NamedDependency[Any]) -> Any:  # noqa: ARG001
        return pipeline

    def own_streams(pipeline: NamedDependency[Any]) -> Any:  # noqa: ARG001
        return streams

    app = Litestar(
        route_handlers=[JobsApi, get_health, metrics, *page.routes(access, pipeline)],
        dependencies={
            "user": Provide(current_user),
            "ingestion": Provide(own_ingestion, sync_to_thread=False),
            "uploads": Provide(own_uploads, sync_to_thread=False),
            "references": Provide(own_references, sync_to_thread=False),
            "own_jobs": Provide(jobs_of_users, sync_to_thread=False),
            "pipeline": Provide(own_pipeline, sync_to_thread=False),
            "streams": Provide(own_streams, sync_to_thread=False),
        },
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
        headers = MutableScopeHeaders.from_message(message)
        for name, value in SECURITY_HEADERS.items():
            headers.setdefault(name, value)
