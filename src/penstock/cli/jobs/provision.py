"""`penstock provision`: topics and subscriptions that jobs need, made, changed or written down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import typer

from penstock.cli.brokers.broker import AsJson, print_json
from penstock.cli.jobs.options import SettingsOptions, with_settings
from penstock.client import PubSub
from penstock.config import SubscriptionConfig
from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.jobs.settings import JobSettings

_GOOGLE = "pubsub://"
As = Literal["gcloud", "terraform", "both"]


@with_settings
def provision(
    common: SettingsOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print how to make them on Google Pub/Sub.")
    ] = False,
    form: Annotated[
        As, typer.Option("--as", help="What --dry-run prints: gcloud, terraform or both.")
    ] = "both",
    spark: Annotated[
        bool, typer.Option("--spark", help="Also what the projection on Spark reads.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Make the topics and subscriptions that jobs need, or make them what the settings say."""
    if dry_run and json:
        raise InvalidArgumentError("--dry-run writes what --as says, and no JSON; leave one out")
    settings = common.load()
    if dry_run:
        typer.echo(_written(settings, form, spark=spark))
        return
    made = asyncio.run(_made(settings, spark=spark))
    if json:
        print_json(made)
    else:
        _say(made)


class _Made(TypedDict):
    topics: list[str]
    subscriptions: list[dict[str, str]]
    changed: list[str]


def _say(made: _Made) -> None:
    for topic in made["topics"]:
        typer.echo(f"topic {topic}")
    for one in made["subscriptions"]:
        typer.echo(f"subscription {one['subscription']} of {one['topic']}")
    for told in made["changed"]:
        typer.echo(f"changed {told}")


async def _made(settings: JobSettings, *, spark: bool) -> _Made:
    from penstock.jobs.messaging.client import PubSubClient

    async with PubSub(settings.url) as pubsub:
        client = PubSubClient(pubsub, settings)
        has_log = (await pubsub.broker()).log is not None
        await client.provision(spark=spark)
        subscriptions = client.every_subscription(has_log=has_log, spark=spark)
        changed = await client.apply_to_topics()
        changed += await client.apply_to_subscriptions(subscriptions)
        return _Made(
            topics=[topic.name for topic in client.topics()],
            subscriptions=[
                {"subscription": one.name, "topic": one.topic or ""} for one in subscriptions
            ],
            changed=changed,
        )


def _written(settings: JobSettings, form: As, *, spark: bool) -> str:
    """Nothing is opened or asked for."""
    from penstock.googlepubsub import gcloud, terraform

    topics, subscriptions = _resources(settings, spark=spark)
    parts = []
    if form != "terraform":
        parts.append("\n".join(gcloud.commands(topics, subscriptions)))
    if form != "gcloud":
        parts.append("\n\n".join(terraform.resources(topics, subscriptions)))
    return "\n\n".join(parts)


def _resources(settings: JobSettings, *, spark: bool) -> tuple[list[Any], list[Any]]:
    """As Google knows them."""
    from penstock.googlepubsub.messages import Subscription, Topic
    from penstock.googlepubsub.names import Names
    from penstock.googlepubsub.resources import write_subscription, write_topic
    from penstock.jobs.messaging.client import PubSubClient

    names = Names(_project(settings.url))
    client = PubSubClient(PubSub(settings.url), settings)
    topics, subscriptions = [], []
    for config in client.topics():
        topics.append(Topic())
        write_topic(topics[-1], config, names)
    for handle in client.every_subscription(has_log=False, spark=spark):
        wanted = SubscriptionConfig(
            name=handle.name, topic=handle.topic or "", **handle.config_given
        )
        subscriptions.append(Subscription())
        write_subscription(subscriptions[-1], wanted, names)
    return topics, subscriptions


def _project(url: str) -> str:
    if not url.startswith(_GOOGLE):
        raise InvalidArgumentError(
            "--dry-run writes for Google Pub/Sub: give --url pubsub://PROJECT; on other brokers "
            "leave --dry-run out"
        )
    return url.removeprefix(_GOOGLE).partition("?")[0].strip("/")
