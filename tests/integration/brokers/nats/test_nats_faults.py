"""JetStream when things go wrong: a real server, killed, cut off, frozen, filled and deleted.

Nothing acknowledged is lost; within the duplicate window nothing is stored twice; nothing hangs
past its deadline.
"""

import asyncio
import contextlib
import re
import time

import nats
import pytest

from penstock import (
    AckResponse,
    DeadLetterPolicy,
    Draft,
    Expect,
    FlightState,
    ManagedPublisher,
    PublishRetry,
    PubSub,
    PushDelivery,
    Receipt,
)
from penstock.errors import (
    AlreadyExistsError,
    ClosedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PenstockError,
    PermissionDeniedError,
    ResourceExhaustedError,
    TopicNotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.message import Settlement, Verb
from penstock.retrying import Persistence, retry
from penstock.rules.backoff import Backoff
from penstock.testing import eventually
from penstock.testing.faults import faulty_proxy
from tests.support.brokers import publish_when_connected, stored
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time

RETRY = PublishRetry(attempts=100, backoff=0.05, maximum_backoff=0.5, deadline=30)

# The answer to a message or a batch of them, and what a server says when nobody is there.
ACK = re.compile(rb'MSG (\S+) (\d+) \d+\r\n\{"stream":"[^"]*","seq":\d+[^}]*\}\r\n')
NOBODY_THERE = rb"HMSG \1 \2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
def own_server(tmp_path):
    with NatsServer(tmp_path, sync=True) as running:
        yield running


@pytest.mark.parametrize("group_commit", [0, 1])
async def test_a_server_killed_under_load_loses_nothing_and_stores_nothing_twice(
    own_server, group_commit
):
    url = f"{own_server.url}?group_commit={group_commit}&timeout=2"
    async with PubSub(url) as pubsub:
        await pubsub.topic("orders").create()
        publisher = ManagedPublisher(
            pubsub, max_in_flight=100, refill_allowed_at=99, retry=RETRY, wait_timeout=3
        )
        flights = []
        async with publisher:
            for n in range(1500):
                if n in (400, 900):
                    own_server.kill()
                    own_server.start()
                flights.append(await publisher.publish_async("orders", b"%d" % n))
            left = await publisher.drain(timeout=30)
        assert left == ()
        assert all(flight.state.delivered for flight in flights)
        records = await stored(pubsub, "orders")
    ids = [record.message_id for record in records]
    assert len(ids) == len(set(ids)) == 1500
    assert set(ids) == {flight.id for flight in flights}


async def test_a_subscriber_survives_a_server_that_is_killed(own_server):
    async with PubSub(f"{own_server.url}?timeout=2") as pubsub:
        topic = await pubsub.topic("orders").create()
        sub = await topic.subscription("billing", ack_deadline=2).create()
        seen, errors = set(), []
        sub.on("message", lambda m: (seen.add(m.data), m.ack()))
        sub.on("error", errors.append)
        sub.open()
        async with ManagedPublisher(pubsub, retry=RETRY, wait_timeout=3) as publisher:
            for n in range(300):
                if n == 150:
                    own_server.kill()
                    own_server.start()
                await publisher.publish_async("orders", b"%d" % n)
        await eventually(lambda: len(seen) == 300, within=120)
        assert sub.is_open


@pytest.mark.parametrize("message_ordering", [False, True])
async def test_what_a_killed_server_may_not_know_that_it_lent_cannot_be_acked(
    own_server, message_ordering
):
    async with PubSub(f"{own_server.url}?timeout=2") as pubsub:
        topic = await pubsub.topic("orders").create()
        await topic.subscription(
            "billing", enable_exactly_once_delivery=True, message_ordering=message_ordering
        ).create()
        await topic.publish_message(b"x", ordering_key="k")
        broker = await pubsub.broker()
        [delivery] = await broker.pull("billing", max_messages=1, max_bytes=10**6, wait=10)
        own_server.kill()
        own_server.start()
        acks = [Settlement(delivery.ack_id, Verb.ACK)]
        persistence = Persistence(backoff=Backoff(initial=0.05, maximum=0.5), within=60)
        answers = await retry(lambda: broker.settle("billing", acks), persistence)
        assert answers == [AckResponse.INVALID]


async def test_connections_that_are_cut_again_and_again_lose_nothing(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=2") as pubsub,
    ):
        topic = await pubsub.topic("cut-off").create()
        sub = await topic.subscription("cut-off-sub", ack_deadline=2).create()
        seen = set()
        sub.on("message", lambda m: (seen.add(m.data), m.ack()))
        sub.on("error", lambda error: None)
        sub.open()
        async with ManagedPublisher(pubsub, retry=RETRY, wait_timeout=2) as publisher:
            for n in range(500):
                if n % 100 == 50:
                    proxy.cut()
                await publisher.publish_async("cut-off", b"%d" % n)
            assert await publisher.drain(timeout=30) == ()
        await eventually(lambda: len(seen) == 500, within=120)
        records = await stored(pubsub, "cut-off")
        assert len(records) == len({record.message_id for record in records}) == 500


async def test_a_half_open_connection_ends_every_flight_by_its_deadline(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
    ):
        await pubsub.topic("half-open").create()
        async with ManagedPublisher(pubsub, wait_timeout=0.5) as publisher:
            await (await publisher.publish_async("half-open", b"before")).ack
            proxy.freeze()
            flights = [await publisher.publish_async("half-open", b"lost") for _ in range(20)]
            for flight in flights:
                with pytest.raises(DeadlineExceededError):
                    await flight.ack
                assert flight.state is FlightState.TIMED_OUT
            proxy.thaw()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"message_ordering": True},
        {"push": PushDelivery(subject="deliver.large")},
    ],
    ids=["pulled", "in order", "pushed"],
)
async def test_large_messages_and_a_slow_handler_do_not_cost_the_connection(server, how):
    """A server holds back 64 MB for a client, and ends its connection when that is not enough."""
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("large").create()
        try:
            sub = await topic.subscription("billing", **how).create()
            for n in range(120):
                await topic.publish_message(bytes(1_000_000), ordering_key=f"key-{n % 7}")
            errors, attempts = [], []

            def handle(message):
                attempts.append(message.delivery_attempt)
                time.sleep(0.01)
                message.ack()

            sub.on("error", errors.append)
            sub.on("message", handle)
            sub.open()
            await eventually(lambda: len(attempts) == 120)
            await sub.close()
            assert attempts == [1] * 120
            assert not errors
        finally:
            await topic.delete()


