"""`penstock pipeline`: the stages of the jobs on Spark."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.brokers.broker import moment, print_json
from penstock.cli.ending import Ending
from penstock.cli.jobs.metrics import Readiness, serving_metrics_beside
from penstock.cli.jobs.options import (
    MEDIA_REFERENCE,
    MetricsHost,
    MetricsPort,
    SettingsOptions,
    pipeline_here,
    with_settings,
)
from penstock.cli.jobs.process import log_to_terminal
from penstock.cli.jobs.shipping import manifests, ship
from penstock.cli.jobs.spark_options import Master, Remote, SparkOptions, with_spark
from penstock.cli.jobs.used_settings import say_used
from penstock.errors import FailedPreconditionError

if TYPE_CHECKING:
    from penstock.jobs.settings import JobSettings
    from penstock.spark.jobs.pipeline import Part

pipeline = typer.Typer(help="The stages of the jobs, on Spark.", no_args_is_help=True)
pipeline.command()(ship)
pipeline.command()(manifests)

Since = Annotated[str | None, typer.Option(help="Only what is not older: 2026-01-31T12:00, or 2h.")]
Trigger = Annotated[float, typer.Option(min=0, help="Seconds between batches.")]


@pipeline.command()
@with_settings
@with_spark
def run(
    how: SparkOptions,
    common: SettingsOptions,
    trigger: Trigger = 0.5,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Run until interrupted: SIGTERM and Ctrl-C let the batches that run come to their end."""
    options = how.of_pipeline(common.pipeline) | {"trigger": trigger}
    log_to_terminal(as_json=common.log_json)
    with serving_metrics_beside(metrics_host, metrics_port) as readiness:
        _run(common.load(), how, options, once=None, readiness=readiness)


@pipeline.command()
@with_settings
@with_spark
def backfill(
    how: SparkOptions,
    common: SettingsOptions,
    since: Since = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Only what is about this job; repeatable.")
    ] = None,
) -> None:
    """Work through what there is now, or a part of it, stage by stage, and end."""
    from penstock.spark.jobs.pipeline import Part

    part = Part(since=moment(since), jobs=job or ())
    log_to_terminal(as_json=common.log_json)
    _run(common.load(), how, how.of_pipeline(common.pipeline), once=part)


@pipeline.command()
def report(
    history: Annotated[str, typer.Argument(help="The history: a folder or an address.")],
    which: Annotated[
        list[str] | None, typer.Argument(help="Reports to show; all unless given.")
    ] = None,
    since: Since = None,
    until: Annotated[str | None, typer.Option(help="Only what happened before.")] = None,
    watermark: Annotated[
        float, typer.Option(min=0, help="Seconds that an event may lie behind others.")
    ] = 60.0,
    own: Annotated[
        str, typer.Option("--pipeline", help="Your own, as module:NAME.")
    ] = MEDIA_REFERENCE,
    master: Master = None,
    remote: Remote = None,
    json: Annotated[bool, typer.Option(help="A line of JSON for each report.")] = False,
) -> None:
    """What a history says: seconds by stage, throughput, failures, retries, lag, late events."""
    from rich.console import Console

    from penstock.cli.jobs.report import plain, show
    from penstock.spark import session
    from penstock.spark.jobs.analytics import REPORTS, answer, check_reports, open_history
    from penstock.spark.jobs.history import check_there
    from penstock.spark.session.launching import leaving_out_ctrl_c

    check_reports(which or ())
    check_there(history)
    declared = pipeline_here(own)
    begin, end = moment(since), moment(until)
    spark = session(
        "penstock report",
        master,
        remote=remote,
        config={"spark.sql.session.timeZone": "UTC"},
        log_level="ERROR",
    )
    with leaving_out_ctrl_c():
        try:
            open_history(spark, history, since=begin, until=end, pipeline=declared)
            for name in which or REPORTS:
                found = answer(spark, name, watermark=watermark)
                rows = found.collect()
                if json:
                    print_json({"report": name, "rows": plain(found.columns, rows)})
                else:
                    show(Console(), REPORTS[name], found.columns, rows)
        finally:
            spark.stop()


@pipeline.command()
def compact(
    history: Annotated[str, typer.Argument(help="The history: a folder or an address.")],
    keep: Annotated[
        int, typer.Option(min=0, help="Hours that files stay for those who still read them.")
    ] = 168,
) -> None:
    """Put the small files of a history together, and delete those that nobody needs."""
    from penstock.spark.jobs.history import compact as compact_history

    done = compact_history(history, keep_hours=keep)
    typer.echo(f"{history}: {done.before} files before, {done.after} now.")


@pipeline.command()
def quicken() -> None:
    """Let Spark start in less time on this machine: keep its classes, as the JVM wants them, in a
    file of some 180 MB. Takes a minute; again after Spark or Java was replaced."""
    from penstock.spark.session.quickening import quicken as keep_classes

    file = keep_classes()
    typer.echo(f"{file}: {file.stat().st_size / 2**20:.0f} MiB. Sessions on this machine use it.")


def _run(
    settings: JobSettings,
    how: SparkOptions,
    options: dict[str, Any],
    *,
    once: Part | None,
    readiness: Readiness | None = None,
) -> None:
    from pyspark.errors import PySparkException

    from penstock.spark import session
    from penstock.spark.jobs.checkpoints import holding_checkpoints
    from penstock.spark.jobs.jvm import driver_config
    from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline, queries_of
    from penstock.spark.jobs.places import absolute_place, check_reach, reach_database
    from penstock.spark.reasons import reason_of
    from penstock.spark.session.ending import stopping
    from penstock.spark.session.starting import add_modules, master_of

    # All that can be wrong is said before Spark, which takes its time, is started.
    chosen = PipelineOptions(**options)
    config, modules = how.config(), how.modules()
    queries = queries_of(settings, chosen)
    if how.remote is None:
        check_reach(settings, master_of(how.master))
        if once is None or once.is_all:
            with holding_checkpoints(absolute_place(chosen.checkpoints), queries):
                pass  # It is had for good once Spark is there.
        config = driver_config() | config
    asyncio.run(reach_database(settings))
    say_used(settings)
    typer.echo("Starting Spark…")
    spark = session(
        "penstock pipeline", how.master, remote=how.remote, config=config, log_level="ERROR"
    )
    # Spark has a handler of its own for Ctrl-C, which comes with the session and ends its jobs.
    # It is not to be heard while the session is stopped either: it calls the JVM inside a call.
    with Ending(drain=None, code=1) as ending, stopping(spark):
        try:
            add_modules(spark, modules)
            made = SparkPipeline(spark, settings, chosen)
            # What is stopped at once has nothing to put in order: it is run again.
            ending.attach_calls(stop=made.stop, cancel=made.stop)
            typer.echo(f"Running {', '.join(queries)}.")
            if readiness is not None:
                readiness.ask, readiness.lacks = made.lacks, None
            if once is not None:
                _say_done(done=made.backfill(once))
            else:
                made.run()
                typer.echo("Stopped between batches.")
        except PySparkException as error:
            raise FailedPreconditionError(f"Spark: {reason_of(error)}") from error


def _say_done(*, done: bool) -> None:
    """Whoever goes on after a backfill goes on with what it did."""
    if not done:
        typer.echo("Stopped before all was done; the next backfill goes on.", err=True)
        raise typer.Exit(1)
    typer.echo("All that was there is done.")
