"""Topics and subscriptions of jobs that exist: somebody else's, or of other settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import PubSub
from penstock.errors import FailedPreconditionError, PermissionDeniedError
from penstock.googlepubsub.messages import PublishResponse
from penstock.jobs import JobSystem, job_system, load_settings
from penstock.jobs.messaging.client import PubSubClient
from penstock.testing.emulator import EmulatorInThread
from tests.support.job_scenes import Place
from tests.support.scripted_google import ScriptedGoogle

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def system_on(place: Place, pubsub: PubSub, **settings: Any) -> AsyncIterator[JobSystem]:
    loaded = load_settings(
        environ={},
        url=place.url,
        database=place.database,
        # A folder that is there, which a stage asks for before it works.
        media={"root": str(Path(place.database.removeprefix("sqlite:///")).parent)},
        **settings,
    )
    async with job_system(loaded, pubsub=pubsub) as system:
        yield system


async def denied(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "User not authorized")


async def stored(request: Any, _: Any) -> Any:
    return PublishResponse(message_ids=[str(n) for n in range(len(request.messages))])


async def test_who_may_make_nothing_takes_it_for_made():
    google = ScriptedGoogle(create_topic=denied, create_subscription=denied, publish=stored)
    async with google.serving() as url, PubSub(url) as pubsub:
        settings = load_settings(environ={}, url=url)
        async with PubSubClient(pubsub, settings) as client:
            assert len(google.named("CreateTopic")) == len(client.topics())
            assert await pubsub.topic("job-processing").publish_message(b"x") == "0"
        with pytest.raises(PermissionDeniedError, match=r"roles/pubsub\.editor"):
            await pubsub.topic("orders").create()


OTHER = {
    "topics": {"retention": 5 * 86_400.0},
    "stages": {
        "metadata": {
            "ack_deadline": 90.0,
            "filter": 'attributes.stage = "Queued" AND attributes:x',
        },
        "transcription": {"maximum_backoff": 5.0},
    },
}


@pytest.mark.parametrize("broker", ["memory", "local"])
async def test_other_settings_are_applied_by_those_whom_they_concern(tmp_path, broker, caplog):
    url = "memory://" if broker == "memory" else f"local://{tmp_path}/broker"
    place = Place(url, f"sqlite:///{tmp_path}/jobs.db")
    async with PubSub(url) as pubsub:

        async def now() -> tuple[float, float, str, float]:
            events = (await pubsub.topic("job-events").describe()).config
            first = (await pubsub.subscription("job-metadata").describe()).config
            second = (await pubsub.subscription("job-transcription").describe()).config
            assert second.retry_policy is not None
            backoff = second.retry_policy.maximum_backoff
            return events.message_retention, first.ack_deadline, first.filter or "", backoff

        async with system_on(place, pubsub):
            before = await now()
        async with system_on(place, pubsub, **OTHER) as system:
            # Who only sends, or works at something else, changes nothing for others.
            assert await now() == before
            async with system.ingesting():
                assert await now() == (5 * 86_400.0, *before[1:])
            async with system.working("metadata"):
                wanted = OTHER["stages"]["metadata"]["filter"]
                assert await now() == (5 * 86_400.0, 90.0, wanted, before[3])
    assert "'job-metadata' is changed to what the settings say: ack_deadline was 60" in caplog.text
    assert "'job-events' is changed to what the settings say: message_retention was" in caplog.text


async def test_a_filter_that_cannot_be_changed_is_refused_with_the_difference(tmp_path):
    with EmulatorInThread(project="shop") as emulator:
        url = f"pubsub://shop?emulator={emulator.address}"
        place = Place(url, f"sqlite:///{tmp_path}/jobs.db")
        async with PubSub(url) as pubsub:
            async with system_on(place, pubsub):
                pass
            async with system_on(place, pubsub, **OTHER) as system:
                with pytest.raises(FailedPreconditionError) as refused:
                    async with system.working("metadata"):
                        pass
    told = str(refused.value)
    assert """filter is 'attributes.stage = "Queued"', not 'attributes""" in told
    assert "ack_deadline is 60" in told and "cannot change filter" in told
