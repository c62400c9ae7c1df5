"""Options that several commands have, declared once."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from penstock.cli.api import Api
from penstock.connect import check_shared
from penstock.jobs.pipeline.declaration import Pipeline, pipeline_of
from penstock.jobs.pipeline.media import MEDIA, MEDIA_REFERENCE
from penstock.jobs.settings import JobSettings, load_settings

MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Serve Prometheus metrics on 127.0.0.1; 0: a free port."),
]


@dataclass(frozen=True)
class SettingsOptions:
    """What a command gets that is declared `with_settings`."""

    config: Path | None
    pipeline: str
    given: dict[str, Any]

    def load(self, **own: Any) -> JobSettings:
        """The settings, with what the command has to say itself."""
        pipeline = MEDIA if self.pipeline == MEDIA_REFERENCE else pipeline_here(self.pipeline)
        settings = load_settings(self.config, pipeline=pipeline, **self.given, **own)
        check_shared(settings.url)
        return settings


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
) -> AbstractContextManager[SettingsOptions]:
    root = str(media.absolute()) if media else None
    given = {"url": url, "database": database, "media": {"root": root}}
    return nullcontext(SettingsOptions(config, pipeline, given))


def pipeline_here(reference: str) -> Pipeline:
    """The pipeline at `module:NAME`, where modules of the current folder are found as well, here
    and in the processes that are started from here."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{known}" if known else here
    return pipeline_of(reference)


def _api_options(
    api: Annotated[
        str, typer.Option("--api", envvar="PENSTOCK_API_URL", help="Where the API is.")
    ] = "http://127.0.0.1:8080",
    token: Annotated[
        str | None, typer.Option(envvar="PENSTOCK_API_TOKEN", help="Your token.", show_envvar=True)
    ] = None,
) -> AbstractContextManager[Api]:
    return Api(api, token)


def _shared(
    options: Callable[..., AbstractContextManager[Any]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the parameters of `options` in place of its own first one, which is what
    `options` makes of them, entered."""
    parameters = _parameters(options)

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = _parameters(command)[1:]

        @wraps(command)
        def run(**given: Any) -> None:
            mine = {parameter.name: given.pop(parameter.name) for parameter in parameters}
            with options(**mine) as made:
                command(made, **given)

        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *parameters)]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return run

    return wrap


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    return [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
    ]


with_settings = _shared(_settings_options)
with_api = _shared(_api_options)
