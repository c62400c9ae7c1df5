"""Checking what was declared, all of it before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from penstock.config import SubscriptionConfig, check_duration, check_name, check_whole
from penstock.consuming.calling import Binding, decoder_for
from penstock.consuming.declaration import Subscriber
from penstock.consuming.dependencies import Dependencies
from penstock.consuming.middleware.chain import check_middleware
from penstock.consuming.signature import is_async, read_signature
from penstock.errors import InvalidArgumentError
from penstock.subscribing import SubscriberOptions

_OPTIONS = {field.name for field in (*fields(SubscriptionConfig), *fields(SubscriberOptions))} - {
    "name",
    "topic",
    "retry_policy",
    "push",
}


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
    for middleware in subscriber.middleware:
        check_middleware(middleware)
    if subscriber.blocking and is_async(subscriber.function):
        raise InvalidArgumentError(
            f"{subscriber.where} is async and blocking=True is for plain functions; leave it out"
        )
    signature = read_signature(subscriber.function, dependencies.__contains__)
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
        check_whole("batch_size", subscriber.batch_size, 1)
        check_duration("batch_wait", subscriber.batch_wait, 0, 600)
        unknown = sorted(subscriber.options.keys() - _OPTIONS)
        if unknown:
            raise InvalidArgumentError(
                f"there is no option {', '.join(unknown)}; besides those of `subscriber` there are "
                f"{', '.join(sorted(_OPTIONS))}"
            )
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{subscriber.where}: {error}") from None


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
