"""Options whose value may be in a file: for a variable `NAME`, `NAME_FILE` says which."""

from __future__ import annotations

import os

import typer

from penstock.secret_files import with_files


def or_in_file(
    context: typer.Context, option: typer.CallbackParam, value: str | None
) -> str | None:
    """The callback of an option that has a variable. What is typed is meant."""
    source = context.get_parameter_source(option.name or "")
    typed = source is not None and source.name == "COMMANDLINE"
    if typed or context.resilient_parsing or not isinstance(option.envvar, str):
        return value
    names = (option.envvar, f"{option.envvar}_FILE")
    given = {name: os.environ[name] for name in names if name in os.environ}
    return with_files(given, option.envvar).get(option.envvar) or value
