"""`penstock topics` and `penstock subscriptions`: what there is, what is in it, what comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.broker import Extent, Log, SubscriptionStatus
from penstock.capabilities import log_of
from penstock.cli.brokers.broker import (
    AsJson,
    BrokerUrl,
    moment,
    print_json,
    printable,
    safe,
    there,
    with_pubsub,
)
from penstock.client import PubSub
from penstock.clock import PreciseTime
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.message import Record
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

# How often a log is asked whether there is more.
_LOOK_AGAIN = 0.5
_FIRST_LOOK = 1000


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
        await _tail(pubsub, there(topic), last, follow, moment(since), where, bodies, json)

    _until_interrupted(url, work)


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
        bool, typer.Option("--lines", help="Each line of the input is a message.")
    ] = False,
) -> None:
    """Publish a message, or one a line; prints ids."""
    attributes = dict(_pair(text) for text in attribute or ())
    if lines and message_id is not None:
        raise InvalidArgumentError("--id is for one message, --lines for many")
    if data is None or data == "-":
        source = sys.stdin.buffer
        bodies = (line.rstrip(b"\r\n") for line in source) if lines else iter([source.read()])
    else:
        bodies = iter([data.encode()])

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
        await _tail(pubsub, config.topic, last, follow, moment(since), config.filter, bodies, json)

    _until_interrupted(url, work)


# Tails.


async def _tail(
    pubsub: PubSub,
    topic: str,
    last: int,
    follow: bool,
    since: datetime | None,
    where: str,
    bodies: bool,
    json: bool,
) -> None:
    log = log_of(await pubsub.broker(), f"Reading topic {topic!r}")
    extent = await log.extent(topic)
    for record in await _last(log, topic, extent, last, since, where):
        _show_record(record, bodies, json)
    at = extent.last
    while follow:
        await asyncio.sleep(_LOOK_AGAIN)
        extent = await log.extent(topic)
        async for record in _records(log, topic, at + 1, extent.last, where):
            _show_record(record, bodies, json)
        at = max(at, extent.last)


async def _last(
    log: Log, topic: str, extent: Extent, count: int, since: datetime | None, where: str
) -> list[Record]:
    """The last so many that match, looked for from the end: a log may be long."""
    found: list[Record] = []
    last, step = extent.last, max(count, _FIRST_LOOK)
    while last >= extent.first and len(found) < count:
        first = max(extent.first, last - step + 1)
        looked_at = [record async for record in _records(log, topic, first, last, where)]
        found = [record for record in looked_at if _is_since(record, since)] + found
        if looked_at and not _is_since(looked_at[0], since):
            break
        last, step = first - 1, step * 4
    return found[len(found) - min(count, len(found)) :]


def _is_since(record: Record, since: datetime | None) -> bool:
    return since is None or PreciseTime.from_ns(record.publish_time_ns) >= since


async def _records(
    log: Log, topic: str, first: int, last: int, where: str
) -> AsyncIterator[Record]:
    if first > last:
        return
    async for batch in log.read(topic, first, last, where):
        for record in batch:
            yield record


def _show_record(record: Record, bodies: bool, json: bool) -> None:
    time = PreciseTime.from_ns(record.publish_time_ns)
    if json:
        about = {
            "sequence": record.sequence,
            "message_id": record.message_id,
            "time": time.isoformat(),
            "subject": record.subject,
            "ordering_key": record.ordering_key,
            "attributes": dict(record.attributes),
            "bytes": len(record.data),
        }
        print_json({**about, "data": record.data} if bodies else about)
        return
    attributes = " ".join(f"{key}={value}" for key, value in record.attributes.items())
    said = f"{record.sequence} {time:%Y-%m-%d %H:%M:%S} {record.message_id} {attributes}".rstrip()
    typer.echo(typer.style(safe(said), bold=True))
    if bodies:
        typer.echo(f"{printable(record.data)}\n")
    sys.stdout.flush()


def _until_interrupted(url: str | None, work: Any) -> None:
    try:
        with_pubsub(url, work)
    except KeyboardInterrupt:
        typer.echo("")


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


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise InvalidArgumentError(f"An attribute is KEY=VALUE, not {text!r}")
    return key, value
