"""Checking what was declared, all of it before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from penstock.callbacks import underlying
from penstock.config import SubscriptionConfig, check_duration, check_kind, check_name, check_whole
from penstock.consuming.bodies import decoder_of
from penstock.consuming.calling import Binding, decoder_for
from penstock.consuming.declaration import Subscriber
from penstock.consuming.dependencies import Dependencies
from penstock.consuming.middleware.chain import check_middleware
from penstock.consuming.results import published_kind
from penstock.consuming.signature import is_async, read_signature
from penstock.errors import InvalidArgumentError
from penstock.message import Draft
from penstock.rules.filters import parse_filter
from penstock.subscribing import SubscriberOptions

_FOR_BROKER = {field.name for field in fields(SubscriptionConfig)} - {
    "name",
    "topic",
    "retry_policy",
    "push",
}
_FOR_STREAM = {field.name for field in fields(SubscriberOptions)}
_OPTIONS = _FOR_BROKER | _FOR_STREAM


def bind_all(
    subscribers: Sequence[Subscriber],
    dependencies: Dependencies,
    idle: Sequence[str] = (),
) -> list[Binding]:
    """Everything an app runs; `InvalidArgumentError` names all that is wrong with it."""
    problems = [
        f"{function} publishes what it returns, and takes nobody's messages; put "
        "@app.subscriber(topic, subscription) above it"
        for function in idle
    ]
    problems += _taken_twice(subscribers)
    problems += _round_and_round(subscribers)
    bindings = []
    for subscriber in subscribers:
        try:
            bindings.append(bind(subscriber, dependencies))
        except InvalidArgumentError as error:
            problems.append(str(error))
    if problems:
        told = problems[0] if len(problems) == 1 else "\n  ".join(["", *problems])
        raise InvalidArgumentError(f"The app cannot start: {told}")
    return bindings


def bind(subscriber: Subscriber, dependencies: Dependencies) -> Binding:
    _check_options(subscriber)
    _check_runs(subscriber)
    if subscriber.blocking and is_async(subscriber.function):
        raise InvalidArgumentError(
            f"{subscriber.where} is async and blocking=True is for plain functions; leave it out"
        )
    signature = read_signature(subscriber.function, dependencies.__contains__)
    if subscriber.sizes_batches and not signature.batch:
        raise InvalidArgumentError(
            f"{subscriber.where} takes one message at a time, and batch_size and batch_wait are "
            "for handlers of several: write `list[…]` around its body, or leave them out"
        )
    if subscriber.publications:
        _check_published(subscriber, signature.returns)
    try:
        decode = decoder_for(signature)
    except InvalidArgumentError as error:
        kind: Any = signature.body.kind if signature.body else None
        shown = getattr(kind, "__name__", kind)
        raise InvalidArgumentError(
            f"The body {shown} of {subscriber.where} cannot be decoded: {error}; write bytes, str, "
            f"dict, a msgspec Struct, a dataclass or a pydantic model, or `app.provide({shown}, …)`"
            " if it is a dependency"
        ) from None
    return Binding(
        subscriber=subscriber,
        signature=signature,
        plan=dependencies.plan(signature.needs),
        decode=decode,
    )


def _check_options(subscriber: Subscriber) -> None:
    try:
        check_name("Topic", subscriber.topic)
        check_name("Subscription", subscriber.subscription)
        for publication in subscriber.publications:
            check_name("Topic", publication.topic)
        if subscriber.dead_letters is not None:
            check_name("Dead-letter topic", subscriber.dead_letters)
        for name in ("max_attempts", "concurrency"):
            if getattr(subscriber, name) is not None:
                check_whole(name, getattr(subscriber, name), 1)
        check_kind("blocking", subscriber.blocking, bool, "True or False")
        check_whole("batch_size", subscriber.batch_size, 1)
        check_duration("batch_wait", subscriber.batch_wait, 0, 600)
        for middleware in subscriber.middleware:
            check_middleware(middleware)
        unknown = sorted(subscriber.options.keys() - _OPTIONS)
        if unknown:
            raise InvalidArgumentError(
                f"there is no option {', '.join(unknown)}; besides those of `subscriber` there are "
                f"{', '.join(sorted(_OPTIONS))}"
            )
        _check_values(subscriber)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{subscriber.where}: {error}") from None


def _check_values(subscriber: Subscriber) -> None:
    """As those who take them will, but here the function is known."""
    given = subscriber.options
    for_broker = {name: given[name] for name in _FOR_BROKER & given.keys()}
    config = SubscriptionConfig(
        name=subscriber.subscription,
        topic=subscriber.topic,
        **{"retry_policy": subscriber.retry, **for_broker},
    )
    if config.filter:
        parse_filter(config.filter)
    SubscriberOptions(**{name: given[name] for name in _FOR_STREAM & given.keys()})


def _check_runs(subscriber: Subscriber) -> None:
    """Calling it is all there is to do."""
    if inspect.isclass(subscriber.function):
        kind = subscriber.function
        raise InvalidArgumentError(
            f"{kind.__module__}.{kind.__qualname__} is a class, and making one handles nothing; "
            "give a function, or a method of one that was made"
        )
    function = underlying(subscriber.function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgumentError(
            f"{subscriber.where} has a `yield` in it, so calling it runs nothing; write `return`, "
            "and return a list to publish several"
        )


def _check_published(subscriber: Subscriber, returns: Any) -> None:
    kind = published_kind(returns)
    if kind is Draft:
        return
    if kind is type(None):
        raise InvalidArgumentError(
            f"{subscriber.where} publishes what it returns, and says that this is None; write what "
            "it returns, or leave @app.publishes out"
        )
    try:
        decoder_of(kind)
    except InvalidArgumentError as error:
        shown = getattr(kind, "__name__", kind)
        raise InvalidArgumentError(
            f"What {subscriber.where} returns, {shown}, cannot be the body of a message: {error}; "
            "return bytes, str, dict, a msgspec Struct, a dataclass, a pydantic model or a Draft"
        ) from None


def _round_and_round(subscribers: Sequence[Subscriber]) -> list[str]:
    """Dead letters that come back to where they were given up, perhaps by way of others."""
    leads = {one.topic: one.dead_letters for one in subscribers if one.dead_letters is not None}
    problems = []
    for one in subscribers:
        seen, at = {one.topic}, one.dead_letters
        while at is not None and at not in seen:
            seen.add(at)
            at = leads.get(at)
        if at == one.topic:
            problems.append(
                f"{one.where}: its dead letters in {one.dead_letters!r} come back to {one.topic!r} "
                "and would go round for ever; give it another topic for them"
            )
    return problems


def _taken_twice(subscribers: Sequence[Subscriber]) -> list[str]:
    first: dict[str, Subscriber] = {}
    problems = []
    for one in subscribers:
        other = first.setdefault(one.subscription, one)
        if other is not one:
            problems.append(
                f"Subscription {one.subscription!r} has two handlers, {other.where} and "
                f"{one.where}, and each message would go to one of them; give one another "
                "subscription of the topic"
            )
    return problems
