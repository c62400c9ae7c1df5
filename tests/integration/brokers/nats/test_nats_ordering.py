"""Order per key on JetStream, whatever happens to those who receive."""

import asyncio
import subprocess
import sys
from collections import defaultdict

import pytest

from penstock import DeadLetterPolicy, PubSub, RetryPolicy
from penstock.testing import eventually
from penstock.testing.faults import faulty_proxy
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


class Handled:
    """What was handled and acked, by key."""

    def __init__(self):
        self.by_key = defaultdict(list)
        self.running = defaultdict(int)
        self.overlaps = 0

    def note(self, message):
        self.by_key[message.ordering_key].append(int(message.data))
        message.ack()

    async def slowly(self, message):
        key = message.ordering_key
        self.running[key] += 1
        self.overlaps += self.running[key] > 1
        await asyncio.sleep(0.01)
        self.running[key] -= 1
        self.note(message)

    @property
    def count(self):
        return sum(map(len, self.by_key.values()))

    def check(self, messages, keys):
        assert self.overlaps == 0
        for key in range(keys):
            assert self.by_key[f"key-{key}"] == list(range(key, messages, keys))


async def make(pubsub, name, **options):
    topic = await pubsub.topic(name).create()
    sub = topic.subscription(f"{name}-sub", message_ordering=True, **options)
    return topic, await sub.create()


async def publish(topic, numbers, keys=3):
    for n in numbers:
        await topic.publish_message(b"%d" % n, ordering_key=f"key-{n % keys}")


async def test_a_handle_by_name_alone_keeps_the_order(server):
    async with PubSub(server.url) as pubsub:
        topic, sub = await make(pubsub, "by-name")
        handled = Handled()
        handle = pubsub.subscription(sub.name)
        handle.on("message", handled.slowly)
        handle.open()
        await publish(topic, range(40), keys=2)
        await eventually(lambda: handled.count == 40)
        handled.check(40, 2)


async def test_closing_with_one_unsettled_and_opening_again_keeps_the_order(server):
    async with PubSub(server.url) as pubsub:
        topic, sub = await make(pubsub, "reopened")
        await publish(topic, range(30))
        held = []
        sub.on("message", lambda m: held.append(m) if int(m.data) in (3, 4) else m.ack())
        sub.open()
        await eventually(lambda: len(held) == 2)
        await sub.close(timeout=0)
        handled = Handled()
        again = pubsub.subscription(sub.name)
        again.on("message", handled.note)
        again.open()
        await publish(topic, range(30, 60))
        await eventually(lambda: handled.by_key["key-0"][-1:] == [57] and handled.count >= 38)
        assert handled.by_key["key-0"] == list(range(3, 60, 3))
        assert handled.by_key["key-1"] == list(range(4, 60, 3))


async def test_leaving_a_loop_with_one_unsettled_keeps_the_order(server):
    async with PubSub(server.url) as pubsub:
        topic, sub = await make(pubsub, "left", ack_deadline=2)
        await publish(topic, range(20), keys=1)
        seen = []
        async for message in sub:
            seen.append(int(message.data))
            if len(seen) == 4:
                break  # It is not settled, and comes back when its deadline has passed.
            message.ack()
        async for message in sub:
            seen.append(int(message.data))
            message.ack()
            if len(seen) == 21:
                break
        assert seen == [0, 1, 2, 3, *range(3, 20)]


@pytest.mark.parametrize("how", ["delay", "policy"])
async def test_a_message_that_comes_back_late_is_waited_for(server, how):
    async with PubSub(server.url) as pubsub:
        policy = RetryPolicy(minimum_backoff=6, maximum_backoff=6) if how == "policy" else None
        topic, sub = await make(pubsub, f"late-{how}", retry_policy=policy)
        seen = []

        def handle(message):
            seen.append((message.ordering_key, int(message.data)))
            if message.data == b"0" and message.delivery_attempt == 1:
                message.nack(6) if how == "delay" else message.nack()
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, range(10), keys=2)
        await eventually(lambda: len(seen) == 11, within=30)
        assert [n for key, n in seen if key == "key-0"] == [0, 0, 2, 4, 6, 8]
        assert seen.index(("key-1", 9)) < seen.index(("key-0", 2))


