"""Jobs where a process may make nothing: Google lets a subscriber subscribe, and no more."""

from typing import Any

import grpc
import pytest

from penstock import PubSub
from penstock.errors import PermissionDeniedError
from penstock.googlepubsub.messages import PublishResponse
from penstock.jobs import load_settings
from penstock.jobs.messaging.client import PubSubClient
from tests.support.scripted_google import ScriptedGoogle

pytestmark = pytest.mark.real_time


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
