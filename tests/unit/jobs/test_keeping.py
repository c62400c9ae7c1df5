"""What jobs need of a broker is made again, and nothing is lost in between."""

import asyncio

import pytest

from penstock import PubSub
from penstock.jobs import PubSubClient, load_settings
from penstock.jobs.messaging.keeping import keeping, missing
from penstock.jobs.pipeline.media import encode_job
from tests.support.job_samples import JOBS

WORK = "job-processing"


async def waiting(client):
    found = [one.describe() for one in client.every_subscription(has_log=True)]
    return sum([(await one).unsettled.messages for one in found])


@pytest.mark.parametrize("made_by_others", [True, False], ids=["orphans", "topic and all"])
async def test_a_job_that_is_published_before_its_subscriptions_are_made_again_waits_in_them(
    made_by_others, monkeypatch
):
    async with (
        PubSub() as pubsub,
        PubSubClient(pubsub, load_settings(environ={})) as client,
        keeping(client),
    ):
        topic = pubsub.topic(WORK)
        job = encode_job(JOBS["audio"])

        async def publish():
            await (await pubsub.broker()).publish(WORK, [job])

        await topic.delete()
        if made_by_others:
            await topic.create(message_retention=3600)
            await publish()
        else:
            apply = client.provision

            async def provision():
                # The relay is faster than the subscriptions.
                await topic.create(message_retention=3600)
                await publish()
                await apply()

            monkeypatch.setattr(client, "provision", provision)
        await asyncio.sleep(11)
        assert await missing(client) == []
        assert await waiting(client) == 1
