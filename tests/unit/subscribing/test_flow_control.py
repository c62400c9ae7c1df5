"""The window, fetching ahead, and brokers that send too much."""

import asyncio
from collections.abc import Sequence

from penstock import (
    FlowControl,
    Message,
    Streaming,
)
from penstock.brokers.memory import MemoryBroker
from penstock.errors import (
    FlowControlError,
)
from penstock.message import Delivery
from penstock.testing import VirtualClock, settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import orders, publish


async def test_a_broker_that_sends_too_much_is_reported_and_the_rest_given_back():
    broker = FlakyBroker(excess=3)
    options = {"flow_control": FlowControl(max_messages=2), "streaming": Streaming(max_streams=1)}
    async with subscription_on(broker, **options) as (topic, sub):
        received, errors = [], []
        sub.on("message", received.append)
        sub.on("error", errors.append)
        await publish(topic, 5)
        sub.open()
        await settled()
        assert len(received) == 2
        assert sub.stream.statistics().messages == (await sub.describe()).leased == 2
        [error] = errors
        assert isinstance(error, FlowControlError)
        assert str(error).startswith("Flow control: max messages exceeded")
        assert error.code == 8
        broker.excess = 0
        for message in received:
            message.ack()
        await settled()
        assert len(received) == 4


class ForgetfulBroker(MemoryBroker):
    """Lends everything twice, under the same ids, as one that was killed before it wrote that
    down."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self._forgotten: list[Delivery] = []

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        if self._forgotten:
            again, self._forgotten = self._forgotten, []
            return again
        self._forgotten = await super().pull(
            subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
        )
        return self._forgotten


async def test_what_is_lent_again_under_the_same_id_is_in_hand_once():
    options = {"flow_control": FlowControl(max_messages=4), "ack_deadline": 60}
    async with subscription_on(ForgetfulBroker(), **options) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        await publish(topic, 3)
        sub.open()
        await asyncio.sleep(50)
        assert len(received) == sub.stream.statistics().messages == 3
        for message in received:
            message.ack()
        await settled()
        assert sub.stream.statistics().messages == 0


async def test_high_water_mark_fetches_ahead_but_does_not_deliver_ahead():
    options = {
        "flow_control": FlowControl(max_messages=2),
        "streaming": Streaming(max_streams=2, high_water_mark=3),
    }
    async with orders(**options) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 20)
        await settled()
        assert len(received) == 2
        assert (await sub.describe()).leased == 8
        assert sub.stream is not None
        assert sub.stream.statistics().waiting == 6
        received[0].ack()
        await settled()
        assert len(received) == 3
        assert (await sub.describe()).leased == 8


async def test_what_expires_while_it_waits_is_never_handed_over():
    options = {
        "ack_deadline": 10,
        "flow_control": FlowControl(max_messages=1),
        "streaming": Streaming(max_streams=1, high_water_mark=1),
    }
    async with orders(**options) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 2)
        await asyncio.sleep(5)
        received[0].modify_ack_deadline(300)
        await asyncio.sleep(100)
        assert len(received) == 1
        received[0].ack()
        await asyncio.sleep(1)
        assert len(received) == 2
        assert sub.stream is not None
        assert sub.stream.holds(received[1])
        received[1].ack()


async def test_the_window_is_exact_after_every_kind_of_ending():
    async with orders(ack_deadline=10, flow_control=FlowControl(max_messages=50)) as (topic, sub):
        endings = [
            lambda m: m.ack(),
            lambda m: m.nack(),
            lambda m: m.nack(5),
            lambda m: m.reject(),
            lambda m: m.modify_ack_deadline(0),
            lambda m: m.modify_ack_deadline(20),
            lambda m: None,
            lambda m: 1 / 0,
        ]

        async def handle(message):
            ending = endings[int(message.data) % len(endings)]
            if int(message.data) % 3 == 0 and message.delivery_attempt < 3:
                await asyncio.sleep(int(message.data) % 15)
            if message.delivery_attempt > 2:
                message.ack()
            else:
                ending(message)

        sub.on("message", handle)
        sub.on("error", lambda error: None)
        sub.open()
        await publish(topic, 400)
        await asyncio.sleep(3000)
        assert sub.stream is not None
        statistics = sub.stream.statistics()
        assert (statistics.messages, statistics.bytes, statistics.waiting) == (0, 0, 0)
        window = sub.stream.deliveries.window
        sub.pause()
        await settled()
        assert (window.reserved, window.reserved_bytes) == (0, 0)
        assert (await sub.describe()).backlog == 0


async def test_the_window_counts_attributes():
    attributes = {f"key-{n}": "ä" * 500 for n in range(50)}
    size = 1 + sum(len(key) + 1000 for key in attributes)
    async with orders(flow_control=FlowControl(max_bytes=3 * size)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        for _ in range(100):
            await topic.publish_message(b"x", attributes)
        sub.open()
        await settled()
        assert sub.stream is not None
        assert len(received) == 3
        assert sub.stream.statistics().bytes == 3 * size
        assert received[0].length == 1
        received[0].ack()
        received[1].nack()
        await settled()
        assert len(received) == 5
        assert sub.stream.statistics().bytes == 3 * size


async def test_a_window_smaller_than_a_messages_attributes_lets_one_through_at_a_time():
    async with orders(flow_control=FlowControl(max_bytes=1024)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        for _ in range(100):
            await topic.publish_message(b"x", {f"key-{n}": "v" * 1000 for n in range(50)})
        sub.open()
        await settled()
        assert len(received) == 1
        for taken in range(1, 10):
            received[-1].ack()
            await settled()
            assert len(received) == taken + 1


async def test_pulls_that_share_what_room_is_left_do_not_pass_the_bound_together():
    async with orders(flow_control=FlowControl(max_bytes=3000)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        for _ in range(5):
            await topic.publish_message(b"x" * 500)
        sub.open()
        await settled()
        for message in received[:]:
            message.ack()  # Each makes room in which another pull could wait.
            await settled()
        for _ in range(5):
            await topic.publish_message(b"x" * 2900)
        await settled()
        assert sub.stream is not None
        assert sub.stream.statistics().bytes < 3000 + 2900
        while len(received) < 10:
            received[-1].ack()
            await settled()


async def test_a_window_that_is_made_smaller_by_a_handler_is_kept_to_at_once():
    async with orders() as (topic, sub):
        received = []

        def handle(message):
            received.append(message)
            if len(received) == 2:
                sub.set_options(flow_control=FlowControl(max_messages=3))

        await publish(topic, 10)
        sub.on("message", handle)
        sub.open()
        await settled()
        assert len(received) == 3
