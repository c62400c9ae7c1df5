"""An app on a server that counts every delivery: what nobody saw costs no attempt."""

import asyncio
from collections import Counter

import pytest

from penstock import App, PubSub, RetryPolicy, Streaming
from penstock.testing import eventually
from tests.support.servers import NatsServer

COUNT, RESTARTS = 50, 6
SOON = RetryPolicy(minimum_backoff=0, maximum_backoff=0)
# One at a time is handled, and all that there is comes at once and waits.
ONE_AT_A_TIME = {
    "concurrency": 1,
    "streaming": Streaming(max_streams=1, high_water_mark=COUNT),
}

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


async def publish(server, topic, *bodies):
    async with PubSub(server.url) as pubsub:
        for body in bodies:
            await pubsub.topic(topic).publish_message(body)


async def run_and_give_back(app: App, count: int) -> None:
    """A run in which so many messages come, and end before a handler is done with one of them."""
    await app.start()
    [subscription] = app.subscriptions
    await eventually(lambda: subscription.stream.statistics().messages >= count, within=60)
    await app.stop(timeout=0)


@pytest.mark.parametrize("letters", ["{topic}-dead", None])
async def test_what_was_given_back_unseen_costs_no_attempt(server, letters):
    name = "kept" if letters else "dropped"
    app = App(server.url, max_attempts=3, retry=SOON, dead_letters=letters)
    seen: Counter[bytes] = Counter()
    slow = True

    @app.subscriber(name, f"{name}-billing", **ONE_AT_A_TIME)
    async def bill(order: bytes) -> None:
        seen[order] += 1
        if slow:
            await asyncio.sleep(3600)
        if seen[order] < 3:
            raise ValueError

    async with app:
        pass
    await publish(server, name, *(b"%d" % number for number in range(COUNT)))
    for _ in range(RESTARTS):
        await run_and_give_back(app, COUNT)
    assert 0 < len(seen) <= RESTARTS
    slow = False
    async with app:
        [subscription] = app.subscriptions
        while (await subscription.describe()).backlog:
            await asyncio.sleep(0.1)
        if letters:
            assert await app.pubsub.dead_letters("kept-dead").count() == 0
    assert len(seen) == COUNT and min(seen.values()) == 3


async def test_an_attempt_that_failed_counts_however_often_others_were_unseen(server):
    app = App(server.url, max_attempts=2, retry=SOON)
    seen: Counter[bytes] = Counter()
    slow = True

    @app.subscriber("poison", "poison-billing", **ONE_AT_A_TIME)
    async def bill(order: bytes) -> None:
        if slow:
            await asyncio.sleep(3600)
        seen[order] += 1
        raise ValueError

    async with app:
        pass
    await publish(server, "poison", b"first", b"second", b"third")
    for _ in range(RESTARTS):
        await run_and_give_back(app, 3)
    slow = False
    async with app:
        letters = app.pubsub.dead_letters("poison-dead")
        while await letters.count() < 3:
            await asyncio.sleep(0.1)
        assert {letter.reason for letter in [one async for one in letters.read()]} == {"gave-up"}
    assert max(seen.values()) == 2


NEITHER = (
    'permissions: {publish: {deny: ["PENSTOCK-RELEASES.>", "$JS.API.STREAM.*.PENSTOCK-RELEASES"]}}'
)
NOT_MAKE = 'permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.PENSTOCK-RELEASES"]}}'
USERS = """
authorization {
  users = [
    { user: admin, password: "1" }
    { user: neither, password: "2", %s }
    { user: not-make, password: "3", %s }
  ]
}
"""


async def test_a_user_who_may_not_note_them_is_told_and_one_who_may_is_not(tmp_path, caplog):
    async def run(user, password):
        caplog.clear()
        app = App(f"nats://{user}:{password}@127.0.0.1:{server.port}?timeout=2")
        app.subscriber("orders", "billing")(lambda: None)
        async with app:
            return "counts as an attempt, since it may not be noted" in caplog.text

    with NatsServer(tmp_path, extra=USERS % (NEITHER, NOT_MAKE)) as server:
        assert await run("neither", 2)
        assert await run("not-make", 3)
        assert not await run("admin", 1)
        assert await run("neither", 2)
        assert not await run("not-make", 3)
