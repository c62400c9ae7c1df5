"""`penstock topics` and `penstock subscriptions`: what there is, what is in it, what comes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.broker import SubscriptionStatus
from penstock.cli.brokers.broker import AsJson, BrokerUrl, moment, print_json, there, with_pubsub
from penstock.cli.brokers.tailing import tail, until_interrupted
from penstock.client import PubSub
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.subscribing import Subscription

topics = typer.Typer(help="Topics of a broker.", no_args_is_help=True)
subscriptions = typer.Typer(help="Subscriptions of a broker.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
OfTopic = Annotated[
    str | None, typer.Option("--topic", help="Its topic, where several have one of its name.")
]
SubscriptionName = Annotated[str, typer.Argument(metavar="SUBSCRIPTION")]
Last = Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with the last so many.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")]
Since = Annotated[str | None, typer.Option(help="Only since: 2026-01-31T12:00, or 2h.")]
Where = Annotated[str, typer.Option("--filter", help="Only what this filter lets through.")]
Bodies = Annotated[bool, typer.Option("--bodies/--no-bodies", help="Show what is in them.")]


@topics.command("list")
def list_topics(url: BrokerUrl = None, json: AsJson = False) -> None:
    """List topics."""

    async def work(pubsub: PubSub) -> list[dict[str, Any]]:
        rows = []
        for name in await pubsub.topics():
            status = await pubsub.topic(name).describe()
            rows.append(
                {
                    "topic": name,
                    "published": status.published,
                    "subscriptions": len(status.subscriptions),
                }
            )
        return rows

    _show(with_pubsub(url, work), json, "No topics.")


@topics.command("show")
def show_topic(topic: TopicName, url: BrokerUrl = None, json: AsJson = False) -> None:
    """Show a topic and its subscriptions."""

    async def work(pubsub: PubSub) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        status = await pubsub.topic(there(topic)).describe()
        config = status.config
        about = {
            "topic": topic,
            "published": status.published,
            "message_retention": config.message_retention,
            "duplicate_window": config.duplicate_window,
            "routed_attributes": list(config.routed_attributes),
        }
        names = status.subscriptions
        return about, [await _status(pubsub, name, config.name) for name in names]

    about, found = with_pubsub(url, work)
    if json:
        print_json({**about, "subscriptions": found})
        return
    _show_fields(about)
    typer.echo("")
    _show(found, json, "No subscriptions.")


@topics.command("create")
def create_topic(topic: TopicName, url: BrokerUrl = None) -> None:
    """Make a topic as brokers make them by themselves; apps and jobs make those they need."""

    async def work(pubsub: PubSub) -> None:
        await pubsub.topic(topic).create()

    with_pubsub(url, work)
    typer.echo(f"Made topic {topic}.")


@topics.command("tail")
def tail_topic(
    topic: TopicName,
    url: BrokerUrl = None,
    last: Last = 10,
    follow: Follow = False,
    since: Since = None,
    where: Where = "",
    bodies: Bodies = True,
    json: AsJson = False,
) -> None:
    """Show the last messages of a topic, and what comes. Nothing is taken from anybody."""

    async def work(pubsub: PubSub) -> None:
        await tail(pubsub, there(topic), last, follow, moment(since), where, bodies, json)

    until_interrupted(url, work)


@topics.command()
def publish(
    topic: TopicName,
    data: Annotated[
        str | None, typer.Argument(help="The body; left out or -, it is read from the input.")
    ] = None,
    url: BrokerUrl = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", help="KEY=VALUE; may be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The ordering key.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Where in the topic; by default its own name.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Its id: twice with the same stores it once.")
    ] = None,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines", help="Each line of the input is a message, without its end; empty ones not."
        ),
    ] = False,
) -> None:
    """Publish a message, or one a line; prints ids. What is read from the input is published byte
    by byte as it is, a line end at its end included."""
    attributes = _attributes(attribute or ())
    from_input = data is None or data == "-"
    if message_id == "":
        raise InvalidArgumentError("--id is empty; leave it out, and the message gets an id")
    if lines and message_id is not None:
        raise InvalidArgumentError("--id is for one message, --lines for many")
    if lines and not from_input:
        raise InvalidArgumentError("--lines is for the input; leave the body out, or --lines")
    source = sys.stdin.buffer
    bodies: Iterator[bytes]
    if lines:
        bodies = filter(None, (line.rstrip(b"\r\n") for line in source))
    else:
        bodies = iter([source.read() if from_input else _bytes(data or "")])

    async def work(pubsub: PubSub) -> None:
        handle = pubsub.topic(there(topic))
        for body in bodies:
            published = await handle.publish_message(
                body, attributes, key, message_id=message_id, subject=subject
            )
            typer.echo(published)

    with_pubsub(url, work)


@subscriptions.command("list")
def list_subscriptions(
    url: BrokerUrl = None,
    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None,
    json: AsJson = False,
) -> None:
    """List subscriptions, and what waits in them."""

    async def work(pubsub: PubSub) -> list[dict[str, Any]]:
        broker, of = await pubsub.broker(), topic and there(topic)
        names = await broker.admin.list_subscriptions(of)
        return [await _status(pubsub, name, of) for name in names]

    _show(with_pubsub(url, work), json, "No subscriptions.")


@subscriptions.command("show")
def show_subscription(
    subscription: SubscriptionName,
    url: BrokerUrl = None,
    topic: OfTopic = None,
    json: AsJson = False,
) -> None:
    """Show a subscription: how it was made, and what waits in it."""

    async def work(pubsub: PubSub) -> dict[str, Any]:
        status = await _handle(pubsub, subscription, topic).describe()
        config = status.config
        dead, retry = config.dead_letter_policy, config.retry_policy
        return {
            **_row(status),
            "ack_deadline": config.ack_deadline,
            "message_ordering": config.message_ordering,
            "exactly_once": config.enable_exactly_once_delivery,
            "filter": config.filter or None,
            "dead_letters": dead and f"{dead.topic} after {dead.max_delivery_attempts}",
            "retry": retry and f"{retry.minimum_backoff:g} to {retry.maximum_backoff:g} s",
        }

    found = with_pubsub(url, work)
    if json:
        print_json(found)
    else:
        _show_fields(found)


@subscriptions.command("create")
def create_subscription(
    subscription: SubscriptionName,
    topic: Annotated[str, typer.Option(help="The topic whose messages it gets from now on.")],
    url: BrokerUrl = None,
) -> None:
    """Make a subscription of a topic; apps and jobs make those they need."""

    async def work(pubsub: PubSub) -> None:
        await pubsub.subscription(subscription, topic=topic).create()

    with_pubsub(url, work)
    typer.echo(f"Made subscription {subscription} of topic {topic}.")


@subscriptions.command("tail")
def tail_subscription(
    subscription: SubscriptionName,
    url: BrokerUrl = None,
    topic: OfTopic = None,
    last: Last = 10,
    follow: Follow = False,
    since: Since = None,
    bodies: Bodies = True,
    json: AsJson = False,
) -> None:
    """Show what a subscription is or was sent, without taking it: its topic through its filter."""

    async def work(pubsub: PubSub) -> None:
        config = (await _handle(pubsub, subscription, topic).describe()).config
        await tail(pubsub, config.topic, last, follow, moment(since), config.filter, bodies, json)

    until_interrupted(url, work)


# Tables.


def _handle(pubsub: PubSub, name: str, topic: str | None) -> Subscription:
    return pubsub.subscription(there(name), topic=topic and there(topic))


async def _status(pubsub: PubSub, name: str, topic: str | None) -> dict[str, Any]:
    return _row(await pubsub.subscription(name, topic=topic).describe())


def _row(status: SubscriptionStatus) -> dict[str, Any]:
    row: dict[str, Any] = {"subscription": status.config.name, "topic": status.config.topic}
    with suppress(UnimplementedError):  # Not every broker counts.
        counted = (status.backlog, status.leased, round(status.oldest_age, 1))
        row |= dict(zip(("waiting", "in hand", "oldest"), counted, strict=True))
    return row


def _show(rows: list[dict[str, Any]], json: bool, nothing: str) -> None:
    if json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        typer.echo(nothing)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        cells = (f"{value:,}" if isinstance(value, int) else str(value) for value in row.values())
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def _show_fields(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if value not in (None, []):
            typer.echo(f"{name.replace('_', ' '):<20}{value}")


def _bytes(argument: str) -> bytes:
    """An argument as it was typed, also where it is no text."""
    return os.fsencode(argument)


def _attributes(given: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in map(_pair, given):
        if key in found:
            raise InvalidArgumentError(f"Attribute {key!r} is given twice; a message has one")
        found[key] = value
    return found


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise InvalidArgumentError(f"An attribute is KEY=VALUE, not {text!r}")
    return key, value
