"""What handlers need and somebody else makes: by type, once for the app or for each message."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from penstock.callbacks import underlying, where
from penstock.consuming.declaration import Function
from penstock.consuming.signature import (
    Needed,
    OfMessage,
    Signature,
    annotations_of,
    read_signature,
)
from penstock.errors import InvalidArgumentError
from penstock.message import Message

_YIELDS = (AsyncGenerator, AsyncIterator, Generator, Iterator)


@dataclass(frozen=True, slots=True)
class Provider:
    """Makes values of a type. `once`: one for as long as the app runs."""

    function: Function
    once: bool


class Dependencies:
    """Providers by the type they provide."""

    def __init__(
        self,
        values: Mapping[Any, Any] | None = None,
        providers: Mapping[Any, Provider] | None = None,
    ) -> None:
        self._values = dict(values or {})
        self._providers = dict(providers or {})

    def provide(self, kind: Any, value: object) -> None:
        self._values[kind] = value
        self._providers.pop(kind, None)

    def add(self, function: Function, *, once: bool) -> None:
        self._providers[_provided_type(function)] = Provider(function, once)

    def with_values(self, values: Mapping[Any, Any]) -> Dependencies:
        """These instead of whatever provides their types."""
        kept = {kind: one for kind, one in self._providers.items() if kind not in values}
        return Dependencies({**self._values, **values}, kept)

    def joined(self, others: Dependencies) -> Dependencies:
        """With those of a router that is included; what the app provides itself wins."""
        values = {k: v for k, v in others._values.items() if k not in self._providers}
        providers = {k: p for k, p in others._providers.items() if k not in self._values}
        return Dependencies({**values, **self._values}, {**providers, **self._providers})

    def __contains__(self, kind: Any) -> bool:
        try:
            return kind in self._values or kind in self._providers
        except TypeError:  # An annotation that cannot be a key is no type of ours.
            return False

    def plan(self, kinds: Sequence[Any]) -> Plan:
        """How to get these; `InvalidArgumentError` for rings."""
        steps: dict[Any, Step] = {}
        for kind in kinds:
            self._add_steps(kind, steps, ())
        return Plan(steps, self._values)

    def _add_steps(self, kind: Any, steps: dict[Any, Step], behind: tuple[Any, ...]) -> None:
        if kind in steps or kind not in self._providers:
            return
        provider = self._providers[kind]
        if kind in behind:
            names = " → ".join(one.__name__ for one in (*behind, kind))
            raise InvalidArgumentError(
                f"{where(provider.function)} needs what needs it: {names}; break the ring"
            )
        signature = read_signature(provider.function, self.__contains__, takes_body=False)
        for needed in signature.needs:
            self._add_steps(needed, steps, (*behind, kind))
        if provider.once:
            self._check_once(provider, signature)
        steps[kind] = Step(kind, provider, signature)

    def _check_once(self, provider: Provider, signature: Signature) -> None:
        passing = [
            kind
            for kind in signature.needs
            if kind in self._providers and not self._providers[kind].once
        ]
        if passing or any(isinstance(one, OfMessage) for one in signature.sources):
            raise InvalidArgumentError(
                f"{where(provider.function)} is called once, but wants what there is only for a "
                "message; leave out once=True, or do not ask for it"
            )


@dataclass(frozen=True, slots=True)
class Step:
    kind: Any
    provider: Provider
    signature: Signature


class Plan:
    """The providers to call, in order, and the values that are there already."""

    def __init__(self, steps: Mapping[Any, Step], values: Mapping[Any, Any]) -> None:
        self._once = [step for step in steps.values() if step.provider.once]
        self._each = [step for step in steps.values() if not step.provider.once]
        self._values = dict(values)

    @property
    def constant(self) -> bool:
        """Nothing has to be made for each message."""
        return not self._each

    async def open(self, shared: dict[Any, Any], stack: AsyncExitStack) -> None:
        """Make what is made once, unless somebody in `shared` already has."""
        for step in self._once:
            if step.kind not in shared:
                values = {**self._values, **shared}
                shared[step.kind] = await _make(step, values, None, stack)
            self._values[step.kind] = shared[step.kind]

    def value(self, kind: Any) -> Any:
        return self._values[kind]

    async def values(self, message: Message, stack: AsyncExitStack) -> dict[Any, Any]:
        """All of them for one message; what has to be cleaned up is left to the stack."""
        values = dict(self._values)
        for step in self._each:
            values[step.kind] = await _make(step, values, message, stack)
        return values


async def _make(
    step: Step, values: Mapping[Any, Any], message: Message | None, stack: AsyncExitStack
) -> Any:
    def given(source: Any) -> Any:
        return values[source.kind] if isinstance(source, Needed) else source.read(message)

    function = step.provider.function
    places = [given(source) for source in step.signature.places]
    keywords = {name: given(source) for name, source in step.signature.keywords.items()}
    plain = underlying(function)
    if inspect.isasyncgenfunction(plain):
        return await stack.enter_async_context(asynccontextmanager(function)(*places, **keywords))
    if inspect.isgeneratorfunction(plain):
        return stack.enter_context(contextmanager(function)(*places, **keywords))
    made = function(*places, **keywords)
    return await made if inspect.isawaitable(made) else made


def _provided_type(function: Function) -> Any:
    kind = annotations_of(function).get("return")
    if get_origin(kind) in _YIELDS:
        kind = get_args(kind)[0]
    if kind is None or kind is type(None):
        raise InvalidArgumentError(
            f"{where(function)} does not say what it provides; write `-> Database`, or "
            "`-> AsyncIterator[Database]` when it yields"
        )
    return kind
