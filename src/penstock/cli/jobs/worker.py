"""`penstock worker STAGE`: run one stage of a pipeline."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.jobs.metrics import keeping_ready, observer, serving_metrics
from penstock.cli.jobs.options import MetricsHost, MetricsPort, SettingsOptions, with_settings
from penstock.cli.jobs.process import run_until_stopped
from penstock.cli.jobs.used_settings import say_used
from penstock.collector import look_rarely

if TYPE_CHECKING:
    from penstock.jobs.settings import JobSettings


@with_settings
def worker(
    options: SettingsOptions,
    stage: Annotated[
        str,
        typer.Argument(
            help="A stage of the pipeline; of media jobs: metadata or transcription.",
            metavar="STAGE",
        ),
    ],
    concurrency: Annotated[int | None, typer.Option(min=1, help="Jobs at a time.")] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Run one stage of the jobs until interrupted."""
    settings = options.load(stages={stage: {"concurrency": concurrency}} if concurrency else {})
    settings.pipeline.stage(stage)
    say_used(settings)
    watched = (metrics_host, metrics_port)
    run_until_stopped(lambda stop: _run(stage, settings, watched, stop), log_json=options.log_json)


async def _run(
    name: str, settings: JobSettings, watched: tuple[str, int | None], stop: asyncio.Event
) -> None:
    from penstock.jobs.system import job_system

    async with AsyncExitStack() as stack:
        readiness = await stack.enter_async_context(serving_metrics(*watched))
        system = await stack.enter_async_context(job_system(settings, observer=observer()))
        await stack.enter_async_context(system.working(name))
        if watched[1] is not None:
            await stack.enter_async_context(keeping_ready(system, readiness))
        look_rarely()
        typer.echo(f"Working on {name}. Ctrl-C stops.")
        await stop.wait()
