"""`penstock jobs`: ask for jobs and follow them, through the API."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from penstock.cli.brokers.broker import AsJson, print_json
from penstock.cli.exit_codes import NOT_ALL
from penstock.cli.jobs.following import follow
from penstock.cli.jobs.metrics import observer
from penstock.cli.jobs.options import SettingsOptions, with_api, with_settings
from penstock.cli.jobs.process import run_until_stopped
from penstock.cli.jobs.showing import show_jobs
from penstock.cli.jobs.used_settings import say_used, used
from penstock.collector import look_rarely
from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.cli.jobs.api import Api
    from penstock.jobs.settings import JobSettings

jobs = typer.Typer(help="Media jobs, through the ingestion API.", no_args_is_help=True)
_out = Console()
_err = Console(stderr=True)

JobArgument = Annotated[str, typer.Argument(help="A job's id.", metavar="JOB")]
Patience = Annotated[
    float, typer.Option(min=0, help="Seconds to wait for an API that went away to come back.")
]
_PATIENCE = 30.0


@jobs.command()
@with_settings
def serve(
    options: SettingsOptions,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    workers: Annotated[bool, typer.Option(help="Run the stages in this process, too.")] = False,
) -> None:
    """Serve the ingestion API and its page until interrupted."""
    settings = options.load(api={"host": host, "port": port})
    if settings.media.root is not None:
        _make_folder(Path(settings.media.root))
    say_used(settings)
    run_until_stopped(lambda stop: _serve(settings, workers, stop), log_json=options.log_json)


def _make_folder(root: Path) -> None:
    """Uploads go there. A worker that finds none was pointed elsewhere, and makes none."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"Cannot make the media folder {root}: {error.strerror}; choose another with --media"
        ) from None


async def _serve(settings: JobSettings, workers: bool, stop: asyncio.Event) -> None:
    from penstock.jobs.system import job_system
    from penstock.web import create_app
    from penstock.web import serve as serve_app

    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(job_system(settings, observer=observer()))
        ingestion = await stack.enter_async_context(system.ingesting())
        if workers:
            await stack.enter_async_context(system.working())
        app = create_app(system, ingestion)
        look_rarely()
        await serve_app(app, settings.api.host, settings.api.port, on_ready=_announce, stop=stop)


def _announce(address: str) -> None:
    _out.print(f"Serving on {address} (page), {address}/docs (API). Ctrl-C stops.")


@jobs.command(name="settings")
@with_settings
def show_settings(options: SettingsOptions, json: AsJson = False) -> None:
    """Show the settings that commands would use here, and which are not defaults; no secrets."""
    told = used(options.read())
    if json:
        print_json({name: value for name, (value, _) in told.items()})
        return
    for name, (value, default) in told.items():
        typer.echo(f"{name} = {msgspec.json.encode(value).decode()}{'' if default else '  # set'}")


@jobs.command()
@with_api
def submit(
    client: Api,
    media: Annotated[
        list[str], typer.Argument(help="Files, addresses or YouTube videos.", metavar="MEDIA...")
    ],
    kind: Annotated[
        str | None,
        typer.Option("--type", help="Its media type; audio, video… is guessed when not given."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Asking again with the same key gives the same job.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="A title, for you.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the jobs to their end.")] = False,
    remote: Annotated[
        bool, typer.Option(help="MEDIA are paths in the server's media folder.")
    ] = False,
    patience: Patience = _PATIENCE,
    json: AsJson = False,
) -> None:
    """Ask for a job for each of MEDIA. Files are uploaded; one that cannot be is named, and the
    others go on.

    Ends with 0 when all were sent, with --wait when all jobs are complete, and with 1 when some
    were not. One alone that cannot be sent ends with the code of its error.
    """
    from penstock.cli.jobs.submitting import Wish, say_sent, submit_and_wait, submit_each

    out = _err if json else _out
    wish = Wish(kind=kind, key=key, title=title, remote=remote)
    sending = submit_each(client, media, wish, out)
    if wait:
        all_done = submit_and_wait(client, sending, out, patience, json=json)
    else:
        said = list(say_sent(sending, json=json, alone=len(media) == 1, quiet=False))
        all_done = not any(one.error for one in said)
    if not all_done:
        raise typer.Exit(NOT_ALL)


@jobs.command()
@with_api
def status(
    client: Api,
    job: Annotated[str | None, typer.Argument(help="A job's id.", metavar="[JOB]")] = None,
    text: Annotated[bool, typer.Option(help="Show its transcript.")] = False,
    stage: Annotated[str | None, typer.Option(help="Only jobs at this stage.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    json: AsJson = False,
) -> None:
    """Show a job, or the newest ones."""
    if stage is not None:
        client.check_stage(stage)
    if job is None:
        _show(client, client.jobs(limit=limit, stage=stage), json=json)
        return
    found = client.job(job)
    if json:
        print_json(found | ({"transcript": client.transcript(job)} if text else {}))
        return
    _show(client, [found])
    if text:
        for start, end, said in client.transcript(job)["segments"]:
            when = f"{start:8.2f} {end:8.2f}  " if end else ""
            typer.echo(f"{when}{said}")


@jobs.command()
@with_api
def watch(
    client: Api,
    job: Annotated[
        list[str] | None, typer.Argument(help="Jobs' ids; all when none.", metavar="[JOB]...")
    ] = None,
    patience: Patience = _PATIENCE,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each change.")] = False,
) -> None:
    """Follow jobs live; with ids, until all of them have ended."""
    out, tell = (_err, print_json) if json else (_out, None)
    if not follow(client, job or (), out, patience, tell=tell).all_complete:
        raise typer.Exit(NOT_ALL)


@jobs.command()
@with_api
def retry(client: Api, job: JobArgument, json: AsJson = False) -> None:
    """Run a job that failed or was cancelled anew; try one that is under way now."""
    _show(client, [client.change(job, "retry")], json=json)


@jobs.command()
@with_api
def cancel(client: Api, job: JobArgument, json: AsJson = False) -> None:
    """Stop a job."""
    _show(client, [client.change(job, "cancel")], json=json)


def _show(client: Api, found: list[dict[str, Any]], *, json: bool = False) -> None:
    if not json:
        show_jobs(found, client.stages(), _out)
        return
    for job in found:
        print_json(job)
