"""What a function wants to be called with, read from its annotations once, at start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from penstock.callbacks import underlying, where
from penstock.consuming.bodies import UNDECODABLE
from penstock.consuming.declaration import Function
from penstock.errors import InvalidArgumentError
from penstock.message import Message
from penstock.outcomes import Reject


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of the message: `tenant: Annotated[str, Attribute("tenant")]`."""

    key: str


class _All:
    """Every attribute."""


Attributes: TypeAlias = Annotated[Mapping[str, str], _All()]
"""The message's attributes: `attributes: Attributes`."""


@dataclass(frozen=True, slots=True)
class Body:
    """The decoded body; a list of them for a batch."""

    kind: Any
    batch: bool


@dataclass(frozen=True, slots=True)
class OfMessage:
    """Something that is read from the message; `attribute`: one of its attributes."""

    read: Callable[[Message], Any]
    batch: bool = False
    attribute: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """Something that a provider has to make."""

    kind: Any


Source: TypeAlias = Body | OfMessage | Needed


@dataclass(frozen=True, slots=True)
class Signature:
    """Where each argument comes from. `keywords` are those that cannot be given by place."""

    places: tuple[Source, ...]
    keywords: Mapping[str, Source]
    returns: Any

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*self.places, *self.keywords.values())

    @property
    def body(self) -> Body | None:
        return next((one for one in self.sources if isinstance(one, Body)), None)

    @property
    def batch(self) -> bool:
        return any(getattr(one, "batch", False) for one in self.sources)

    @property
    def needs(self) -> tuple[Any, ...]:
        return tuple(one.kind for one in self.sources if isinstance(one, Needed))


def read_signature(
    function: Function, provided: Callable[[Any], bool], *, takes_body: bool = True
) -> Signature:
    """How to call it; `InvalidArgumentError` says what cannot be understood and what to write.

    `provided` says whether there is a provider of a type. What is left over is the body.
    """
    hints = annotations_of(function)
    places: list[Source] = []
    keywords: dict[str, Source] = {}
    body: str | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        source = _source(function, parameter, hints, provided)
        if source is None and takes_body and body is None:
            body = name
            source = _body(hints[name])
        if source is None:
            if parameter.default is not inspect.Parameter.empty:
                continue
            raise InvalidArgumentError(_no_provider(function, name, hints[name], body))
        by_place = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        if by_place and len(places) == _place(function, name):
            places.append(source)
        else:
            keywords[name] = source
    signature = Signature(tuple(places), keywords, hints.get("return"))
    _check_batch(function, signature)
    return signature


def annotations_of(function: Function) -> dict[str, Any]:
    try:
        return get_type_hints(underlying(function), include_extras=True)
    except Exception as error:
        raise InvalidArgumentError(
            f"The annotations of {where(function)} cannot be read: {error}; what they name must "
            "be importable at the top of the module"
        ) from error


def is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(underlying(function))


def _source(
    function: Function,
    parameter: inspect.Parameter,
    hints: dict[str, Any],
    provided: Callable[[Any], bool],
) -> Source | None:
    name = parameter.name
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise InvalidArgumentError(
            f"{where(function)} takes *{name}; write out what it wants, each with its type"
        )
    if name not in hints:
        raise InvalidArgumentError(
            f"Parameter {name!r} of {where(function)} has no annotation; write what the body is, "
            f"such as `{name}: bytes`, `{name}: dict` or a Struct of yours"
        )
    kind = hints[name]
    if kind is Message:
        return OfMessage(lambda message: message)
    if kind == list[Message]:
        return OfMessage(lambda message: message, batch=True)
    for note in getattr(kind, "__metadata__", ()):
        if isinstance(note, _All):
            return OfMessage(lambda message: message.attributes)
        if isinstance(note, Attribute):
            required = parameter.default is inspect.Parameter.empty
            read = _attribute(note.key, get_args(kind)[0], parameter.default)
            return OfMessage(read, attribute=note.key, required=required)
    return Needed(kind) if provided(kind) else None


def _body(kind: Any) -> Body:
    """A list is a batch; `tuple[Order, ...]` is one body with several orders."""
    if get_origin(kind) is list:
        return Body(get_args(kind)[0], batch=True)
    return Body(kind, batch=False)


def _attribute(key: str, kind: Any, default: Any) -> Callable[[Message], Any]:
    def read(message: Message) -> Any:
        text = message.attributes.get(key)
        if text is None:
            if default is inspect.Parameter.empty:
                raise Reject(UNDECODABLE) from ValueError(f"attribute {key!r} is missing")
            return default
        try:
            return msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError as error:
            raise Reject(UNDECODABLE) from ValueError(f"attribute {key!r}: {error}")

    return read


def _place(function: Function, name: str) -> int:
    return list(inspect.signature(function).parameters).index(name)


def _no_provider(function: Function, name: str, kind: Any, body: str | None) -> str:
    shown = getattr(kind, "__name__", None) or str(kind)
    taken = f" ({body!r} is the body)" if body is not None else ""
    return (
        f"Parameter '{name}: {shown}' of {where(function)} has no provider{taken}; write "
        f"`app.provide({shown}, …)`, or a function `-> {shown}` under @app.provider"
    )


def _check_batch(function: Function, signature: Signature) -> None:
    if not signature.batch:
        return
    single = [
        one
        for one in signature.sources
        if not isinstance(one, Needed) and not getattr(one, "batch", False)
    ]
    if single:
        raise InvalidArgumentError(
            f"{where(function)} takes a batch, and something of a single message beside it; write "
            "`messages: list[Message]`, and read attributes from those"
        )
