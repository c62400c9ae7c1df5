"""Options that several commands have, declared once."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.file_options import or_in_file
from penstock.cli.sharing import with_options
from penstock.connect import check_shared

if TYPE_CHECKING:
    from penstock.cli.jobs.api import Api
    from penstock.jobs.pipeline.declaration import Pipeline
    from penstock.jobs.settings import JobSettings

# As `penstock.jobs.pipeline.media` says; to show help nobody needs more of it.
MEDIA_REFERENCE = "penstock.jobs.pipeline.media:MEDIA"
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Serve /metrics, /live and /ready there; 0: a free port."),
]
MetricsHost = Annotated[str, typer.Option(help="The address for --metrics-port.")]


@dataclass(frozen=True)
class SettingsOptions:
    """What a command gets that is declared `with_settings`."""

    config: Path | None
    pipeline: str
    given: dict[str, Any]
    log_json: bool = False

    def load(self, **own: Any) -> JobSettings:
        """The settings, with what the command has to say itself, for processes that share them."""
        settings = self.read(**own)
        check_shared(settings.url)
        return settings

    def read(self, **own: Any) -> JobSettings:
        """The settings, whatever they say."""
        from penstock.jobs.settings import load_settings

        pipeline = pipeline_here(self.pipeline)
        return load_settings(self.config, pipeline=pipeline, **self.given, **own)


def _settings_options(
    config: Annotated[
        Path | None,
        typer.Option(help="Settings (TOML).", envvar="PENSTOCK_CONFIG", show_envvar=True),
    ] = None,
    pipeline: Annotated[
        str,
        typer.Option(
            help="A pipeline of your own, as module:NAME.",
            envvar="PENSTOCK_PIPELINE",
            show_envvar=True,
        ),
    ] = MEDIA_REFERENCE,
    url: Annotated[str | None, typer.Option(help="The broker, such as local://DIR.")] = None,
    database: Annotated[str | None, typer.Option(help="Where jobs are kept.")] = None,
    media: Annotated[Path | None, typer.Option(help="The media folder.")] = None,
    log_json: Annotated[
        bool,
        typer.Option(
            "--log-json", help="Logs as JSON lines.", envvar="PENSTOCK_LOG_JSON", show_envvar=True
        ),
    ] = False,
) -> AbstractContextManager[SettingsOptions]:
    root = str(media.absolute()) if media else None
    given = {"url": url, "database": database, "media": {"root": root}}
    return nullcontext(SettingsOptions(config, pipeline, given, log_json))


def pipeline_here(reference: str) -> Pipeline:
    """The pipeline at `module:NAME`, where modules of the current folder are found as well, here
    and in the processes that are started from here."""
    from penstock.jobs.pipeline.declaration import pipeline_of

    if reference == MEDIA_REFERENCE:
        return pipeline_of(reference)  # Ours: nothing of the current folder is needed.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{known}" if known else here
    return pipeline_of(reference)


def _api_options(
    api: Annotated[
        str,
        typer.Option(
            "--api", envvar="PENSTOCK_API_URL", help="Where the API is.", callback=or_in_file
        ),
    ] = "http://127.0.0.1:8080",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_API_TOKEN", help="Your token.", show_envvar=True, callback=or_in_file
        ),
    ] = None,
) -> AbstractContextManager[Api]:
    from penstock.cli.jobs.api import Api

    return Api(api, token)


with_settings = with_options(_settings_options)
with_api = with_options(_api_options)