KILLED = """
import asyncio, sys
from penstock import DeadLetterPolicy, PubSub
async def main(url, name):
    async with PubSub(url) as pubsub:
        sub = pubsub.subscription(name)
        def handle(message):
            if int(message.data) < 6:
                message.ack()
            print(message.data.decode(), flush=True)
        sub.on("message", handle)
        sub.open()
        await asyncio.sleep(60)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_key_waits_for_a_spent_message_that_cannot_be_moved_to_the_dead_letters(server):
    async with PubSub(server.url) as pubsub:
        letters = await pubsub.topic("spent-dead").create()
        policy = DeadLetterPolicy(topic=letters.name, max_delivery_attempts=5)
        topic, sub = await make(pubsub, "spent", dead_letter_policy=policy)
        await publish(topic, range(2), keys=1)
        broker = await pubsub.broker()
        for attempt in range(1, 6):
            [lent] = await broker.pull(sub.name, max_messages=9, max_bytes=10**6, wait=5)
            assert (lent.record.data, lent.delivery_attempt) == (b"0", attempt)
            # As if its lease had run out: nobody says that it was given back.
            await broker._pulling.write_acks([(lent.ack_id.encode(), b"-NAK")])
        await letters.delete()
        assert not await broker.pull(sub.name, max_messages=9, max_bytes=10**6, wait=1)


async def test_a_consumer_that_is_killed_leaves_its_keys_in_order(server):
    async with PubSub(server.url) as pubsub:
        topic, sub = await make(pubsub, "killed", ack_deadline=3)
        await publish(topic, range(30))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLED, server.url, sub.name), stdout=subprocess.PIPE
        )
        printed = [int(await process.stdout.readline()) for _ in range(9)]
        assert sorted(printed) == list(range(9))
        process.kill()
        await process.wait()
        handled = Handled()
        sub.on("message", handled.note)
        sub.open()
        await publish(topic, range(30, 60))
        await eventually(lambda: handled.count >= 54, within=60)
        for key in range(3):
            assert handled.by_key[f"key-{key}"] == list(range(6 + key, 60, 3))


async def test_connections_that_are_cut_keep_the_order(server):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=2") as pubsub,
        PubSub(server.url) as publisher,
    ):
        topic, sub = await make(pubsub, "cut", ack_deadline=2)
        latest, disorder = defaultdict(lambda: -1), []

        async def handle(message):
            number, key = int(message.data), message.ordering_key
            # The ack of the last one may be lost with the connection: that one may come again.
            if number < latest[key]:
                disorder.append((key, latest[key], number))
            latest[key] = number
            await asyncio.sleep(0.002)
            message.ack()

        sub.on("message", handle)
        sub.on("error", lambda error: None)
        sub.open()
        for n in range(300):
            if n % 75 == 50:
                proxy.cut()
            await publish(publisher.topic(topic.name), [n])
        last = [297, 298, 299]
        await eventually(lambda: [latest[f"key-{k}"] for k in range(3)] == last, within=90)
        assert disorder == []


async def test_of_two_who_receive_one_is_served_and_the_other_takes_over(server):
    async with (
        PubSub(server.url) as first,
        PubSub(server.url) as second,
        PubSub(server.url) as publisher,
    ):
        topic, sub = await make(publisher, "two")
        seen = []

        def receive(pubsub, name):
            mine = pubsub.subscription(sub.name)
            mine.on("message", lambda m: (seen.append((name, int(m.data))), m.ack()))
            mine.open()
            return mine

        one = receive(first, "first")
        await publish(topic, range(10), keys=1)
        await eventually(lambda: len(seen) == 10)
        receive(second, "second")
        await publish(topic, range(10, 20), keys=1)
        await eventually(lambda: len(seen) == 20)
        assert {name for name, _ in seen} == {"first"}
        await one.close()
        await publish(topic, range(20, 30), keys=1)
        await eventually(lambda: len(seen) == 30, within=30)
        assert [n for _, n in seen] == list(range(30))
        assert seen[-1][0] == "second"


async def test_what_was_given_back_before_says_nothing_of_what_another_has_now(server):
    """One closes with five, another is done with them and closes while its handler has a sixth: the
    next of that one's key is not for whoever opens again."""
    async with PubSub(server.url) as one, PubSub(server.url) as other:
        topic, _ = await make(one, "given-back", ack_deadline=60)
        first = one.topic("given-back").subscription("given-back-sub")
        in_hand, acked, may_end, has_sixth = [], [], asyncio.Event(), asyncio.Event()

        async def keep(message):
            in_hand.append(message)
            await asyncio.Event().wait()

        async def ack(message):
            if message.ordering_key == "sixth":
                has_sixth.set()
                await may_end.wait()
            acked.append(message.data)
            message.ack()

        first.on("message", keep)
        first.open()
        for number in range(5):
            await topic.publish_message(b"%d" % number, ordering_key=f"key-{number}")
        await eventually(lambda: len(in_hand) == 5)
        await first.close(timeout=0)
        second = other.topic("given-back").subscription("given-back-sub")
        second.on("message", ack)
        second.open()
        await eventually(lambda: len(acked) == 5)
        await topic.publish_message(b"5", ordering_key="sixth")
        await has_sixth.wait()
        closing = asyncio.ensure_future(second.close())
        await asyncio.sleep(0.3)
        await topic.publish_message(b"6", ordering_key="sixth")
        again = one.topic("given-back").subscription("given-back-sub")
        seen = []
        again.on("message", lambda message: (seen.append(message.data), message.ack()))
        again.open()
        await asyncio.sleep(1)
        assert seen == []
        may_end.set()
        await closing
        await eventually(lambda: seen == [b"6"])
        await again.close()
        await topic.delete()
