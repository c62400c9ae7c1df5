"""What jobs need of a broker stays there: somebody may delete a topic, or a server may come back
without its data, while the API runs."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from penstock.broker import Admin
from penstock.errors import NotFoundError, PermissionDeniedError
from penstock.jobs.messaging.client import PubSubClient
from penstock.lifetime import running_beside
from penstock.retrying import Failures, Outage, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff
from penstock.subscribing import Subscription

_log = logging.getLogger("penstock.jobs")
# Seconds. Jobs that are asked for meanwhile wait in the outbox.
_LOOK_EVERY = 10.0
_TROUBLE = Persistence(backoff=Backoff(initial=0.5, maximum=10.0), worth_it=always)
_BEGINNING = datetime.fromtimestamp(0, UTC)


async def missing(client: PubSubClient) -> list[str]:
    """Topics and subscriptions that jobs need and that are not there, in words. What one may not
    look at is taken for there."""
    broker = await client.pubsub.broker()
    needed = defaultdict(set)
    for subscription in client.every_subscription(has_log=broker.log is not None):
        needed[subscription.topic].add(subscription.name)
    found = []
    for topic in client.topics():
        try:
            status = await broker.admin.describe_topic(topic.name)
        except PermissionDeniedError:
            continue
        except NotFoundError:
            found.append(f"topic {topic.name!r}")
            continue
        there = {str(name) for name in status.subscriptions}
        found += [f"subscription {name!r}" for name in sorted(needed[topic.name] - there)]
    return found


async def make_again(client: PubSubClient) -> None:
    """What is missing. Subscriptions of a topic that is new begin at its beginning: the relay may
    have been faster than they, and jobs must not be lost between the two."""
    broker = await client.pubsub.broker()
    subscriptions = list(client.every_subscription(has_log=broker.log is not None))
    new = {topic.name for topic in client.topics() if not await _is_there(broker.admin, topic.name)}
    orphans = await _drop_orphans(subscriptions) if broker.capabilities.outlives_topic else set()
    await client.provision()
    if not broker.capabilities.seek:
        return
    for subscription in subscriptions:
        if subscription.topic in new or subscription.name in orphans:
            with suppress(PermissionDeniedError):
                await subscription.seek(_BEGINNING)


async def _is_there(admin: Admin, topic: str) -> bool:
    try:
        await admin.describe_topic(topic)
    except NotFoundError:
        return False
    except PermissionDeniedError:
        pass
    return True


async def _drop_orphans(subscriptions: Sequence[Subscription]) -> set[str]:
    """Subscriptions that outlived their topic keep its name from being followed again; those that
    hold nothing any more make room. Returns their names."""
    dropped = set()
    for subscription in subscriptions:
        with suppress(NotFoundError, PermissionDeniedError):
            status = await subscription.describe()
            empty = status.unsettled is not None and status.unsettled.messages == 0
            if status.topic_deleted and empty:
                await subscription.delete()
                dropped.add(str(subscription.name))
    return dropped


@asynccontextmanager
async def keeping(client: PubSubClient) -> AsyncIterator[None]:
    """Look now and then, and make what is missing again, while entered."""
    outage = Outage(_log, "What jobs need of the broker cannot be looked after")

    async def look() -> None:
        await asyncio.sleep(_LOOK_EVERY)
        gone = await missing(client)
        if gone:
            _log.warning(
                "Missing: %s. It is made again, and empty: `retry` sends the jobs anew that "
                "waited in it",
                ", ".join(gone),
            )
            await make_again(client)
        outage.over()

    async with running_beside(keep_doing(look, Failures(_TROUBLE), on_failure=outage.met)):
        yield