@pytest.mark.parametrize("ordered", [False, True], ids=["pulled", "in order"])
async def test_many_subscriptions_with_large_messages_do_not_cost_the_connection(server, ordered):
    """Nor does a client that stands still while all of them have a backlog, or wait for it."""
    count, each = (6, 30) if ordered else (20, 12)
    async with PubSub(server.url) as pubsub, PubSub(server.url) as publishing:
        topic = await pubsub.topic("many-large").create()
        try:
            subs = [
                await topic.subscription(f"billing-{n}", message_ordering=ordered).create()
                for n in range(count)
            ]
            errors, attempts = [], []

            def handle(message):
                attempts.append(message.delivery_attempt)
                if len(attempts) in (1, count * each // 2):
                    time.sleep(2)
                message.ack()

            for sub in subs:
                sub.on("error", errors.append)
                sub.on("message", handle)
            publisher = publishing.topic("many-large")
            for n in range(each):
                if n == each // 2:
                    for sub in subs:
                        sub.open()
                    await asyncio.sleep(0.5)
                await publisher.publish_message(bytes(900_000), ordering_key=f"key-{n % 7}")
            await eventually(lambda: len(attempts) == count * each)
            await asyncio.gather(*(sub.close() for sub in subs))
            assert attempts == [1] * count * each
            assert not errors
        finally:
            await topic.delete()


async def test_a_member_of_a_group_that_is_somebody_elses_keeps_nothing_from_the_others(server):
    push = PushDelivery(subject="deliver.shared", group="workers")
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("shared").create()
        other = await nats.connect(server.url)
        try:
            sub = await topic.subscription("billing", push=push).create()
            theirs, ours = [], []

            async def take(message):
                theirs.append(message.reply)

            await other.subscribe("deliver.shared", queue="workers", cb=take)
            sub.on("message", lambda message: (ours.append(message), message.ack()))
            sub.open()
            for _ in range(20):
                await asyncio.gather(*(topic.publish_message(bytes(100_000)) for _ in range(20)))
            await eventually(lambda: len(ours) + len(theirs) == 400)
            assert ours
            assert all(reply.startswith("$JS.ACK.") for reply in theirs), "nothing is asked of it"
            await sub.close()
        finally:
            await other.close()
            await topic.delete()


async def test_one_byte_a_second_is_an_outage_not_a_hang(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
    ):
        topic = await pubsub.topic("slow").create()
        proxy.throttle = 1
        with pytest.raises(PenstockError) as caught:
            await asyncio.wait_for(topic.publish_message(b"x"), 5)
        assert caught.value.retryable
        proxy.throttle = None


async def test_dropped_acks_time_out_and_the_retry_is_a_duplicate(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
    ):
        await pubsub.topic("dropped").create()
        retry = PublishRetry(attempts=5, backoff=0.05)
        async with ManagedPublisher(pubsub, retry=retry, wait_timeout=0.4) as publisher:
            proxy.replies = lambda data: b"" if b'"seq":' in data else data
            flight = await publisher.publish_async("dropped", b"once")
            await asyncio.sleep(0.6)
            proxy.replies = bytes
            receipt = await flight.ack
        assert flight.state is FlightState.DUPLICATE
        assert receipt.duplicate
        assert len(await stored(pubsub, "dropped")) == 1


async def test_a_full_stream_refuses_and_says_so(server):
    async with PubSub(server.url) as pubsub:
        broker = await pubsub.broker()
        await broker._connection.request(
            "STREAM.CREATE.full",
            {"name": "full", "subjects": ["full"], "max_msgs": 2, "discard": "new"},
        )
        answers = await broker.publish("full", [Draft.of(b"x") for _ in range(4)])
        assert [type(answer).__name__ for answer in answers] == ["Receipt"] * 2 + [
            "PublishFault"
        ] * 2
        assert isinstance(answers[3].error, ResourceExhaustedError)


async def test_a_deleted_stream_refuses_and_says_so(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("doomed").create()
        await topic.publish_message(b"x")
        await topic.delete()
        with pytest.raises(TopicNotFoundError, match="doomed"):
            await topic.publish_message(b"x")


@pytest.mark.parametrize("group_commit", [0, 1])
async def test_a_topic_that_nobody_stores_for_is_not_a_missing_one(server, group_commit):
    name = f"unled-{group_commit}"
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?group_commit={group_commit}") as pubsub,
    ):
        topic = await pubsub.topic(name).create()
        await topic.publish_message(b"x")
        broker = await pubsub.broker()
        # As during a change of leader, but for longer: nobody listens on its subjects.
        proxy.replies = lambda data: ACK.sub(NOBODY_THERE, data)
        answers = await broker.publish(name, [Draft.of(b"y"), Draft.of(b"z")])
        assert [type(answer.error) for answer in answers] == [UnavailableError] * 2
        async with ManagedPublisher(pubsub, retry=PublishRetry(attempts=2)) as publisher:
            flight = await publisher.publish_async(name, b"z")
            with pytest.raises(UnavailableError, match="is there"):
                await flight.ack
            assert flight.state is FlightState.UNKNOWN


async def test_whoever_may_not_ask_whether_a_topic_is_there_does_not_say_that_it_is_gone(tmp_path):
    extra = """
    authorization { users: [ { user: "weak", password: "w", permissions: {
        publish: ["nowhere"], subscribe: ["_INBOX.>"] } } ] }"""
    with NatsServer(tmp_path, extra=extra) as server:
        async with PubSub(f"nats://weak:w@127.0.0.1:{server.port}") as weak:
            with pytest.raises(UnavailableError, match="may not ask"):
                await weak.topic("nowhere").publish_message(b"x")


async def test_a_payload_that_is_too_large_is_refused_alone(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("large").create()
        broker = await pubsub.broker()
        drafts = [Draft.of(b"x"), Draft.of(bytes(2 * 2**20)), Draft.of(b"y")]
        first, second, third = await broker.publish(topic.name, drafts)
        assert (first.sequence, third.sequence) == (1, 2)
        assert isinstance(second.error, InvalidArgumentError)
        assert "larger than the NATS server takes" in str(second.error)


async def test_headers_count_towards_the_largest_payload(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("brim").create()
        await topic.publish_message(bytes(2**20 - 64), message_id="x")
        with pytest.raises(InvalidArgumentError, match="headers"):
            await topic.publish_message(bytes(2**20 - 10), message_id="y")


@pytest.mark.parametrize("group_commit", [0, 1])
async def test_more_headers_than_the_server_takes_are_refused_before_they_are_sent(
    server, group_commit
):
    name = f"headers-{group_commit}"
    async with PubSub(f"{server.url}?group_commit={group_commit}") as pubsub:
        await pubsub.topic(name).create()
        broker = await pubsub.broker()
        # "NATS/1.0", 64 values and a last one, whose length makes the block as long as it may be.
        fixed = {f"key-{n:03}": "x" * 1000 for n in range(64)}
        spent = len("NATS/1.0\r\n") + 64 * (len("key-000: \r\n") + 1000) + len("last: \r\n\r\n")
        full = Draft.of(b"x", {**fixed, "last": "x" * (65_535 - spent)})
        over = Draft.of(b"x", {**fixed, "last": "x" * (65_536 - spent)})
        first, second, third = await broker.publish(name, [full, over, Draft.of(b"y")])
        assert (first.sequence, third.sequence) == (1, 2)
        assert isinstance(second.error, InvalidArgumentError)
        assert "65,536 bytes of headers" in str(second.error)
        assert [r.attributes for r in await stored(pubsub, name)] == [full.attributes, {}]


async def test_a_dead_letter_that_has_no_room_to_say_where_it_is_from_moves_all_the_same(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("brimming").create()
        dead = await pubsub.topic("brimming-dead").create()
        grave = await dead.subscription("brimming-grave").create()
        policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=5)
        sub = await topic.subscription("brimming-sub", dead_letter_policy=policy).create()
        sub.on("message", lambda m: m.reject())
        sub.open()
        await topic.publish_message(bytes(2**20 - 100), message_id="x")
        async for letter in grave:
            assert len(letter) == 2**20 - 100
            letter.ack()
            break


async def test_reserved_and_foreign_attributes(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("headers").create()
        sub = await topic.subscription("headers-sub").create()
        for key in ("Nats-Rollup", "nats-msg-id", "Penstock-Ordering-Key"):
            with pytest.raises(InvalidArgumentError, match="reserved"):
                await topic.publish_message(b"x", {key: "all"})
        odd = {"a:b": "1", "with space": " padded ", "100%": "%41", "": "x"}
        with pytest.raises(InvalidArgumentError):
            await topic.publish_message(b"x", odd)
        del odd[""]
        await topic.publish_message(b"x", odd, subject="headers.inside")
        async for message in sub:
            assert message.attributes == odd
            assert message.subject == "headers.inside"
            message.ack()
            break


async def test_subjects_outside_the_topic_are_refused(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("bounded").create()
        for subject in ("other", "bounded.*", "bounded.>", "bounded..x", "bounded. x"):
            with pytest.raises(InvalidArgumentError, match="ubject"):
                await topic.publish_message(b"x", subject=subject)


async def test_expectations_are_the_servers_to_judge(server):
    async with PubSub(server.url) as pubsub, ManagedPublisher(pubsub) as publisher:
        await pubsub.topic("expected").create()
        first = await publisher.publish_async(
            "expected", b"1", expect=Expect(topic="expected", last_sequence=0)
        )
        assert (await first.ack).sequence == 1
        for expect in (
            Expect(last_sequence=7),
            Expect(last_id="nobody"),
            Expect(last_subject_sequence=9),
            Expect(topic="another"),
        ):
            flight = await publisher.publish_async("expected", b"x", expect=expect)
            with pytest.raises(FailedPreconditionError):
                await flight.ack
            assert flight.state is FlightState.REJECTED
        ok = await publisher.publish_async(
            "expected", b"2", expect=Expect(last_id=first.id), ttl=60
        )
        assert (await ok.ack).sequence == 2


async def test_group_commit_answers_each_for_itself(tmp_path):
    with NatsServer(tmp_path, sync=True) as server:
        async with PubSub(f"{server.url}?group_commit=1") as pubsub:
            topic = await pubsub.topic("grouped").create()
            broker = await pubsub.broker()
            await broker.publish(topic.name, [Draft.of(b"0", message_id="known")])
            calls = [
                [Draft.of(b"a", message_id="a"), Draft.of(b"b")],
                [Draft.of(b"dup", message_id="known"), Draft.of(b"c", message_id="c")],
                [Draft.of(b"no", expect=Expect(last_sequence=999)), Draft.of(b"d")],
                [Draft.of(bytes(2 * 2**20)), Draft.of(b"e")],
            ]
            answers = await asyncio.gather(*(broker.publish(topic.name, c) for c in calls))
            assert [a.duplicate for a in answers[1]] == [True, False]
            assert isinstance(answers[2][0].error, FailedPreconditionError)
            assert isinstance(answers[3][0].error, InvalidArgumentError)
            records = await stored(pubsub, "grouped")
            assert sorted(r.data for r in records) == [b"0", b"a", b"b", b"c", b"d", b"e"]
            by_sequence = {r.sequence: r.data for r in records}
            assert by_sequence[answers[0][0].sequence] == b"a"
            assert by_sequence[answers[0][1].sequence] == b"b"
            assert by_sequence[answers[2][1].sequence] == b"d"


async def test_group_commit_goes_on_when_a_caller_is_cancelled(tmp_path):
    with NatsServer(tmp_path, sync=True) as server:
        async with PubSub(f"{server.url}?group_commit=1") as pubsub:
            await pubsub.topic("grouped").create()
            broker = await pubsub.broker()
            for turns in range(12):
                tasks = [
                    asyncio.ensure_future(broker.publish("grouped", [Draft.of(b"x")]))
                    for _ in range(6)
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                tasks[turns % 6].cancel()
                _, pending = await asyncio.wait(tasks, timeout=60)
                assert not pending


async def test_wrong_credentials_are_refused_at_once(tmp_path):
    extra = 'authorization { user: "right", password: "secret" }'
    with NatsServer(tmp_path, extra=extra) as server:
        host = f"127.0.0.1:{server.port}"
        for login in ("", "right:wrong@", "token@"):
            with pytest.raises(UnauthenticatedError) as caught:
                async with PubSub(f"nats://{login}{host}?timeout=3"):
                    pass
            assert "wrong" not in str(caught.value)
        async with PubSub(f"nats://right:secret@{host}") as pubsub:
            assert await pubsub.topics() == []


async def test_nobody_at_the_address_is_said_within_the_timeout():
    with pytest.raises(UnavailableError, match="is it running"):
        async with PubSub("nats://127.0.0.1:9?timeout=1"):
            pass


@pytest.mark.parametrize(
    "url", ["nats://", "nats://127.0.0.1?colour=red", "local://", "nats://h?credentials=/nowhere"]
)
async def test_addresses_that_cannot_work_are_refused(url):
    with pytest.raises(InvalidArgumentError):
        async with PubSub(url):
            pass


async def test_a_forbidden_subject_is_an_error_not_a_timeout(tmp_path):
    extra = """
    authorization { users: [
      { user: "admin", password: "a" }
      { user: "weak", password: "w", permissions: {
          publish: ["allowed", "$JS.API.>"], subscribe: ["_INBOX.>"] } }
    ] }"""
    with NatsServer(tmp_path, extra=extra) as server:
        host = f"127.0.0.1:{server.port}"
        async with PubSub(f"nats://admin:a@{host}") as admin:
            await admin.topic("allowed").create()
            await admin.topic("forbidden").create()
        async with PubSub(f"nats://weak:w@{host}") as weak:
            await weak.topic("allowed").publish_message(b"x")
            with pytest.raises(PermissionDeniedError, match="forbidden"):
                await weak.topic("forbidden").publish_message(b"x")


async def test_a_pull_that_is_cancelled_does_not_swallow_messages(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("cancelled").create()
        sub = await topic.subscription("cancelled-sub", ack_deadline=60).create()
        broker = await pubsub.broker()
        for _ in range(5):
            waiting = asyncio.ensure_future(
                broker.pull(sub.name, max_messages=10, max_bytes=10**6, wait=30)
            )
            await asyncio.sleep(0.05)
            waiting.cancel()
        await topic.publish_message(b"x")
        found = []
        for _ in range(20):
            found = await broker.pull(sub.name, max_messages=10, max_bytes=10**6, wait=0.5)
            if found:
                break
        assert [d.record.data for d in found] == [b"x"]


async def test_a_crash_on_the_last_delivery_strands_nothing(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("crashy").create()
        dead = await pubsub.topic("crashy-dead").create()
        grave = await dead.subscription("crashy-grave").create()
        policy = DeadLetterPolicy(topic="crashy-dead", max_delivery_attempts=1)
        sub = topic.subscription("crashy-sub", ack_deadline=0.5, dead_letter_policy=policy)
        await sub.create()
        await topic.publish_message(b"poison", {"kind": "x"})
        async with PubSub(server.url) as doomed:
            broker = await doomed.broker()
            [delivery] = await broker.pull("crashy-sub", max_messages=1, max_bytes=100, wait=2)
            assert delivery.delivery_attempt == 1
        await asyncio.sleep(1)  # it "crashed", and the deadline of its only attempt passed
        later = pubsub.subscription("crashy-sub")
        later.on("message", lambda m: m.ack())
        later.open()
        async for letter in grave:
            assert letter.data == b"poison"
            assert letter.attributes["kind"] == "x"
            assert letter.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "1"
            letter.ack()
            break


async def test_exactly_once_answers_come_from_the_server(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("once").create()
        sub = await topic.subscription("once-sub", enable_exactly_once_delivery=True).create()
        responses = []

        async def handle(message):
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.open()
        for _ in range(50):
            await topic.publish_message(b"x")
        await eventually(lambda: len(responses) == 50)
        assert set(responses) == {AckResponse.SUCCESS}
        assert (await sub.describe()).backlog == 0


async def test_a_closed_connection_says_so(server):
    pubsub = PubSub(server.url)
    broker = await pubsub.broker()
    await pubsub.aclose()
    with pytest.raises(ClosedError):
        await broker.admin.list_topics()
    with pytest.raises(ClosedError):
        await broker.publish("orders", [Draft.of(b"x")])


async def test_pausing_again_and_again_leaves_nothing_behind(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("paused").create()
        sub = await topic.subscription("paused-sub").create()
        attempts = []
        sub.on("message", lambda m: (attempts.append(m.delivery_attempt), m.ack()))
        sub.open()
        broker = await pubsub.broker()
        for _ in range(10):
            await asyncio.sleep(0.03)
            sub.pause()
            sub.resume()
        await asyncio.sleep(0.1)
        sub.pause()
        await asyncio.sleep(0.2)
        await topic.publish_message(b"while paused")
        await asyncio.sleep(0.2)
        sub.resume()
        await eventually(lambda: attempts)
        assert attempts == [1]
        assert len(broker._connection._client._subs) < 20


async def test_several_servers_are_tried_until_one_answers(server):
    address = f"nats://127.0.0.1:9,127.0.0.1:{server.port}"
    for _ in range(4):
        async with PubSub(address) as pubsub:
            assert await (await pubsub.broker()).ping() < 5


async def test_tokens_and_nkeys_open_the_door(tmp_path):
    import nkeys

    (tmp_path / "token").mkdir()
    with NatsServer(tmp_path / "token", extra='authorization { token: "t0ken" }') as server:
        async with PubSub(f"nats://t0ken@127.0.0.1:{server.port}") as pubsub:
            assert await pubsub.topics() == []
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    key = tmp_path / "user.nk"
    key.write_bytes(seed)
    (tmp_path / "nkey").mkdir()
    extra = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    with NatsServer(tmp_path / "nkey", extra=extra) as server:
        async with PubSub(f"nats://127.0.0.1:{server.port}?nkey={key}") as pubsub:
            assert await pubsub.topics() == []
        with pytest.raises(UnauthenticatedError):
            async with PubSub(f"nats://127.0.0.1:{server.port}?timeout=2"):
                pass


async def test_a_dead_connection_is_noticed_by_a_ping(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
    ):
        broker = await pubsub.broker()
        proxy.freeze()
        with pytest.raises(UnavailableError):
            await broker.ping()
        proxy.thaw()


async def test_a_cancelled_publisher_takes_nobody_of_its_commit_along(tmp_path):
    with NatsServer(tmp_path, sync=True) as server:
        async with PubSub(f"{server.url}?group_commit=1") as pubsub:
            topic = await pubsub.topic("grouped").create()

            async def one(n, patience):
                if n % 3 != 1:
                    await topic.publish_message(b"x")
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await topic.publish_message(b"x")

            for turn in range(15):
                tasks = [
                    asyncio.ensure_future(one(n, 0.0005 + 0.0015 * (turn % 10))) for n in range(30)
                ]
                _, pending = await asyncio.wait(tasks, timeout=60)
                assert not pending
                for task in tasks:
                    task.result()


async def test_cancelled_callers_do_not_push_others_out_of_a_commit(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?group_commit=1&timeout=3") as pubsub,
    ):
        await pubsub.topic("pushed-out").create()
        broker = await pubsub.broker()
        await broker.publish("pushed-out", [Draft.of(b"0")])
        proxy.freeze()

        def publish(drafts):
            return asyncio.ensure_future(broker.publish("pushed-out", drafts))

        first = publish([Draft.of(b"first")])
        await asyncio.sleep(0.02)
        many = [publish([Draft.of(b"many")] * 500) for _ in range(2)]
        await asyncio.sleep(0.02)
        last = publish([Draft.of(b"last")])
        await asyncio.sleep(0.02)
        for task in many:
            task.cancel()
        proxy.thaw()
        assert isinstance((await first)[0], Receipt)
        assert isinstance((await last)[0], Receipt)


async def test_thousands_of_drafts_are_committed_in_pieces(tmp_path):
    with NatsServer(tmp_path, sync=True) as server:
        async with PubSub(f"{server.url}?group_commit=1") as pubsub:
            await pubsub.topic("pieces").create()
            broker = await pubsub.broker()
            answers = await broker.publish("pieces", [Draft.of(b"%d" % n) for n in range(3500)])
            assert [a.sequence for a in answers] == list(range(1, 3501))


async def test_a_message_at_the_brim_survives_group_commit(tmp_path):
    with NatsServer(tmp_path, extra="max_payload: 20000") as server:
        async with PubSub(f"{server.url}?group_commit=1") as pubsub:
            await pubsub.topic("brimful").create()
            broker = await pubsub.broker()
            drafts = [Draft.of(bytes(19_940), message_id="big"), Draft.of(b"s", message_id="s")]
            assert [a.sequence for a in await broker.publish("brimful", drafts)] == [1, 2]


async def test_dead_letters_of_names_that_look_alike_are_kept_apart(server):
    async with PubSub(server.url) as pubsub:
        dead = await pubsub.topic("alike-dead").create()
        grave = await dead.subscription("alike-grave").create()
        policy = DeadLetterPolicy(topic="alike-dead", max_delivery_attempts=5)
        for topic_name, name in (("aaa-bbb", "ccc"), ("aaa", "bbb-ccc")):
            topic = await pubsub.topic(topic_name).create()
            sub = await topic.subscription(name, dead_letter_policy=policy).create()
            sub.on("message", lambda m: m.reject())
            sub.open()
            await topic.publish_message(topic_name.encode())
        letters = []
        async for letter in grave:
            letters.append(letter.data)
            letter.ack()
            if len(letters) == 2:
                break
        assert sorted(letters) == [b"aaa", b"aaa-bbb"]


@pytest.mark.parametrize("exactly_once", [True, False])
async def test_an_ack_that_met_a_lost_connection_is_sent_again(server, exactly_once):
    name = f"lost-ack-{exactly_once}"
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=2") as pubsub,
    ):
        topic = await pubsub.topic(name).create()
        dead = await pubsub.topic(f"{name}-dead").create()
        sub = topic.subscription(
            f"{name}-sub",
            ack_deadline=60,
            enable_exactly_once_delivery=exactly_once,
            dead_letter_policy=DeadLetterPolicy(topic=dead.name),
        )
        await sub.create()
        responses = []

        async def handle(message):
            proxy.cut()
            await asyncio.sleep(0.02)
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.on("error", lambda error: None)
        sub.open()
        await topic.publish_message(b"x")
        await eventually(lambda: responses, within=120)
        assert responses == [AckResponse.SUCCESS]
        await asyncio.sleep(0.2)
        assert (await sub.describe()).backlog == 0


async def test_a_subscription_created_again_begins_anew(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("anew").create()
        first = await topic.subscription("anew-sub", enable_exactly_once_delivery=True).create()
        broker = await pubsub.broker()
        await topic.publish_message(b"x")
        [delivery] = await broker.pull(first.name, max_messages=1, max_bytes=100, wait=2)
        await broker.settle(first.name, [Settlement(delivery.ack_id, Verb.ACK)])
        await first.delete()
        second = await topic.subscription("anew-sub").create()
        await topic.publish_message(b"y")
        [delivery] = await broker.pull(second.name, max_messages=1, max_bytes=100, wait=2)
        await broker.settle(second.name, [Settlement(delivery.ack_id, Verb.ACK)])
        await asyncio.sleep(0.2)
        assert (await second.describe()).backlog == 0


async def test_an_exactly_once_ack_of_a_subscription_that_is_gone_is_no_success(server):
    async with PubSub(server.url) as pubsub, PubSub(server.url) as other:
        topic = await pubsub.topic("gone").create()
        sub = await topic.subscription("gone-sub", enable_exactly_once_delivery=True).create()
        broker = await pubsub.broker()
        await topic.publish_message(b"x")
        [delivery] = await broker.pull(sub.name, max_messages=1, max_bytes=100, wait=2)
        await other.subscription("gone-sub").delete()
        with pytest.raises(UnavailableError):
            await broker.settle(sub.name, [Settlement(delivery.ack_id, Verb.ACK)])


async def test_closing_does_not_wait_for_a_peer_that_reads_no_more(tmp_path):
    with NatsServer(tmp_path, extra="max_payload: 8MB") as server:
        async with faulty_proxy("127.0.0.1", server.port) as proxy:
            pubsub = PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1")
            await pubsub.topic("stuck").create()
            broker = await pubsub.broker()
            proxy.freeze()
            drafts = [Draft.of(bytes(4_000_000))]
            await asyncio.gather(
                *(broker.publish("stuck", drafts) for _ in range(5)), return_exceptions=True
            )
            await asyncio.wait_for(pubsub.aclose(), 10)


async def test_a_dead_link_full_of_unsent_bytes_is_replaced(tmp_path):
    with NatsServer(tmp_path, extra="max_payload: 8MB") as server:
        async with (
            faulty_proxy("127.0.0.1", server.port) as proxy,
            PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
        ):
            topic = await pubsub.topic("replaced").create()
            broker = await pubsub.broker()
            proxy.freeze()
            drafts = [Draft.of(bytes(4_000_000))]
            await asyncio.gather(
                *(broker.publish("replaced", drafts) for _ in range(5)), return_exceptions=True
            )
            proxy.thaw()
            await publish_when_connected(topic)


async def test_an_error_nats_py_does_not_know_is_survived(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
    ):
        topic = await pubsub.topic("unknown-error").create()
        errors = [b"-ERR 'Maximum Connections Exceeded'\r\n"]
        proxy.replies = lambda data: errors.pop() if errors else data
        with pytest.raises(PenstockError):
            await topic.publish_message(b"x")
        await publish_when_connected(topic)


async def test_lost_connections_leave_no_inboxes_behind(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=2") as pubsub,
    ):
        topic = await pubsub.topic("leaky").create()
        sub = await topic.subscription("leaky-sub").create()
        sub.on("message", lambda m: m.ack())
        sub.on("error", lambda error: None)
        sub.open()
        broker = await pubsub.broker()
        for _ in range(6):
            await asyncio.sleep(0.4)
            proxy.cut()
        await asyncio.sleep(1)
        assert len(broker._connection._client._subs) < 15


async def test_what_is_refused_to_one_topic_is_not_refused_to_another(tmp_path):
    extra = """
    authorization { users: [
      { user: "admin", password: "a" }
      { user: "weak", password: "w", permissions: {
          publish: ["allowed", "$JS.API.STREAM.INFO.>"], subscribe: ["_INBOX.>"] } }
    ] }"""
    with NatsServer(tmp_path, extra=extra, sync=True) as server:
        host = f"127.0.0.1:{server.port}"
        async with PubSub(f"nats://admin:a@{host}") as admin:
            for name in ("allowed", "forbidden"):
                await admin.topic(name).create()
        async with PubSub(f"nats://weak:w@{host}") as weak, ManagedPublisher(weak) as publisher:
            flights = []
            for n in range(300):
                if n == 100:
                    bad = await publisher.publish_async("forbidden")
                flights.append(await publisher.publish_async("allowed"))
            await publisher.drain()
            assert {flight.state for flight in flights} == {FlightState.ACKED}
            assert bad.state is FlightState.REJECTED
            with pytest.raises(PermissionDeniedError):
                await weak.topic("another").create()


@pytest.mark.parametrize(
    "url",
    ["nats://h:abc", "nats://h?timeout=abc", "nats://h?timeout=-1", "tls://127.0.0.1:9?tls_ca=/no"],
)
async def test_addresses_that_make_no_sense_say_so(url):
    with pytest.raises(InvalidArgumentError):
        async with PubSub(url):
            pass


async def test_a_subscription_half_created_is_finished_by_the_next_who_creates_it(
    server, monkeypatch
):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("half").create()
        for _ in range(5):
            await topic.publish_message(b"before")
        broker = await pubsub.broker()

        async def lose(*_):
            raise UnavailableError("cut here")

        sub = topic.subscription("half-sub")
        with monkeypatch.context() as patch:
            patch.setattr(broker.admin, "_reset", lose)
            with pytest.raises(UnavailableError):
                await sub.create()
        await topic.publish_message(b"between")
        await sub.create()
        assert (await sub.describe()).backlog == 1
        with pytest.raises(AlreadyExistsError):
            await sub.create()


async def test_what_nobody_saw_is_not_dead_lettered_however_often_it_is_given_back(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("unseen").create()
        dead = await pubsub.topic("unseen-dead").create()
        grave = await dead.subscription("unseen-grave").create()
        policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=1)
        sub = await topic.subscription("unseen-sub", dead_letter_policy=policy).create()
        for n in range(12):
            await topic.publish_message(b"%d" % n)
        for _ in range(3):
            left = 3
            async for message in sub:  # More are fetched than are seen.
                message.ack()
                left -= 1
                if not left:
                    break
        await sub.close()
        async with PubSub(server.url) as doomed:
            broker = await doomed.broker()
            for _ in range(3):
                taken = await broker.pull(sub.name, max_messages=12, max_bytes=10**6, wait=1)
                back = [Settlement(d.ack_id, Verb.RELEASE) for d in taken]
                await broker.settle(sub.name, back)
                await broker.ping()
        attempts = {}
        later = pubsub.subscription(sub.name)
        later.on("message", lambda m: (attempts.update({m.data: m.delivery_attempt}), m.ack()))
        later.open()
        await eventually(lambda: len(attempts) == 3, within=30)
        assert set(attempts.values()) == {1}
        assert (await grave.describe()).backlog == 0


async def test_a_message_that_was_given_back_still_has_no_more_attempts_than_allowed(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("counted").create()
        dead = await pubsub.topic("counted-dead").create()
        grave = await dead.subscription("counted-grave").create()
        policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=2)
        sub = await topic.subscription("counted-sub", dead_letter_policy=policy).create()
        await topic.publish_message(b"poison")
        broker = await pubsub.broker()
        for _ in range(3):
            [taken] = await broker.pull(sub.name, max_messages=1, max_bytes=100, wait=5)
            await broker.settle(sub.name, [Settlement(taken.ack_id, Verb.RELEASE)])
        tries = []
        sub.on("message", lambda m: (tries.append(m.delivery_attempt), m.nack()))
        sub.open()
        async for letter in grave:
            assert letter.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "2"
            letter.ack()
            break
        assert len(tries) == 2


async def test_a_topic_that_is_made_again_knows_nothing_of_what_was_given_back_before(server):
    policy = DeadLetterPolicy(topic="remade-dead", max_delivery_attempts=2)
    async with PubSub(server.url) as pubsub:
        broker = await pubsub.broker()
        dead = await pubsub.topic(policy.topic).create()
        for verb, letters in ((Verb.RELEASE, 0), (Verb.NACK, 1)):
            topic = await pubsub.topic("remade").create()
            sub = await topic.subscription("remade-sub", dead_letter_policy=policy).create()
            await topic.publish_message(b"x")
            for _ in range(2):
                [taken] = await broker.pull(sub.name, max_messages=1, max_bytes=100, wait=5)
                await broker.settle(sub.name, [Settlement(taken.ack_id, verb)])
            assert (await dead.describe()).published == letters
            await topic.delete()
