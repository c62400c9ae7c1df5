"""Streams and consumers that others made, with nats-py, used with Penstock."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy

from penstock import (
    DeadLetterPolicy,
    FlowControl,
    ManagedPublisher,
    PubSub,
    PushDelivery,
    ServerName,
)
from penstock.errors import FailedPreconditionError, InvalidArgumentError, SubscriptionNotFoundError
from penstock.message import Draft, PublishFault, Receipt, Settlement, Verb
from penstock.testing.waiting import eventually
from tests.support.brokers import stored
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@asynccontextmanager
async def both(server):
    """Their client and ours."""
    theirs = await nats.connect(server.url)
    try:
        async with PubSub(server.url) as pubsub:
            yield theirs, pubsub
    finally:
        await theirs.close()


async def api(theirs, subject, body):
    answer = await theirs.request(f"$JS.API.{subject}", json.dumps(body).encode())
    decoded = json.loads(answer.data)
    assert "error" not in decoded, decoded
    return decoded


async def receive(subscription, count, **how):
    """So many messages, acked."""
    received = []
    async with asyncio.timeout(60):
        async for message in subscription:
            received.append(message)
            message.ack()
            if len(received) == count:
                break
    await subscription.close()
    return received


async def test_a_stream_takes_messages_on_any_of_its_subjects(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="SHOP", subjects=["orders.*", "shipping.>"])
        topic = pubsub.topic("SHOP")
        assert (await topic.describe()).config.subjects == ("orders.*", "shipping.>")
        await topic.publish_message(b"1", subject="orders.new")
        async with ManagedPublisher(pubsub) as publisher:
            await (await publisher.publish_async("SHOP", b"2", subject="shipping.eu.berlin")).ack
        for wrong in ({}, {"subject": "orders.new.eu"}, {"subject": "returns"}):
            with pytest.raises(InvalidArgumentError, match=r"orders\.\*, shipping\.>"):
                await topic.publish_message(b"x", **wrong)
        sub = await js.pull_subscribe("", "reader", stream="SHOP")
        found = [(m.subject, m.data) for m in await sub.fetch(2, timeout=5)]
        assert found == [("orders.new", b"1"), ("shipping.eu.berlin", b"2")]


async def test_subjects_that_a_stream_gets_later_are_taken_at_once(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="GROWING", subjects=["growing.a"])
        topic = pubsub.topic("GROWING")
        await topic.publish_message(b"1", subject="growing.a")
        with pytest.raises(InvalidArgumentError):
            await topic.publish_message(b"2", subject="growing.b")
        await js.update_stream(name="GROWING", subjects=["growing.a", "growing.b"])
        await topic.publish_message(b"2", subject="growing.b")
        assert (await topic.describe()).published == 2


async def test_what_the_server_refuses_is_told_of_whom(server):
    async with both(server) as (theirs, pubsub):
        await theirs.jetstream().add_stream(name="ALONE", subjects=["alone"])
        with pytest.raises(FailedPreconditionError, match=r"Topic 'thrice' .* leave replicas out"):
            await pubsub.topic("thrice").create(replicas=3)
        push = PushDelivery(subject="alone")
        with pytest.raises(FailedPreconditionError, match=r"Subscription 'circle' .* cycle"):
            await pubsub.topic("ALONE").subscription("circle", push=push).create()


async def test_the_deadline_of_a_consumer_with_a_backoff_is_not_said_to_be_changed(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="STEPS", subjects=["steps"])
        steps = ConsumerConfig(durable_name="steps", backoff=[5, 10], max_deliver=3)
        await js.add_consumer("STEPS", steps)
        sub = pubsub.topic("STEPS").subscription("steps")
        with pytest.raises(FailedPreconditionError, match=r"'steps' .* backoff"):
            await sub.update(ack_deadline=60)
        await sub.update(filter="attributes:paid")
        found = (await js.consumer_info("STEPS", "steps")).config
        assert (found.ack_wait, found.backoff) == (5, [5, 10])


async def test_a_topic_whose_subjects_another_has_is_told_whose_they_are(server):
    async with both(server) as (theirs, pubsub):
        await theirs.jetstream().add_stream(name="EVENTS", subjects=["events.>"])
        says = r"'events.shop' cannot be so: of .* some are stored by topic 'EVENTS'"
        with pytest.raises(FailedPreconditionError, match=says):
            await pubsub.topic("events.shop").create()
        topic = await pubsub.topic("shop-events").create()
        with pytest.raises(FailedPreconditionError, match=r"'shop-events' .* 'EVENTS'"):
            await topic.update(subjects=["shop-events", "events.*"])
        assert (await topic.describe()).config.subjects == ()


async def test_subjects_that_a_stream_has_no_longer_are_refused_for_good(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="SHRINKING", subjects=["shrinking.a", "shrinking.b"])
        broker = await pubsub.broker()
        both_of_them = [Draft.of(b"x", subject=f"shrinking.{name}") for name in "ab"]
        await broker.publish("SHRINKING", both_of_them)
        await js.update_stream(name="SHRINKING", subjects=["shrinking.a"])
        stored_one, refused = await broker.publish("SHRINKING", both_of_them)
        assert isinstance(stored_one, Receipt)
        assert isinstance(refused, PublishFault) and refused.definite
        assert "'shrinking.b'" in str(refused.error)


async def test_a_stream_without_subjects_of_its_own_takes_nothing(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="ORIGIN", subjects=["origin"])
        await api(theirs, "STREAM.CREATE.COPY", {"name": "COPY", "mirror": {"name": "ORIGIN"}})
        broker = await pubsub.broker()
        [answer] = await broker.publish("COPY", [Draft.of(b"x")])
        assert isinstance(answer, PublishFault)
        assert isinstance(answer.error, InvalidArgumentError) and answer.definite


async def test_a_durable_is_looked_for_in_its_topic_and_nowhere_else(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        for name in ("EAST", "WEST", "NORTH"):
            await js.add_stream(name=name, subjects=[name.lower()])
        for name in ("EAST", "WEST"):
            await js.add_consumer(name, ConsumerConfig(durable_name="worker"))
            await js.publish(name.lower(), name.encode())
        [message] = await receive(pubsub.topic("WEST").subscription("worker"), 1)
        assert message.data == b"WEST"
        with pytest.raises(FailedPreconditionError, match=r"EAST, WEST.*topic="):
            await pubsub.subscription("worker").describe()
        with pytest.raises(SubscriptionNotFoundError, match="'NORTH'"):
            await receive(pubsub.topic("NORTH").subscription("worker"), 1)
        assert not await pubsub.subscription("worker", topic="NORTH").exists()
        east = await pubsub.subscription("worker", topic="EAST").describe()
        assert (east.backlog, east.leased) == (1, 0)
        listed = [one for one in await pubsub.subscriptions() if one == "worker"]
        assert [(await pubsub.subscription(one).describe()).config.topic for one in listed] == [
            "EAST",
            "WEST",
        ]
        # And one can be made there, whatever others are called.
        made = await pubsub.topic("NORTH").subscription("worker").create()
        await js.publish("north", b"NORTH")
        both_at_once = await asyncio.gather(
            receive(made, 1), receive(pubsub.topic("EAST").subscription("worker"), 1)
        )
        assert [m.data for [m] in both_at_once] == [b"NORTH", b"EAST"]
        await made.delete()
        assert await pubsub.subscription("worker", topic="WEST").exists()


async def test_a_durable_that_is_the_only_one_of_its_name_needs_no_topic(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="LONELY", subjects=["lonely.*"])
        config = ConsumerConfig(durable_name="loner", filter_subject="lonely.b", ack_wait=5)
        await js.add_consumer("LONELY", config)
        for subject in ("lonely.a", "lonely.b"):
            await js.publish(subject, subject.encode())
        sub = pubsub.subscription("loner")
        config = (await sub.describe()).config
        assert (config.topic, config.ack_deadline) == ("LONELY", 5)
        assert config.subjects == ("lonely.b",)
        [message] = await receive(sub, 1)
        assert (message.subject, message.data) == ("lonely.b", b"lonely.b")


@pytest.mark.parametrize("direct", [True, False])
async def test_the_age_of_a_backlog_is_that_of_what_a_consumer_sees(server, direct):
    name = f"AGED-{direct}"
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.*"], allow_direct=direct)
        for filters in (["b"], ["b", "c"], ["a", "b", "c"]):
            subjects = [f"{name}.{one}" for one in filters]
            config = ConsumerConfig(durable_name="-".join(filters), filter_subjects=subjects)
            await js.add_consumer(name, config)
        await js.publish(f"{name}.a", b"old")
        await asyncio.sleep(0.2)
        await js.publish(f"{name}.c", b"younger")
        await js.publish(f"{name}.b", b"youngest")
        ages = []
        for durable, backlog in (("b", 1), ("b-c", 2), ("a-b-c", 3)):
            status = await pubsub.topic(name).subscription(ServerName(durable)).describe()
            assert status.backlog == backlog
            ages.append(status.oldest_age)
        # Looked at one after the other: what was published before is older by that much at least.
        assert 0 < ages[0] < ages[1] < ages[2] - 0.2


async def test_a_work_queue_with_a_backlog_is_worked_off(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        retention = RetentionPolicy.WORK_QUEUE
        await js.add_stream(name="WORK", subjects=["work.*"], retention=retention)
        for n in range(300):
            await js.publish(f"work.{'ab'[n % 2]}", b"%d" % n)
        config = ConsumerConfig(durable_name="theirs", filter_subject="work.a")
        await js.add_consumer("WORK", config)
        topic = pubsub.topic("WORK")
        assert (await topic.describe()).config.work_queue
        ours = await topic.subscription("ours", subjects=("work.b",)).create()
        assert (await ours.describe()).backlog == 150
        received = await receive(ours, 150)
        assert sorted(int(m.data) for m in received) == list(range(1, 300, 2))
        received = await receive(topic.subscription("theirs"), 150)
        assert sorted(int(m.data) for m in received) == list(range(0, 300, 2))

        async def is_empty():
            return (await js.stream_info("WORK")).state.messages == 0

        for _ in range(100):
            if await is_empty():
                break
            await asyncio.sleep(0.05)
        assert await is_empty()


async def test_a_stream_that_keeps_by_interest_is_received_from(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        retention = RetentionPolicy.INTEREST
        await js.add_stream(name="INTEREST", subjects=["interest"], retention=retention)
        await js.add_consumer("INTEREST", ConsumerConfig(durable_name="first"))
        await js.publish("interest", b"before")
        second = await pubsub.topic("INTEREST").subscription("second").create()
        await js.publish("interest", b"after")
        assert [m.data for m in await receive(second, 1)] == [b"after"]
        first = pubsub.topic("INTEREST").subscription("first")
        assert [m.data for m in await receive(first, 2)] == [b"before", b"after"]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_ack_pending": 1},
        {"max_ack_pending": 3, "max_waiting": 1},
        {"max_waiting": 2},
        {"max_batch": 5},
        {"max_expires": 2_000_000_000},
        {"max_bytes": 1024},
        {"priority_groups": ["g"], "priority_policy": "overflow"},
        {"priority_groups": ["g"], "priority_policy": "pinned_client"},
        {"priority_groups": ["g"], "priority_policy": "prioritized"},
    ],
    ids=lambda limits: "-".join([*limits, limits.get("priority_policy", "")]).strip("-"),
)
async def test_a_consumer_with_narrow_limits_is_received_from_in_peace(server, limits):
    name = "-".join(["NARROW", *limits, limits.get("priority_policy", "")]).strip("-")
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name=name, subjects=[name])
        config = {"name": "narrow", "durable_name": "narrow", "ack_policy": "explicit", **limits}
        await api(theirs, f"CONSUMER.CREATE.{name}.narrow", {"stream_name": name, "config": config})
        window = FlowControl(max_messages=100)
        sub = pubsub.topic(name).subscription("narrow", flow_control=window)
        errors, received = [], []
        sub.on("error", errors.append)

        async def handle(message):
            received.append(int(message.data))
            await asyncio.sleep(0)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await asyncio.sleep(0.5)  # Its pulls wait side by side before anything is there.
        for n in range(200):
            await js.publish(name, b"%d" % n)
        await eventually(lambda: len(received) >= 200, within=60)
        await sub.close()
        assert errors == []
        assert sorted(received) == list(range(200))


async def test_no_pull_keeps_to_itself_what_everybody_waits_for(server):
    """A server ends no request while as many messages are out as may be, not even if one of them
    came for it."""
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="STALLED", subjects=["stalled"])
        await js.add_consumer("STALLED", ConsumerConfig(durable_name="stalled", max_ack_pending=10))
        broker = await pubsub.broker()

        async def pull(wait):
            return await broker.pull("stalled", max_messages=100, max_bytes=10**6, wait=wait)

        for n in range(9):
            await js.publish("stalled", b"%d" % n)
        held = []
        while len(held) < 9:
            held += await pull(5)
        waiting = asyncio.ensure_future(pull(300))
        await asyncio.sleep(0.3)
        for n in range(9, 30):
            await js.publish("stalled", b"%d" % n)
        async with asyncio.timeout(60):
            held += await waiting
        assert sorted(int(d.record.data) for d in held) == list(range(10))
        seen = set()
        async with asyncio.timeout(60):
            while len(seen) < 30:
                await broker.settle("stalled", [Settlement(d.ack_id, Verb.ACK) for d in held])
                seen |= {int(d.record.data) for d in held}
                held = await pull(5)
        assert seen == set(range(30))


async def test_a_consumer_that_pushes_with_flow_control_is_received_from(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="PUSHED", subjects=["pushed"])
        config = ConsumerConfig(
            durable_name="pusher",
            deliver_subject="deliver.pushed",
            flow_control=True,
            idle_heartbeat=1,
            max_ack_pending=20_000,
        )
        await js.add_consumer("PUSHED", config)
        data = bytes(4000)
        for _ in range(20):
            await asyncio.gather(*(js.publish("pushed", data) for _ in range(250)))
        sub = pubsub.topic("PUSHED").subscription("pusher")
        received = await receive(sub, 5000)
        assert len({m.id for m in received}) == 5000


async def test_a_consumer_that_takes_an_ack_for_all_before_is_refused(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="POLICY", subjects=["policy"])
        for name, policy in (("acks-all", AckPolicy.ALL), ("acks-none", AckPolicy.NONE)):
            await js.add_consumer("POLICY", ConsumerConfig(durable_name=name, ack_policy=policy))
        await js.publish("policy", b"x")
        broker = await pubsub.broker()
        with pytest.raises(FailedPreconditionError, match="ack_policy 'all'"):
            await broker.pull("acks-all", max_messages=1, max_bytes=100, wait=1)
        assert (await pubsub.subscription("acks-all").describe()).backlog == 1
        [message] = await receive(pubsub.topic("POLICY").subscription("acks-none"), 1)
        assert message.data == b"x"


async def test_a_stream_without_direct_reads_is_described_read_and_moved_in(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="INDIRECT", subjects=["indirect"])
        info = await js.stream_info("INDIRECT")
        assert not info.config.allow_direct
        for n in range(5):
            await js.publish("indirect", b"%d" % n)
        await asyncio.sleep(0.05)
        moment = datetime.now(UTC)
        for n in range(5, 500):
            await js.publish("indirect", b"%d" % n)
        for sequence in (1, *range(101, 351), 400):
            await js.delete_msg("INDIRECT", sequence)
        left = [n for n in range(1, 501) if n not in {1, *range(101, 351), 400}]
        await js.add_consumer("INDIRECT", ConsumerConfig(durable_name="looker"))
        sub = pubsub.topic("INDIRECT").subscription("looker")
        status = await sub.describe()
        assert status.backlog == len(left) and status.oldest_age > 0
        broker = await pubsub.broker()
        extent = await broker.log.extent("INDIRECT")
        assert (extent.first, extent.last) == (2, 500)
        read = [r async for batch in broker.log.read("INDIRECT", 1, 10_000) for r in batch]
        assert [r.sequence for r in read] == left
        assert [r.data for r in read] == [b"%d" % (n - 1) for n in left]
        some = [r async for batch in broker.log.read("INDIRECT", 90, 360) for r in batch]
        assert [r.sequence for r in some] == [n for n in left if 90 <= n <= 360]
        await sub.seek(moment)
        [first] = await broker.pull("looker", max_messages=1, max_bytes=100, wait=5)
        assert first.record.data == b"5"
        await broker.settle("looker", [Settlement(first.ack_id, Verb.ACK)])


@pytest.mark.parametrize("name", ["Q", "1-orders", "goog-orders", "größe", "a%b", "x" * 200])
async def test_names_of_theirs_are_used_as_they_are(server, name):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        subject = f"named.{len(name)}.{sum(name.encode())}"
        await js.add_stream(name=name, subjects=[subject])
        await js.add_consumer(name, ConsumerConfig(durable_name=name))
        assert name in await pubsub.topics()
        [known] = [one for one in await pubsub.topics() if one == name]
        topic = pubsub.topic(known)
        assert (await topic.describe()).subscriptions == (name,)
        await topic.publish_message(b"x", subject=subject)
        [durable] = (await topic.describe()).subscriptions
        sub = topic.subscription(durable)
        assert (await sub.describe()).config.name == name
        [message] = await receive(sub, 1)
        assert message.data == b"x"
        again = pubsub.topic(ServerName(name))
        assert (await again.describe()).published == 1
        await again.subscription(ServerName(name)).update(ack_deadline=20)
        assert (await sub.describe()).config.ack_deadline == 20


async def test_what_is_no_name_at_all_is_refused_however_it_is_given(server):
    async with PubSub(server.url) as pubsub:
        for name in ("", "a b", "a\r\nPUB x 0", "x" * 256):
            with pytest.raises(InvalidArgumentError):
                pubsub.topic(ServerName(name))
        for name in ("a.b", "a.*", ">"):
            with pytest.raises((InvalidArgumentError, SubscriptionNotFoundError)):
                await pubsub.subscription(ServerName(name), topic="abc").describe()


async def test_headers_that_are_repeated_are_kept(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="HEADERS", subjects=["headers"])
        block = b"NATS/1.0\r\nVia: a\r\nOnly: one\r\nVia: b\r\nvia: c\r\nVia: d\r\n\r\n"
        size = len(block)
        await theirs._send_command(b"HPUB headers %d %d\r\n%b\r\n" % (size, size, block))
        await theirs.flush()
        await js.add_consumer("HEADERS", ConsumerConfig(durable_name="reader-of-headers"))
        [message] = await receive(pubsub.topic("HEADERS").subscription("reader-of-headers"), 1)
        expected = {"Via": "a, b, d", "Only": "one", "via": "c"}
        assert message.attributes == expected
        broker = await pubsub.broker()
        [[record]] = [batch async for batch in broker.log.read("HEADERS", 1, 1)]
        assert record.attributes == expected


async def test_dead_letters_need_a_topic_that_takes_them(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="FAILS", subjects=["fails"])
        await js.add_stream(name="LETTERS", subjects=["letters.*"])
        await js.add_consumer("FAILS", ConsumerConfig(durable_name="fails"))
        sub = pubsub.topic("FAILS").subscription("fails")
        policy = DeadLetterPolicy(topic="LETTERS", max_delivery_attempts=1)
        with pytest.raises(InvalidArgumentError, match=r"'LETTERS'.*letters\.\*"):
            await sub.update(dead_letter_policy=policy)
        await pubsub.topic("LETTERS").update(subjects=["letters.*", "LETTERS"])
        await sub.update(dead_letter_policy=policy)
        await js.publish("fails", b"x")
        broker = await pubsub.broker()
        [failed] = await broker.pull("fails", max_messages=1, max_bytes=100, wait=5)
        await broker.settle("fails", [Settlement(failed.ack_id, Verb.NACK)])
        letter = await js.get_last_msg("LETTERS", "LETTERS")
        assert letter.data == b"x"


async def test_what_others_set_survives_our_changes(server):
    async with both(server) as (theirs, pubsub):
        js = theirs.jetstream()
        await js.add_stream(name="CHANGED", subjects=["changed"], max_msgs=1000, description="ours")
        config = ConsumerConfig(
            durable_name="kept",
            max_deliver=7,
            max_ack_pending=50,
            deliver_policy=DeliverPolicy.LAST,
            description="theirs",
        )
        await js.add_consumer("CHANGED", config)
        await pubsub.topic("CHANGED").ensure(message_retention=3600)
        await pubsub.topic("CHANGED").subscription("kept", ack_deadline=45).ensure()
        stream = (await js.stream_info("CHANGED")).config
        assert (stream.max_age, stream.max_msgs, stream.description) == (3600, 1000, "ours")
        consumer = (await js.consumer_info("CHANGED", "kept")).config
        assert (consumer.ack_wait, consumer.max_deliver, consumer.max_ack_pending) == (45, 7, 50)
        assert (consumer.deliver_policy, consumer.description) == (DeliverPolicy.LAST, "theirs")


async def test_advisories_are_acted_on_though_no_more_of_them_may_be_out(server):
    async with both(server) as (theirs, pubsub):
        dead = await pubsub.topic("given-up-dead").create()
        topic = await pubsub.topic("given-up").create()
        policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=5)
        sub = await topic.subscription("given-up-sub", dead_letter_policy=policy).create()
        watched = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.given-up.given-up-sub"
        found = await api(theirs, "CONSUMER.LIST.PENSTOCK-ADVISORIES", {})
        [rescue] = [c for c in found["consumers"] if watched in c["config"]["filter_subjects"]]
        assert rescue["config"]["max_ack_pending"] == -1
        # As a consumer of long ago is, when as many letters as it lends could not be moved.
        config = {**rescue["config"], "max_ack_pending": 2}
        await api(
            theirs,
            f"CONSUMER.CREATE.PENSTOCK-ADVISORIES.{rescue['name']}",
            {"stream_name": "PENSTOCK-ADVISORIES", "action": "update", "config": config},
        )
        for n in range(1, 6):
            await topic.publish_message(b"%d" % n)
            await theirs.publish(watched, b'{"stream_seq": %d, "deliveries": 5}' % n)
        await theirs.flush()
        sub.on("message", lambda message: message.ack())
        sub.open()
        async with asyncio.timeout(25):  # A request that is not ended takes thirty seconds.
            while len(await stored(pubsub, dead.name)) < 5:
                await asyncio.sleep(0.05)
