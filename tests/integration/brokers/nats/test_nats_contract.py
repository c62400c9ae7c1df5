"""JetStream's share of the port's contract, where a plain run of the suite does not get to."""

import asyncio
import base64
import re

import pytest

from penstock import (
    DeadLetterPolicy,
    Draft,
    FlowControl,
    PreciseTime,
    PubSub,
    PushDelivery,
    Receipt,
)
from penstock.brokers.nats import catalogue
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.errors import (
    AlreadyExistsError,
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
    UnavailableError,
)
from penstock.message import AckResponse, PublishFault, Settlement, Verb
from penstock.testing import eventually, run_real
from penstock.testing.faults import faulty_proxy
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time

ACK = re.compile(rb'MSG (\S+) (\d+) \d+\r\n\{"stream":"[^"]*","seq":\d+\}\r\n')
NOBODY_THERE = rb"HMSG \1 \2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


async def test_a_topic_without_a_leader_for_a_moment_is_not_a_missing_one(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}") as pubsub,
    ):
        topic = await pubsub.topic("leaderless").create()
        await topic.publish_message(b"before")
        broker = await pubsub.broker()
        proxy.replies = lambda data: ACK.sub(NOBODY_THERE, data)
        answers = await broker.publish(topic.name, [Draft.of(b"x"), Draft.of(b"y")])
        assert [type(answer) for answer in answers] == [PublishFault, PublishFault]
        for answer in answers:
            assert isinstance(answer.error, UnavailableError) and answer.error.retryable
            assert "leaderless" in str(answer.error)
        proxy.replies = bytes
        [answer] = await broker.publish(topic.name, [Draft.of(b"z")])
        assert isinstance(answer, Receipt)


async def test_closing_ends_a_pull_that_waits_to_be_pushed_to(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("pushed").create()
        push = PushDelivery(subject="deliver.pushed")
        sub = await topic.subscription("pushed-sub", push=push).create()
        broker = await pubsub.broker()
        pull = asyncio.create_task(broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=600))
        await asyncio.sleep(0.3)
        await broker.aclose()
        with pytest.raises(ClosedError):
            await pull
        with pytest.raises(ClosedError):
            await broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=600)


async def test_a_push_subscription_that_is_made_anew_is_received_where_it_delivers_now(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("pushed-anew").create()
        broker = await pubsub.broker()
        for subject in ("deliver.before", "deliver.now"):
            push = PushDelivery(subject=subject)
            sub = await topic.subscription("pushed-anew-sub", push=push).create()
            pull = asyncio.create_task(
                broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=5)
            )
            await topic.publish_message(subject.encode())
            [delivery] = await pull
            assert delivery.record.data == subject.encode()
            pull = asyncio.create_task(
                broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=600)
            )
            await asyncio.sleep(0)
            await sub.delete()
            with pytest.raises(SubscriptionNotFoundError):
                await pull


async def test_a_pushed_subscription_that_is_made_anew_is_pushed_to_where_it_says(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("anew").create()
        for subject in ("deliver.anew.one", "deliver.anew.two"):
            sub = topic.subscription("anew-sub", push=PushDelivery(subject=subject))
            await sub.create()
            await topic.publish_message(subject.encode())
            async with asyncio.timeout(60):
                async for message in sub:
                    assert message.data == subject.encode()
                    assert await message.ack_with_response() is AckResponse.SUCCESS
                    break
            await sub.close()
            await sub.delete()


async def test_closing_ends_whatever_waits_for_a_server_that_does_not_answer(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=20") as pubsub,
    ):
        topic = await pubsub.topic("silent").create(message_retention=60)
        await topic.publish_message(b"x")
        broker = await pubsub.broker()
        proxy.freeze()
        publish = asyncio.create_task(broker.publish(topic.name, [Draft.of(b"x")]))
        others = [
            asyncio.create_task(call)
            for call in (
                broker.admin.list_topics(),
                broker.admin.describe_topic("silent"),
                broker.log.extent("silent"),
                broker.ping(),
            )
        ]
        await asyncio.sleep(0.2)
        closing = asyncio.create_task(broker.aclose())
        async with asyncio.timeout(10):
            [answer] = await publish
            assert isinstance(answer.error, ClosedError)
            for call in others:
                with pytest.raises(ClosedError):
                    await call
        proxy.thaw()
        await closing


async def test_a_cancelled_ping_leaves_the_connection_alive(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}") as pubsub,
    ):
        topic = await pubsub.topic("pinged").create()
        broker = await pubsub.broker()
        proxy.freeze()
        ping = asyncio.create_task(broker.ping())
        await asyncio.sleep(0.1)
        ping.cancel()
        await asyncio.wait({ping})
        proxy.thaw()
        await asyncio.sleep(0.2)
        assert await topic.publish_message(b"x")
        assert await broker.ping() < 5


