"""A stage's handler, looked at where it is declared: what can never work is said before jobs come.

Only what is sure is refused. Annotations are not needed, and what they name need not be importable.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from inspect import Parameter
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from penstock.callbacks import underlying, where
from penstock.errors import InvalidArgumentError

_PLACES = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_handler(
    stage: str, handler: Any, *, takes: Sequence[type], returns: Sequence[type]
) -> None:
    """`InvalidArgumentError` unless it may be called with a job of one of these types, and perhaps
    tools, and awaited for one of these outcomes."""
    if not callable(handler):
        raise InvalidArgumentError(
            f"The handler of stage {stage!r} is a {type(handler).__name__}; give it an async "
            "function that takes a job"
        )
    job, outcome = _annotation(handler, _written_for_job(stage, handler)), _returned(handler)
    _check_async(stage, handler, outcome)
    for kind, wanted, verb in ((job, takes, "takes"), (outcome, returns, "returns")):
        if not _may_be(kind, wanted):
            names = ", ".join(one.__name__ for one in wanted)
            raise _wrong(stage, handler, f"{verb} {_shown(kind)}", f"one that {verb} {names}")


def _check_async(stage: str, handler: Callable[..., Any], outcome: Any) -> None:
    function = inspect.unwrap(underlying(handler))
    if inspect.iscoroutinefunction(function) or not inspect.isfunction(function):
        return
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _wrong(stage, handler, "yields", "`async def` and `return`")
    # What only hands on to an async function says so, or is too small to.
    if not _is_awaitable(outcome) and function.__name__ != "<lambda>":
        raise _wrong(
            stage, handler, "is not async", "`async def`, with `await asyncio.to_thread(…)` around "
            "what blocks"
        )  # fmt: skip


def _written_for_job(stage: str, handler: Callable[..., Any]) -> Any:
    """The annotation of the first parameter, if all of them can be given something."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # Not everything that can be called tells.
        return Parameter.empty
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    single = [p for p in parameters if p.kind not in several]
    places = [p for p in single if p.kind in _PLACES]
    needed = [p for p in single if p.default is Parameter.empty]
    takes_any = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)
    if len(needed) > 2 or any(p not in places for p in needed) or not (places or takes_any):
        shown = ", ".join(p.name for p in parameters) or "nothing"
        raise _wrong(
            stage, handler, f"takes {shown}", "one that takes a job, or a job and the tools of the "
            "pipeline"
        )  # fmt: skip
    return places[0].annotation if places else Parameter.empty


def _returned(handler: Callable[..., Any]) -> Any:
    written = getattr(underlying(handler), "__annotations__", {})
    return _annotation(handler, written.get("return", Parameter.empty))


def _annotation(handler: Callable[..., Any], written: Any) -> Any:
    """What an annotation means; Any where there is none, or it cannot be found out here."""
    if written is Parameter.empty:
        return Any
    known = getattr(inspect.unwrap(underlying(handler)), "__globals__", {})
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": written}), known)["it"]
    except Exception:
        return Any


def _may_be(kind: Any, wanted: Sequence[type]) -> bool:
    """Whether what is annotated so can be one of these, as far as that can be said."""
    return any(
        one is Any
        or not isinstance(one, type)
        or getattr(one, "_is_protocol", False)
        or any(issubclass(one, other) or issubclass(other, one) for other in wanted)
        for one in _members(kind)
    )


def _members(kind: Any) -> Iterator[Any]:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        for one in get_args(kind):
            yield from _members(one)
    else:
        yield Any if _is_awaitable(kind) else origin or kind


def _is_awaitable(kind: Any) -> bool:
    found = get_origin(kind) or kind
    return isinstance(found, type) and issubclass(found, Awaitable)


def _shown(kind: Any) -> str:
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


def _wrong(
    stage: str, handler: Callable[..., Any], what: str, instead: str
) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The handler of stage {stage!r}, {where(handler)}, {what}; write {instead}"
    )
