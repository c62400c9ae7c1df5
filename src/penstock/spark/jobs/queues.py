"""What the pipeline reads: topics, and where the broker keeps no log a subscription a query."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from penstock.client import PubSub
from penstock.errors import AlreadyExistsError, PermissionDeniedError
from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.settings import JobSettings


async def make_queues(settings: JobSettings, *, events: bool) -> None:
    """Make what is missing. `events`: a queue for them, too; a new one begins with the oldest that
    are kept."""
    async with PubSub(settings.url) as pubsub:
        client = PubSubClient(pubsub, settings)
        await client.provision()
        if not events:
            return
        queue = client.events(settings.api.spark_subscription)
        with suppress(AlreadyExistsError, PermissionDeniedError):
            await queue.create()
            if (await pubsub.broker()).capabilities.seek:
                await queue.seek(datetime.fromtimestamp(0, UTC))