async def test_what_was_under_way_for_longer_than_it_is_lent_is_left_to_who_has_it_now(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}") as frozen,
        PubSub(server.url) as other,
    ):
        topic = await other.topic("under-way").create()
        sub = topic.subscription("under-way-sub", ack_deadline=2, enable_exactly_once_delivery=True)
        await sub.create()
        asked = {"max_messages": 1, "max_bytes": 1000}
        pull = asyncio.create_task((await frozen.broker()).pull(sub.name, wait=4, **asked))
        await asyncio.sleep(0.1)
        proxy.freeze()
        await topic.publish_message(b"x")
        broker = await other.broker()
        [delivery] = await broker.pull(sub.name, wait=5, **asked)
        [answer] = await broker.settle(sub.name, [Settlement(delivery.ack_id, Verb.ACK)])
        assert answer is AckResponse.SUCCESS
        proxy.thaw()
        assert await pull == []


async def test_a_pull_is_one_request_whether_it_waits_or_not(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("one-request").create()
        sub = await topic.subscription("one-request-sub").create()
        broker = await pubsub.broker()
        written = []
        write = broker._connection.wire.write

        async def watched(parts, **how):
            written.extend(part for part in parts if b"MSG.NEXT" in part)
            await write(parts, **how)

        broker._connection.wire.write = watched
        pulling = asyncio.ensure_future(
            broker.pull(sub.name, max_messages=10, max_bytes=10**6, wait=600)
        )
        await asyncio.sleep(0.1)
        await topic.publish_message(b"awaited")
        async with asyncio.timeout(60):
            assert [d.record.data for d in await pulling] == [b"awaited"]
        assert len(written) == 1
        for n in range(3):
            await topic.publish_message(b"%d" % n)
        async with asyncio.timeout(60):
            found = await broker.pull(sub.name, max_messages=10, max_bytes=10**6, wait=600)
        assert [d.record.data for d in found] == [b"0", b"1", b"2"]
        assert len(written) == 2


async def test_pulls_side_by_side_lose_nothing_and_deliver_nothing_twice(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("side-by-side").create()
        sub = await topic.subscription("side-by-side-sub").create()
        broker = await pubsub.broker()
        found = []

        async def keep_pulling():
            while len(found) < 300:
                found.extend(await broker.pull(sub.name, max_messages=7, max_bytes=2000, wait=0.2))

        pulls = [asyncio.ensure_future(keep_pulling()) for _ in range(5)]
        for n in range(300):
            await topic.publish_message(b"%d" % n + bytes(n))
        await asyncio.gather(*pulls)
        assert sorted(d.record.sequence for d in found) == list(range(1, 301))
        assert {d.delivery_attempt for d in found} == {1}


async def test_creating_what_was_moved_back_leaves_it_where_it_is(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("moved-back").create()
        await topic.publish_message(b"before")
        sub = await topic.subscription("moved-back-sub").create()
        await sub.seek(PreciseTime.from_ns(0))
        with pytest.raises(AlreadyExistsError):
            await topic.subscription(sub.name).create()
        broker = await pubsub.broker()
        [found] = await broker.pull(sub.name, max_messages=5, max_bytes=1000, wait=5)
        assert found.record.data == b"before"


async def test_what_came_back_counts_as_leased_until_it_is_lent_again(server):
    """The server says how many it has lent and nobody acked, and nothing finer."""
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("came-back").create()
        sub = await topic.subscription("came-back-sub").create()
        for n in range(3):
            await topic.publish_message(b"%d" % n)
        broker = await pubsub.broker()
        lent = await broker.pull(sub.name, max_messages=2, max_bytes=1000, wait=5)
        verbs = (Verb.RELEASE, Verb.NACK)
        await broker.settle(
            sub.name, [Settlement(d.ack_id, verb) for d, verb in zip(lent, verbs, strict=True)]
        )
        await broker.ping()
        status = await sub.describe()
        assert (status.backlog, status.leased) == (3, 2)


async def test_pulls_wait_in_peace_where_few_may_be_unsettled(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("narrow").create()
        broker = await pubsub.broker()
        config = {"durable_name": "narrow-sub", "ack_policy": "explicit", "max_ack_pending": 1}
        await broker._connection.request(
            "CONSUMER.CREATE.narrow.narrow-sub",
            {"stream_name": "narrow", "config": {"name": "narrow-sub", **config}},
        )
        for n in range(5):
            await topic.publish_message(b"%d" % n)
        [held] = await broker.pull("narrow-sub", max_messages=5, max_bytes=1000, wait=5)
        written = []
        write = broker._connection.wire.write

        async def watched(parts, **how):
            written.extend(part for part in parts if b"MSG.NEXT" in part)
            await write(parts, **how)

        broker._connection.wire.write = watched
        pulls = [
            broker.pull("narrow-sub", max_messages=5, max_bytes=1000, wait=0.5) for _ in range(3)
        ]
        assert await asyncio.gather(*pulls) == [[], [], []]
        assert len(written) < 12
        await broker.settle("narrow-sub", [Settlement(held.ack_id, Verb.ACK)])
        [following] = await broker.pull("narrow-sub", max_messages=5, max_bytes=1000, wait=5)
        assert following.record.data == b"1"


async def test_a_pull_that_is_cancelled_while_it_looks_gives_back_what_it_had_taken(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("looking").create()
        dead = await pubsub.topic("looking-dead").create()
        policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=1)
        sub = await topic.subscription("looking-sub", dead_letter_policy=policy).create()
        await topic.publish_message(b"x")
        broker = await pubsub.broker()
        [first] = await broker.pull(sub.name, max_messages=1, max_bytes=100, wait=5)
        await broker.settle(sub.name, [Settlement(first.ack_id, Verb.RELEASE)])
        count, looking = broker._releases.count, asyncio.Event()

        async def never(*_):
            looking.set()
            await asyncio.Event().wait()

        broker._releases.count = never
        pull = asyncio.ensure_future(broker.pull(sub.name, max_messages=1, max_bytes=100, wait=5))
        await looking.wait()
        pull.cancel()
        await asyncio.wait([pull])
        broker._releases.count = count
        # Its ack deadline is a minute away: it comes only because it was given back.
        [again] = await broker.pull(sub.name, max_messages=1, max_bytes=100, wait=20)
        assert (again.record.data, again.delivery_attempt) == (b"x", 1)


async def test_who_receives_follows_what_another_client_changes(server, monkeypatch):
    monkeypatch.setattr(catalogue, "_LOOK_AGAIN_AFTER", 0.1)
    async with PubSub(server.url) as receiving, PubSub(server.url) as changing:
        topic = await receiving.topic("followed").create()
        sub = await topic.subscription("followed-sub", enable_exactly_once_delivery=True).create()
        broker = await receiving.broker()

        async def pull():
            return await broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=0.2)

        async def next_one():
            """What comes next, acked."""
            while not (found := await pull()):
                pass
            await broker.settle(sub.name, [Settlement(found[0].ack_id, Verb.ACK)])
            return found[0]

        await topic.publish_message(b"lent")
        while not (lent := await pull()):
            pass
        await changing.subscription(sub.name).update(filter="attributes:wanted", ack_deadline=33)
        while True:
            await topic.publish_message(b"wanted", {"wanted": "yes"})
            if (await next_one()).ack_deadline == 33:
                break
        await topic.publish_message(b"unwanted")
        await topic.publish_message(b"last", {"wanted": "yes"})
        assert (await next_one()).record.data == b"last"
        # What was on loan before is so still.
        settlements = [Settlement(lent[0].ack_id, Verb.ACK)]
        assert await broker.settle(sub.name, settlements) == [AckResponse.SUCCESS]


async def test_a_snapshot_that_ran_out_is_gone_and_its_name_free(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("snapped").create()
        sub = await topic.subscription("snapped-sub").create()
        await sub.create_snapshot("short-lived~1.0")
        broker = await pubsub.broker()
        assert await broker.admin.list_snapshots("snapped") == ["short-lived~1.0"]
        assert "KV_PENSTOCK-SNAPSHOTS" not in await pubsub.topics()
        time_ns, week = broker._clock.time_ns, (7 * 86_400 * 10**9)
        broker._clock.time_ns = lambda: time_ns() + week + 10**9
        try:
            with pytest.raises(SnapshotNotFoundError):
                await sub.seek("short-lived~1.0")
            assert await broker.admin.list_snapshots() == []
        finally:
            broker._clock.time_ns = time_ns
        await pubsub.delete_snapshot("short-lived~1.0")
        await sub.create_snapshot("short-lived~1.0")
        await topic.delete()
        assert (await broker.admin.describe_snapshot("short-lived~1.0")).topic_deleted
        again = await pubsub.topic("snapped").create()
        assert await broker.admin.list_snapshots("snapped") == []
        sub = await again.subscription("snapped-sub").create()
        with pytest.raises(InvalidArgumentError, match="another topic"):
            await sub.seek("short-lived~1.0")
        await pubsub.delete_snapshot("short-lived~1.0")


async def test_the_server_forgets_a_snapshot_when_it_expires(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("forgotten").create()
        sub = await topic.subscription("forgotten-sub").create()
        await topic.publish_message(b"x")
        await sub.create_snapshot("forgotten-snapshot")
        broker = await pubsub.broker()
        info = await broker._connection.request(
            "STREAM.MSG.GET.KV_PENSTOCK-SNAPSHOTS",
            {"last_by_subj": "$KV.PENSTOCK-SNAPSHOTS.forgotten-snapshot"},
        )
        headers = base64.b64decode(info["message"]["hdrs"]).decode()
        seconds = int(re.search(r"Nats-TTL: (\d+)s", headers)[1])
        assert 7 * 86_400 - 60 < seconds <= 7 * 86_400


async def test_a_snapshot_of_a_work_queue_is_refused(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("snapped-work").create(work_queue=True)
        sub = await topic.subscription("snapped-work-sub").create()
        with pytest.raises(FailedPreconditionError, match="work queue"):
            await sub.create_snapshot("of-a-work-queue")


async def test_what_was_acked_out_of_turn_comes_back_with_a_snapshot(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("out-of-turn").create()
        sub = await topic.subscription("out-of-turn-sub").create()
        broker = await pubsub.broker()
        for n in range(3):
            await topic.publish_message(b"%d" % n)
        held = await broker.pull(sub.name, max_messages=3, max_bytes=1000, wait=5)
        [_, second, _] = held
        await broker.settle(sub.name, [Settlement(second.ack_id, Verb.ACK)])
        await sub.create_snapshot("out-of-turn-snapshot")
        await sub.seek("out-of-turn-snapshot")
        again = await broker.pull(sub.name, max_messages=9, max_bytes=1000, wait=5)
        assert [d.record.data for d in again] == [b"0", b"1", b"2"]
        await pubsub.delete_snapshot("out-of-turn-snapshot")


async def test_a_snapshot_knows_of_acks_that_were_sent_a_moment_before(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("just-acked").create()
        sub = await topic.subscription("just-acked-sub").create()
        broker = await pubsub.broker()
        for number in range(20):
            await broker.publish(topic.name, [Draft(b"x")] * 10)
            lent = await broker.pull(sub.name, max_messages=10, max_bytes=1000, wait=5)
            await broker.settle(sub.name, [Settlement(d.ack_id, Verb.ACK) for d in lent])
            await sub.create_snapshot(f"just-acked-{number}")
            await sub.seek(f"just-acked-{number}")
            assert (await sub.describe()).backlog == 0
            await pubsub.delete_snapshot(f"just-acked-{number}")
        await topic.delete()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"message_ordering": True},
        {"enable_exactly_once_delivery": True},
        {"push": PushDelivery(subject="deliver.left")},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_handler_that_wants_the_program_to_end_keeps_nothing_from_the_next_one(server, options):
    name = "left-" + "-".join(options)

    async def program():
        async with PubSub(server.url) as pubsub:
            topic = await pubsub.topic(name).create()
            sub = await topic.subscription(f"{name}-sub", ack_deadline=600, **options).create()
            for at in range(5):
                await topic.publish_message(b"%d" % at, ordering_key=f"k{at % 2}")

            async def handle(message):
                raise SystemExit(3)

            sub.on("message", handle)
            sub.open()
            await sub.wait_closed()

    async def next_program():
        async with PubSub(server.url) as pubsub:
            seen = set()
            async for message in pubsub.subscription(f"{name}-sub"):
                seen.add(message.data)
                message.ack()
                if len(seen) == 5:
                    break

    with pytest.raises(SystemExit):
        run_real(program())
    run_real(next_program())


@pytest.mark.parametrize("window", [2, 100])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"message_ordering": True},
        {"enable_exactly_once_delivery": True},
        {"push": PushDelivery(subject="deliver.closed")},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
async def test_what_closing_gives_back_is_not_sent_to_who_closes(server, options, window):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("closed").create()
        try:
            sub = topic.subscription("closed-sub", ack_deadline=600, **options)
            await sub.create()
            sub.set_options(flow_control=FlowControl(max_messages=window))
            for at in range(6):
                await topic.publish_message(b"%d" % at, ordering_key=f"k{at}")
            handling = []

            async def handle(message):
                handling.append(message)
                await asyncio.Event().wait()

            sub.on("message", handle)
            sub.open()
            await eventually(lambda: len(handling) == min(window, 6))
            broker = await pubsub.broker()
            sent_before_closing = await sent(broker, "closed-sub")
            await sub.close(timeout=0)
            await asyncio.sleep(0.2)
            assert await sent(broker, "closed-sub") == sent_before_closing
            async with PubSub(server.url) as elsewhere:
                another = elsewhere.subscription("closed-sub")
                seen = set()
                async with asyncio.timeout(10):
                    async for message in another:
                        seen.add(message.data)
                        message.ack()
                        if len(seen) == 6:
                            break
        finally:
            await topic.delete()


@pytest.mark.parametrize(
    "options",
    [{}, {"message_ordering": True}, {"push": PushDelivery(subject="deliver.beside")}],
    ids=lambda options: next(iter(options), "plain"),
)
async def test_closing_beside_a_pull_ends_it_and_keeps_nobody_waiting(server, options):
    async with PubSub(server.url) as elsewhere:
        topic = await elsewhere.topic("beside").create()
        sub = await topic.subscription("beside-sub", **options).create()
        pubsub = PubSub(server.url)
        broker = await pubsub.broker()
        pull = asyncio.ensure_future(broker.pull(sub.name, max_messages=1, max_bytes=100, wait=5))
        await asyncio.sleep(0.2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await pubsub.aclose()
        with pytest.raises(ClosedError):
            await pull
        assert loop.time() - began < 4, "it does not wait for the pull"
        await topic.delete()


async def test_closing_gives_back_what_was_on_its_way_to_a_pull_that_nobody_waits_for(server):
    under_way = bytearray()

    def hold(data):
        under_way.extend(data)
        if b"PONG" not in data:
            return b""
        everything = bytes(under_way)
        under_way.clear()
        return everything

    async with PubSub(server.url) as elsewhere:
        topic = await elsewhere.topic("on-its-way").create()
        sub = await topic.subscription("on-its-way-sub", ack_deadline=600).create()
        async with (
            faulty_proxy("127.0.0.1", server.port) as proxy,
            PubSub(f"nats://127.0.0.1:{proxy.port}") as pubsub,
        ):
            broker = await pubsub.broker()
            pull = asyncio.ensure_future(
                broker.pull(sub.name, max_messages=9, max_bytes=1000, wait=30)
            )
            await asyncio.sleep(0.1)
            proxy.replies = hold
            await topic.publish_message(b"x")
            await eventually(lambda: under_way)
            pull.cancel()
            await asyncio.sleep(0)
            pull.cancel()  # It would wait for what is on its way.
            await asyncio.wait([pull])
        broker = await elsewhere.broker()
        [delivery] = await broker.pull(sub.name, max_messages=9, max_bytes=1000, wait=5)
        assert delivery.record.data == b"x"
        await topic.delete()


async def sent(broker, subscription):
    """How many deliveries the server has made."""
    info = await broker._catalogue.consumer_info(subscription)
    return info["delivered"]["consumer_seq"]


async def test_who_waits_for_messages_hears_of_a_new_filter_before_the_next_one(
    server, monkeypatch
):
    monkeypatch.setattr("penstock.brokers.nats.aio.pulling._SIGN_OF_LIFE", 0.2)
    monkeypatch.setattr("penstock.brokers.nats.catalogue._LOOK_AGAIN_AFTER", 0.2)
    async with PubSub(server.url) as pubsub, PubSub(server.url) as elsewhere:
        topic = await pubsub.topic("waited-for").create()
        try:
            sub = await topic.subscription("billing").create()
            seen = []
            sub.on("message", lambda message: (seen.append(message.data), message.ack()))
            sub.open()
            await topic.publish_message(b"before")
            await eventually(lambda: seen)
            await (
                elsewhere.topic("waited-for")
                .subscription("billing")
                .update(filter="attributes:wanted")
            )
            broker = await pubsub.broker()
            known = broker._catalogue._consumers
            await eventually(lambda: all(one.config.filter for one in known.values()))
            await topic.publish_message(b"unwanted")
            await topic.publish_message(b"wanted", {"wanted": "1"})
            await eventually(lambda: len(seen) == 2)
            assert seen == [b"before", b"wanted"]
            await sub.close()
        finally:
            await topic.delete()


@pytest.mark.parametrize("half_way", [False, True])
async def test_a_filter_is_kept_to_by_a_pull_that_waits_already(server, monkeypatch, half_way):
    """Half way: a part of what it asked for was taken before. The server ends a request when it has
    no more to send; this one it does not."""
    ask = Pulling._ask

    async def ask_for_all(*words, one_shot=True, **more):
        return await ask(*words, one_shot=False, **more)

    monkeypatch.setattr(Pulling, "_ask", ask_for_all)
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("late-filter").create()
        try:
            sub = await topic.subscription("billing").create()
            broker, taken = await pubsub.broker(), []
            broker._pulling._with_more.add(("late-filter", "billing"))
            pull = asyncio.ensure_future(
                broker.pull_to(taken.extend, "billing", max_messages=3, max_bytes=10**7, wait=30)
            )
            if half_way:
                await topic.publish_message(b"before")
                await eventually(lambda: taken)
            await sub.update(filter="attributes:wanted")
            count = 2 if half_way else 3
            for n in range(count):
                await topic.publish_message(b"x", {"wanted": "1"} if n else {})
            returned = [delivery.record.attributes for delivery in await pull]
            assert returned == [{"wanted": "1"}] * (count - 1)
            assert [delivery.record.data for delivery in taken] == [b"before"] * half_way
        finally:
            await topic.delete()


async def test_what_closing_gives_back_is_the_next_ones_at_once(server):
    """Not the one's that closes: its pulls are over before."""
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("handed-on").create()
        try:
            policy = DeadLetterPolicy(topic="handed-on", max_delivery_attempts=5)
            for number in range(10):
                name = f"billing-{number}"
                sub = await topic.subscription(name, dead_letter_policy=policy).create()
                async with PubSub(server.url) as first:
                    begun = asyncio.Event()

                    async def keep(_message, begun=begun):
                        begun.set()
                        await asyncio.sleep(60)

                    its = first.topic("handed-on").subscription(name)
                    its.on("message", keep)
                    its.open()
                    await topic.publish_message(b"x")
                    await begun.wait()
                    await its.close(timeout=0)
                async with asyncio.timeout(5):
                    async for message in sub:
                        assert message.delivery_attempt == 2
                        message.ack()
                        break
                await sub.delete()
        finally:
            await topic.delete()


async def test_nothing_is_sent_to_a_subscription_that_was_closed(server):
    """It would be lost where no more than one attempt is allowed."""
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("closed-for").create()
        try:
            broker = await pubsub.broker()
            for number in range(10):
                sub = await topic.subscription(f"billing-{number}").create()
                sub.on("message", lambda message: message.ack())
                sub.open()
                await asyncio.sleep(0.01)
                await sub.close()
                await topic.publish_message(b"x")
                await asyncio.sleep(0.02)
                info = await broker._catalogue.consumer_info(sub._address)
                assert (info["num_ack_pending"], info["delivered"]["consumer_seq"]) == (0, 0)
        finally:
            await topic.delete()
