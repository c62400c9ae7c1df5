"""`penstock pipeline`: the stages of the jobs on Spark."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.metrics import serving_metrics
from penstock.cli.options import MetricsPort, SettingsOptions, with_settings
from penstock.cli.process import log_to_terminal

if TYPE_CHECKING:
    from penstock.jobs.settings import JobSettings
    from penstock.spark.jobs.pipeline import SparkPipeline

pipeline = typer.Typer(help="The stages of the jobs, on Spark.", no_args_is_help=True)

Master = Annotated[
    str | None, typer.Option(help="Spark's master: local[*], local-cluster[…], spark://HOST:PORT.")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://HOST:PORT.")]
Stages = Annotated[
    str | None,
    typer.Option(help="Which, with commas between; all, and the projection, unless given."),
]
Checkpoints = Annotated[
    str, typer.Option(help="Where Spark keeps how far it is; all machines must see it.")
]
History = Annotated[str | None, typer.Option(help="Where the projection writes events as Parquet.")]
Trigger = Annotated[float, typer.Option(min=0, help="Seconds between batches.")]


@pipeline.command()
@with_settings
def run(
    common: SettingsOptions,
    master: Master = None,
    remote: Remote = None,
    stages: Stages = None,
    checkpoints: Checkpoints = "penstock-checkpoints",
    history: History = None,
    trigger: Trigger = 0.5,
    metrics_port: MetricsPort = None,
) -> None:
    """Run until interrupted: SIGTERM and Ctrl-C let the batches that run come to their end."""
    options = _options(common, checkpoints, history, stages) | {"trigger": trigger}
    with serving_metrics(metrics_port):
        _run(common.load(), master, remote, options, once=False)


@pipeline.command()
@with_settings
def backfill(
    common: SettingsOptions,
    master: Master = None,
    remote: Remote = None,
    stages: Stages = None,
    checkpoints: Checkpoints = "penstock-checkpoints",
    history: History = None,
) -> None:
    """Work through what there is now, stage by stage, and end."""
    options = _options(common, checkpoints, history, stages)
    _run(common.load(), master, remote, options, once=True)


def _options(
    common: SettingsOptions, checkpoints: str, history: str | None, stages: str | None
) -> dict[str, Any]:
    given: dict[str, Any] = {"checkpoints": checkpoints, "history": history}
    given["pipeline"] = common.pipeline
    if stages is not None:
        names = tuple(name.strip() for name in stages.split(",") if name.strip())
        given["stages"] = names
    return given


def _run(
    settings: JobSettings,
    master: str | None,
    remote: str | None,
    options: dict[str, Any],
    *,
    once: bool,
) -> None:
    from penstock.spark import session
    from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline, queries_of

    log_to_terminal()
    chosen = PipelineOptions(**options)
    queries = queries_of(settings, chosen)
    typer.echo("Starting Spark…")
    spark = session("penstock pipeline", master, remote=remote, log_level="ERROR")
    try:
        made = SparkPipeline(spark, settings, chosen)
        _stop_on_signals(made)
        typer.echo(f"Running {', '.join(queries)}.")
        if once:
            made.backfill()
            typer.echo("All that was there is done.")
        else:
            made.run()
            typer.echo("Stopped between batches.")
    finally:
        spark.stop()


def _stop_on_signals(made: SparkPipeline) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: made.stop())
