"""Three servers: changes of leader, kills, lame ducks and the loss of the majority.

Nothing acknowledged is missing, no flight says REJECTED, and subscriptions go on by themselves.
"""

import asyncio
import contextlib
import os
import signal

import pytest

from penstock import DeadLetterPolicy, FlightState, ManagedPublisher, PublishRetry, PubSub
from penstock.errors import PenstockError, SubscriptionNotFoundError, UnavailableError
from penstock.testing import eventually
from tests.support.brokers import stored
from tests.support.servers import NatsCluster, NatsServer

pytestmark = pytest.mark.real_time

RETRY = PublishRetry(attempts=1000, backoff=0.05, maximum_backoff=0.5, deadline=120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path):
    with NatsCluster(tmp_path) as running:
        yield running


class Trial:
    """A producer and a subscriber that are disturbed, and what became of their messages."""

    def __init__(self, pubsub, topic, sub):
        self.pubsub, self.topic, self.sub = pubsub, topic, sub
        self.flights, self.seen, self.errors = [], set(), []
        self._ended = False

    async def info(self, of):
        broker = await self.pubsub.broker()
        return await broker._connection.request(of)

    async def leader(self, of):
        """Of a stream or consumer, once it has one."""
        while True:
            with contextlib.suppress(PenstockError):
                found = (await self.info(of))["cluster"].get("leader")
                if found:
                    return found
            await asyncio.sleep(0.05)

    async def ask(self, subject):
        """A request that may meet nobody, until it is answered."""
        broker = await self.pubsub.broker()
        while True:
            try:
                return await broker._connection.request(subject)
            except PenstockError:
                await asyncio.sleep(0.05)

    async def publish(self):
        """Until the disturbance is over."""
        async with ManagedPublisher(
            self.pubsub, max_in_flight=50, refill_allowed_at=49, retry=RETRY, wait_timeout=3
        ) as publisher:
            while not self._ended:
                body = b"%d" % len(self.flights)
                self.flights.append(await publisher.publish_async(self.topic.name, body))
                await asyncio.sleep(0.001)
            assert await publisher.drain(timeout=120) == ()

    async def run(self, disturb):
        self.sub.on("message", lambda m: (self.seen.add(m.data), m.ack()))
        self.sub.on("error", self.errors.append)
        self.sub.open()
        publishing = asyncio.ensure_future(self.publish())
        try:
            await asyncio.sleep(0.3)
            await disturb(self)
            await asyncio.sleep(0.3)
        finally:
            self._ended = True
            await publishing
        await self.check()

    async def check(self):
        states = {flight.state for flight in self.flights}
        assert states <= {FlightState.ACKED, FlightState.DUPLICATE}
        await eventually(lambda: len(self.seen) == len(self.flights), within=120)
        records = await stored(self.pubsub, self.topic.name)
        ids = [record.message_id for record in records]
        assert len(ids) == len(set(ids)) == len(self.flights)
        assert self.sub.is_open
        assert all(error.retryable for error in self.errors)


@contextlib.asynccontextmanager
async def trial(cluster, name, **options):
    async with PubSub(f"{cluster.url}?timeout=2") as pubsub:
        topic = await pubsub.topic(name).create()
        sub = await topic.subscription(f"{name}-sub", ack_deadline=2, **options).create()
        yield Trial(pubsub, topic, sub)


async def test_three_servers_keep_three_copies_and_one_keeps_one(cluster, tmp_path):
    async with trial(cluster, "copies") as found:
        assert (await found.topic.describe()).config.replicas == 3
        info = await found.info("CONSUMER.INFO.copies.copies-sub")
        assert len(info["cluster"]["replicas"]) == 2
        single = await found.pubsub.topic("single").create(replicas=1)
        assert (await single.describe()).config.replicas == 1
        lone = await found.topic.subscription("lone", replicas=1).create()
        assert (await lone.describe()).config.replicas == 1
        with pytest.raises(UnavailableError, match="ask for fewer"):
            await found.pubsub.topic("five").create(replicas=5)
    with NatsServer(tmp_path) as server:
        async with PubSub(server.url) as pubsub:
            alone = await pubsub.topic("alone").create()
            assert (await alone.describe()).config.replicas == 1
            with pytest.raises(PenstockError, match="replicas"):
                await pubsub.topic("alone-three").create(replicas=3)


async def test_a_server_in_no_cluster_is_known_to_be_alone(cluster, tmp_path):
    async with trial(cluster, "together") as found:
        single = await found.pubsub.topic("together-single").create(replicas=1)
        for topic in (found.topic, single):
            assert not (await routes_of(found.pubsub, topic)).alone
    with NatsServer(tmp_path) as server:
        async with PubSub(server.url) as pubsub:
            assert (await routes_of(pubsub, await pubsub.topic("alone").create())).alone


async def routes_of(pubsub, topic):
    return await (await pubsub.broker())._catalogue.routes(topic.name)


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_leaders_that_step_down_again_and_again_lose_nothing(cluster, exactly_once):
    async def disturb(now):
        for _ in range(4):
            await now.ask(f"STREAM.LEADER.STEPDOWN.{now.topic.name}")
            await now.leader(f"STREAM.INFO.{now.topic.name}")
            await now.ask(f"CONSUMER.LEADER.STEPDOWN.{now.topic.name}.{now.sub.name}")
            await now.leader(f"CONSUMER.INFO.{now.topic.name}.{now.sub.name}")

    name = f"stepping-{exactly_once}"
    async with trial(cluster, name, enable_exactly_once_delivery=exactly_once) as found:
        await found.run(disturb)


