"""`penstock pipeline`: the stages of the jobs on Spark."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.metrics import serving_metrics
from penstock.cli.running import (
    Configuration,
    DatabaseUrl,
    MediaFolder,
    MetricsPort,
    Url,
    log_to_terminal,
    settings_from,
)

if TYPE_CHECKING:
    from penstock.jobs.settings import JobSettings
    from penstock.spark.jobs.pipeline import Pipeline

pipeline = typer.Typer(help="The stages of the jobs, on Spark.", no_args_is_help=True)

Master = Annotated[
    str | None, typer.Option(help="Spark's master: local[*], local-cluster[…], spark://HOST:PORT.")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://HOST:PORT.")]
Stages = Annotated[str, typer.Option(help="Which: metadata, transcription, projection.")]
Checkpoints = Annotated[
    str, typer.Option(help="Where Spark keeps how far it is; all machines must see it.")
]
History = Annotated[str | None, typer.Option(help="Where the projection writes events as Parquet.")]
Handlers = Annotated[
    str | None,
    typer.Option(help="Stages of your own: module:mapping, as penstock.jobs.pipeline.media."),
]
Trigger = Annotated[float, typer.Option(min=0, help="Seconds between batches.")]
_ALL = "metadata,transcription,projection"


@pipeline.command()
def run(
    config: Configuration = None,
    master: Master = None,
    remote: Remote = None,
    stages: Stages = _ALL,
    checkpoints: Checkpoints = "penstock-checkpoints",
    history: History = None,
    url: Url = None,
    database: DatabaseUrl = None,
    media: MediaFolder = None,
    handlers: Handlers = None,
    trigger: Trigger = 0.5,
    metrics_port: MetricsPort = None,
) -> None:
    """Run until interrupted: SIGTERM and Ctrl-C let the batches that run come to their end."""
    settings = _settings(config, url, database, media)
    options = _options(checkpoints, history, stages, handlers) | {"trigger": trigger}
    with serving_metrics(metrics_port):
        _run(settings, master, remote, options, once=False)


@pipeline.command()
def backfill(
    config: Configuration = None,
    master: Master = None,
    remote: Remote = None,
    stages: Stages = _ALL,
    checkpoints: Checkpoints = "penstock-checkpoints",
    history: History = None,
    url: Url = None,
    database: DatabaseUrl = None,
    media: MediaFolder = None,
    handlers: Handlers = None,
) -> None:
    """Work through what there is now, stage by stage, and end."""
    settings = _settings(config, url, database, media)
    options = _options(checkpoints, history, stages, handlers)
    _run(settings, master, remote, options, once=True)


def _settings(
    config: Path | None, url: str | None, database: str | None, media: Path | None
) -> JobSettings:
    root = str(media.absolute()) if media else None
    return settings_from(config, url=url, database=database, media={"root": root})


def _options(
    checkpoints: str, history: str | None, stages: str, handlers: str | None
) -> dict[str, Any]:
    names = tuple(name.strip() for name in stages.split(",") if name.strip())
    given = {"checkpoints": checkpoints, "history": history, "stages": names}
    return given | ({"handlers": handlers} if handlers else {})


def _run(
    settings: JobSettings,
    master: str | None,
    remote: str | None,
    options: dict[str, Any],
    *,
    once: bool,
) -> None:
    from penstock.spark import session
    from penstock.spark.jobs.pipeline import Pipeline, PipelineOptions

    log_to_terminal()
    chosen = PipelineOptions(**options)
    typer.echo("Starting Spark…")
    spark = session("penstock pipeline", master, remote=remote, log_level="ERROR")
    try:
        made = Pipeline(spark, settings, chosen)
        _stop_on_signals(made)
        typer.echo(f"Running {', '.join(chosen.stages)}.")
        if once:
            made.backfill()
            typer.echo("All that was there is done.")
        else:
            made.run()
            typer.echo("Stopped between batches.")
    finally:
        spark.stop()


def _stop_on_signals(made: Pipeline) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: made.stop())
