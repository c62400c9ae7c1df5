"""The status page: jobs as they are when it is asked for, then live. Plain HTML, one script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.web.access import Access
from penstock.web.jobs_api import Parts
from penstock.web.own_jobs import OwnJob

_SHOWN = 100
# What of a job's info is shown besides its length and size, and what it is called there.
_INFO = {"codec": "codec", "pages": "pages", "channelId": "channel", "speakerRole": "speaker"}
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}


def routes(access: Access, parts: Parts) -> list[HTTPRouteHandler]:
    pipeline = parts.pipeline

    @get("/", media_type=MediaType.HTML, include_in_schema=False)
    async def index() -> str:
        """Rendered with the jobs when nobody is asked for a token; else the script asks for it."""
        found: list[OwnJob] = []
        if access.open:
            views, _ = await parts.ingestion.views.list(user_id=access.local_user, limit=_SHOWN)
            found = await parts.own_jobs.newest(views)
        rows = "".join(row(pipeline, job) for job in found)
        locked = "" if access.open else " locked"
        stages = escape(" ".join(pipeline.order))
        told = counts(pipeline, found)
        return _page("Jobs", _JOBS.format(rows=rows, locked=locked, stages=stages, counts=told))

    @get("/docs", media_type=MediaType.HTML, include_in_schema=False)
    async def docs(request: Request[Any, Any, Any]) -> str:
        return _page("API", api_page(request.app.openapi_schema.to_schema()))

    @get("/static/{name:str}", include_in_schema=False)
    async def static(name: FromPath[str]) -> Response[bytes]:
        if name not in _FILES:
            return Response(b"", status_code=404, media_type="text/plain")
        content = files("penstock.web").joinpath("static", name).read_bytes()
        return Response(content, media_type=_FILES[name])

    return [index, docs, static]


def counts(pipeline: Pipeline, jobs: Sequence[OwnJob]) -> str:
    """How many of those shown are where; `page.js` says the same."""
    stages = Counter(job.stage for job in jobs)
    parts = {
        "failed": stages[JobStage.FAILED],
        "cancelled": stages[JobStage.CANCELLED],
        "under way": sum(n for stage, n in stages.items() if not pipeline.is_end(stage)),
        "complete": stages[pipeline.order[-1]],
    }
    return ", ".join(f"{count} {name}" for name, count in parts.items() if count)


def row(pipeline: Pipeline, job: OwnJob) -> str:
    """A job as a table row; `page.js` makes the same."""
    steps, stage = len(pipeline.order), job.stage.value
    step = steps if pipeline.is_end(job.stage) else pipeline.rank(job.stage) + 1
    # How it looks is the same for the last stage of every pipeline.
    look = f"{stage} complete" if job.stage is pipeline.order[-1] else stage
    short = job.job_id[4:16]
    return (
        f'<tr id="{job.job_id}" class="{look}" data-queued="{job.queued_at.isoformat()}">'
        f'<td><b>{escape(job.name or "")}</b> <code title="{job.job_id}">{short}</code></td>'
        f"<td>{job.media_type.value}</td>"
        f'<td><progress max="{steps}" value="{step}"></progress> <span>{stage}</span></td>'
        f"<td>{_why(job)}{escape(_facts(job))}</td>"
        f'<td><time datetime="{job.updated_at.isoformat()}">{_clock(job.updated_at)}</time></td>'
        "</tr>"
    )


def _why(job: OwnJob) -> str:
    if not job.reason:
        return ""
    advice = f": {escape(job.advice)}" if job.advice else ""
    return f"<p><strong>{escape(job.reason)}</strong>{advice}</p>"


def _facts(job: OwnJob) -> str:
    facts = []
    if job.run > 1:
        facts.append(f"run {job.run}")
    if job.duration:
        minutes, seconds = divmod(round(job.duration), 60)
        facts.append(f"{minutes}:{seconds:02} long")
    if size := job.size or job.info.get("size"):
        facts.append(f"{size:,} bytes")
    facts += [f"{name} {job.info[key]}" for key, name in _INFO.items() if job.info.get(key)]
    if job.characters is not None:
        facts.append(f"{job.characters:,} characters")
    if job.truncated:
        facts.append("text cut at the limit")
    if job.doubtful:
        facts.append("text doubtful")
    if job.language:
        facts.append(job.language)
    facts += [f"{name} {value}" for name, value in job.facts.items()]
    return " · ".join(facts)


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%H:%M:%S")


def api_page(schema: dict[str, Any]) -> str:
    """The OpenAPI document for reading; programs take it from /schema/openapi.json."""
    sections = []
    for path, operations in sorted(schema["paths"].items()):
        for method, operation in operations.items():
            given = "".join(
                f"<li><code>{escape(parameter['name'])}</code> in {parameter['in']}"
                f"{', required' if parameter.get('required') else ''}"
                f"{': ' + escape(parameter['description']) if parameter.get('description') else ''}"
                "</li>"
                for parameter in operation.get("parameters", [])
            )
            given += _body_fields(operation, schema)
            answers = ", ".join(sorted(operation.get("responses", {})))
            sections.append(
                f"<section><h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2>"
                f"<p>{escape(operation.get('summary') or '')}</p>"
                f"{'<ul>' + given + '</ul>' if given else ''}<p>Answers: {answers}</p></section>"
            )
    return (
        '<p>As a document for programs: <a href="/schema/openapi.json">openapi.json</a>.</p>'
        + "".join(sections)
    )


def _body_fields(operation: dict[str, Any], schema: dict[str, Any]) -> str:
    """What belongs into the JSON of a request."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    body = schema.get("components", {}).get("schemas", {}).get(name, {})
    needed = body.get("required", [])
    return "".join(
        f"<li><code>{escape(field)}</code> in body{', required' if field in needed else ''}</li>"
        for field in body.get("properties", {})
    )


def _page(title: str, body: str) -> str:
    return _SHELL.format(title=title, body=body)


_SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} · Penstock</title>
<link rel="stylesheet" href="/static/page.css"><script src="/static/page.js" defer></script>
</head>
<body>
<header><h1>Penstock</h1><nav><a href="/">Jobs</a> <a href="/docs">API</a></nav></header>
<main>{body}</main>
</body>
</html>
"""

_JOBS = """
<p id="state" role="status" class="{locked}">Connecting…</p>
<p id="counts">{counts}</p>
<form id="unlock" hidden><label>API token <input type="password" autocomplete="off"></label>
<button>Show jobs</button></form>
<table data-stages="{stages}">
<thead><tr><th>Job</th><th>Media</th><th>Stage</th><th>About it</th><th>Changed (UTC)</th></tr>
</thead>
<tbody id="jobs">{rows}</tbody>
</table>
<p id="none" hidden>No jobs yet. Ask for one with <code>penstock jobs submit FILE</code>.</p>
"""
