"""`penstock worker`: run one stage of the jobs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.metrics import observer, serving_metrics
from penstock.cli.running import (
    Configuration,
    DatabaseUrl,
    MediaFolder,
    MetricsPort,
    Url,
    run_until_stopped,
    settings_from,
)
from penstock.jobs.settings import JobSettings

worker = typer.Typer(help="Stages of the jobs.", no_args_is_help=True)

Concurrency = Annotated[int | None, typer.Option(min=1, help="Jobs at a time.")]


@worker.command()
def metadata(
    config: Configuration = None,
    url: Url = None,
    database: DatabaseUrl = None,
    media: MediaFolder = None,
    concurrency: Concurrency = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Look at the media of jobs that are Queued."""
    _work("metadata", config, url, database, media, concurrency, metrics_port)


@worker.command()
def transcription(
    config: Configuration = None,
    url: Url = None,
    database: DatabaseUrl = None,
    media: MediaFolder = None,
    concurrency: Concurrency = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Write down what is said in jobs that are MetadataReady."""
    _work("transcription", config, url, database, media, concurrency, metrics_port)


def _work(
    name: str,
    config: Path | None,
    url: str | None,
    database: str | None,
    media: Path | None,
    concurrency: int | None,
    metrics_port: int | None,
) -> None:
    settings = settings_from(
        config,
        url=url,
        database=database,
        media={"root": str(media) if media else None},
        stages={name: {"concurrency": concurrency}},
    )
    run_until_stopped(lambda stop: _run(name, settings, metrics_port, stop))


async def _run(
    name: str, settings: JobSettings, metrics_port: int | None, stop: asyncio.Event
) -> None:
    from penstock.jobs.pipeline.media import STAGES, media_tools
    from penstock.jobs.system import job_system

    async with AsyncExitStack() as stack:
        stack.enter_context(serving_metrics(metrics_port))
        system = await stack.enter_async_context(job_system(settings, observer=observer()))
        tools = await stack.enter_async_context(media_tools(settings.media, system.store))
        await stack.enter_async_context(system.worker(STAGES[name](settings, tools)))
        typer.echo(f"Working on {name}. Ctrl-C stops.")
        await stop.wait()
