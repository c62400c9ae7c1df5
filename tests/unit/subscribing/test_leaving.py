"""A handler that wants the program to end is obeyed at once, and keeps nothing from others."""

import asyncio

import pytest

from penstock.brokers.memory import MemoryBroker
from penstock.callbacks import leave_later
from penstock.testing import VirtualClock, run_real, run_virtual
from penstock.testing.clock import VirtualTimeLoop
from tests.support.fakes import subscription_on
from tests.support.scenes import now, publish


class Program:
    """Receives five messages with a handler until it ends; then notes when, what the handler saw
    and how many messages others can have at once."""

    def __init__(self, handler, **options):
        self.handler = handler
        self.options = options
        self.errors = []
        self.calls = 0

    def handle(self, message):
        self.calls += 1
        return self.handler(message)

    async def main(self):
        broker = MemoryBroker(VirtualClock())
        try:
            async with subscription_on(broker, ack_deadline=600, **self.options) as (topic, sub):
                await publish(topic, 5)
                began = now()
                sub.on("message", self.handle)
                sub.on("error", self.errors.append)
                sub.open()
                await sub.wait_closed()
        finally:
            self.took = now() - began
            free = await broker.pull("billing", max_messages=10, max_bytes=1000, wait=0)
            self.left_to_others = len(free)


def plain(wish):
    def handle(message):
        raise wish

    return handle


def asynchronous(wish):
    async def handle(message):
        await asyncio.sleep(1)
        raise wish

    return handle


def only_the_first_of_those_that_wait(wish):
    async def handle(message):
        await asyncio.sleep(1 if message.data == b"0" else 1000)
        raise wish

    return handle


@pytest.mark.parametrize("wish", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [plain, asynchronous, only_the_first_of_those_that_wait])
def test_it_ends_at_once_and_all_that_was_in_hand_is_given_back(kind, wish):
    program = Program(kind(wish))
    with pytest.raises(wish):
        run_virtual(program.main())
    assert program.took <= 1
    assert program.left_to_others == 5
    assert program.errors == []


@pytest.mark.parametrize("wish", [SystemExit, KeyboardInterrupt])
def test_from_a_thread_it_is_obeyed_as_well(wish):
    program = Program(plain(wish), threads=2)
    with pytest.raises(wish):
        run_real(program.main())
    assert program.left_to_others == 5


def test_no_handler_is_called_after_one_that_wants_to_end():
    program = Program(plain(SystemExit))
    with pytest.raises(SystemExit):
        run_virtual(program.main())
    assert program.calls == 1


def test_it_ends_with_the_code_that_the_handler_gave():
    with pytest.raises(SystemExit) as ended:
        run_virtual(Program(asynchronous(SystemExit(3))).main())
    assert ended.value.code == 3


def after_others(message):
    async def handle():
        try:
            await asyncio.sleep(1000)
        finally:
            raise SystemExit(4)

    return handle()


@pytest.mark.parametrize("second", [asynchronous(SystemExit(4)), after_others])
def test_subscriptions_that_want_to_end_together_let_each_other_close(second):
    free = []

    async def main():
        broker = MemoryBroker(VirtualClock())
        try:
            async with subscription_on(broker, ack_deadline=600) as (topic, sub):
                other = await topic.subscription("shipping", ack_deadline=600).create()
                await publish(topic, 5)
                for one, handler in ((sub, asynchronous(SystemExit(3))), (other, second)):
                    one.on("message", handler)
                    one.open()
                await sub.wait_closed()
        finally:
            for name in ("billing", "shipping"):
                left = await broker.pull(name, max_messages=10, max_bytes=1000, wait=0)
                free.append((now(), len(left)))

    with pytest.raises(SystemExit) as ended:
        run_virtual(main())
    assert ended.value.code == 3
    assert free == [(1.0, 5), (1.0, 5)]


@pytest.mark.parametrize("behind", [0, 2])
def test_what_was_acked_before_the_end_is_known_to_a_slow_broker(behind):
    class SlowBroker(MemoryBroker):
        async def settle(self, subscription, settlements):
            await asyncio.sleep(0.5)
            return await super().settle(subscription, settlements)

    left = []

    async def handle(message):
        await asyncio.sleep(int(message.data) / 10)
        message.ack()
        if message.data == b"%d" % behind:
            raise SystemExit

    async def main():
        broker = SlowBroker(VirtualClock())
        try:
            async with subscription_on(broker, ack_deadline=600) as (topic, sub):
                await publish(topic, 5)
                sub.on("message", handle)
                sub.open()
                await sub.wait_closed()
        finally:
            await asyncio.sleep(601)  # What is on loan to us comes back.
            pulled = await broker.pull("billing", max_messages=10, max_bytes=1000, wait=0)
            left.extend(sorted(int(d.record.data) for d in pulled))

    with pytest.raises(SystemExit):
        run_virtual(main())
    assert left == list(range(behind + 1, 5))


def test_a_loop_that_went_on_is_told_of_later_wishes():
    async def wish():
        leave_later(SystemExit(3))
        await asyncio.sleep(1)

    loop = VirtualTimeLoop()
    for _ in range(2):
        with pytest.raises(SystemExit):
            loop.run_until_complete(wish())
        loop.run_until_complete(asyncio.sleep(100))
    loop.close()
