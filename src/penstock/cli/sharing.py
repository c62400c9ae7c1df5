"""Parameters that several commands have, declared once and given to them as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import SimpleNamespace
from typing import Any, get_type_hints


def with_options(
    options: Callable[..., AbstractContextManager[Any]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the parameters of `options` in place of its own first one, which is what
    `options` makes of them, entered. Of several such decorators the lowest makes the first."""
    parameters = _parameters(options)

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = _parameters(command, skip=1)

        @wraps(command)
        def run(*outer: Any, **given: Any) -> None:
            mine = {parameter.name: given.pop(parameter.name) for parameter in parameters}
            with options(**mine) as made:
                command(made, *outer, **given)

        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *parameters)]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return run

    return wrap


def _parameters(function: Callable[..., Any], skip: int = 0) -> list[inspect.Parameter]:
    """Those after the first so many, which may be of types that are not loaded yet."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    written = SimpleNamespace(__annotations__={p.name: p.annotation for p in parameters})
    known = inspect.unwrap(function).__globals__
    hints = get_type_hints(written, known, include_extras=True)
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