async def test_a_leader_of_the_leaders_that_steps_down_is_not_noticed(cluster):
    async def disturb(now):
        async with PubSub(cluster.system_url) as system:
            broker = await system.broker()
            for _ in range(3):
                with contextlib.suppress(PenstockError):
                    await broker._connection.request("META.LEADER.STEPDOWN")
                await asyncio.sleep(0.5)
        await now.ask("STREAM.NAMES")

    async with trial(cluster, "meta") as found:
        await found.run(disturb)


async def test_a_killed_leader_loses_nothing(own_cluster):
    async def disturb(now):
        for of in ("STREAM.INFO.killed", "CONSUMER.INFO.killed.killed-sub"):
            leader = own_cluster.named(await now.leader(of))
            leader.kill()
            await now.leader(of)
            leader.start()
            await asyncio.to_thread(own_cluster.wait_until_healthy)

    async with trial(own_cluster, "killed") as found:
        await found.run(disturb)


async def test_a_lame_duck_is_left_in_time(own_cluster):
    async def disturb(now):
        leader = own_cluster.named(await now.leader("STREAM.INFO.lame"))
        os.kill(leader.pid, signal.SIGUSR2)
        client = (await now.pubsub.broker())._connection._client
        others = {server.port for server in own_cluster.servers} - {leader.port}
        await eventually(lambda: getattr(client.connected_url, "port", None) in others)
        await now.leader("STREAM.INFO.lame")
        await now.leader("CONSUMER.INFO.lame.lame-sub")

    async with trial(own_cluster, "lame") as found:
        await found.run(disturb)


async def test_a_majority_that_goes_and_comes_back_loses_nothing(own_cluster):
    async def disturb(now):
        gone = own_cluster.servers[:2]
        for server in gone:
            server.kill()
        await asyncio.sleep(3)
        for server in gone:
            server.start()
        await asyncio.to_thread(own_cluster.wait_until_healthy)
        await now.leader("STREAM.INFO.quorum")
        await now.leader("CONSUMER.INFO.quorum.quorum-sub")

    async with trial(own_cluster, "quorum") as found:
        await found.run(disturb)


async def test_a_subscription_opened_again_after_an_outage_gets_everything(own_cluster):
    async with trial(own_cluster, "again") as found:
        for n in range(2000):
            await found.topic.publish_message(b"%d" % n)
        seen = set()
        first = found.pubsub.subscription("again-sub")
        first.on("message", lambda m: seen.add(m.data))  # and does not ack
        first.on("error", lambda error: None)
        first.open()
        await eventually(lambda: len(seen) >= 500, within=60)
        gone = own_cluster.servers[:2]
        for server in gone:
            server.kill()
        await first.close(timeout=0)
        for server in gone:
            server.start()
        await asyncio.to_thread(own_cluster.wait_until_healthy)
        found.sub.on("message", lambda m: (found.seen.add(m.data), m.ack()))
        found.sub.on("error", found.errors.append)
        found.sub.open()
        await eventually(lambda: len(found.seen) == 2000, within=120)
        assert all(error.retryable for error in found.errors)


async def test_full_batches_of_a_replicated_subscription_arrive(cluster):
    async with trial(cluster, "batches") as found:
        broker = await found.pubsub.broker()
        for n in range(100):
            await found.topic.publish_message(b"%d" % n)
        got = []
        while len(got) < 100:
            got += await broker.pull(found.sub.name, max_messages=10, max_bytes=10**6, wait=5)
        assert [d.delivery_attempt for d in got] == [1] * 100


async def test_a_subscription_that_is_really_deleted_still_says_so(cluster):
    async with trial(cluster, "deleted") as found:
        broker = await found.pubsub.broker()
        pulling = asyncio.ensure_future(
            broker.pull(found.sub.name, max_messages=1, max_bytes=100, wait=60)
        )
        await asyncio.sleep(0.2)
        async with PubSub(cluster.url) as other:
            await other.subscription(found.sub.name).delete()
        with pytest.raises(SubscriptionNotFoundError, match="was deleted"):
            await pulling


async def test_dead_letters_are_found_while_leaders_change(cluster):
    async with PubSub(f"{cluster.url}?timeout=2") as pubsub:
        topic = await pubsub.topic("dying").create()
        dead = await pubsub.topic("dying-dead").create()
        policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=1)
        sub = topic.subscription("dying-sub", ack_deadline=0.5, dead_letter_policy=policy)
        await sub.create()
        sub.on("message", lambda m: None)  # their only attempt passes unsettled
        sub.on("error", lambda error: None)
        sub.open()
        now = Trial(pubsub, topic, sub)
        for n in range(60):
            await topic.publish_message(b"%d" % n)
            if n % 20 == 10:
                await now.ask("STREAM.LEADER.STEPDOWN.dying")
                await now.leader("STREAM.INFO.dying")
        for _ in range(200):
            letters = {record.data for record in await stored(pubsub, dead.name)}
            if len(letters) == 60:
                break
            await asyncio.sleep(0.3)
        assert letters == {b"%d" % n for n in range(60)}
