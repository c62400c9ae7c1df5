"""What the broker's answers mean for rows of the outbox, on SQLite and PostgreSQL."""

import asyncio

import pytest

from penstock import errors
from penstock.message import Draft
from penstock.testing.waiting import eventually
from tests.support.outbox_scenes import drafts, ids, outbox_on, until
from tests.support.troubled_broker import Troubled, failing

pytestmark = pytest.mark.real_time


async def test_a_key_keeps_its_order_through_failures_and_others_go_past_it(url):
    broker = Troubled(failing(3, only={"a-1"}))
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(4, "a"), *drafts(4, "b"), *drafts(2))
        async with scene.relay() as relay:
            await scene.drained()
        arrived = ids(await scene.stored())
        for key, count in (("a", 4), ("b", 4)):
            assert [i for i in arrived if i[0] == key] == [f"{key}-{n}" for n in range(count)]
        assert arrived.index("b-3") < arrived.index("a-1")
        assert relay.statistics().retried == 3
        assert await scene.column("attempts", "a-1") == 4
        # What follows a failed row has not even been sent.
        sent = [message_id for call in broker.calls for message_id in call]
        assert sent.index("a-2") > max(n for n, sent_id in enumerate(sent) if sent_id == "a-1")


async def test_a_broker_out_of_reach_costs_no_attempts_and_then_everything_arrives(url, caplog):
    caplog.set_level("INFO")
    down = [True]
    broker = Troubled(lambda draft: errors.UnavailableError("down") if down[0] else None)
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(5), *drafts(5, "a"))
        async with scene.relay(max_attempts=2, batch=2) as relay:
            await eventually(lambda: len(broker.calls) > 8)
            while "down" not in (await scene.column("last_error", "a-0") or ""):
                await asyncio.sleep(0.01)
            assert await scene.column("attempts", "a-0") == 0
            down[0] = False
            await scene.drained()
        assert relay.statistics().dead == 0
        assert sorted(ids(await scene.stored())) == sorted(
            f"{k}-{n}" for k in "am" for n in range(5)
        )
        assert await scene.column("last_error", "a-0") is None
    # However often it was tried: that it began, and that it is over.
    told = [r.levelname for r in caplog.records if "out of reach of relay" in r.getMessage()]
    assert told == ["WARNING", "INFO"]


async def test_one_topic_out_of_reach_does_not_hold_up_another(url):
    broker = Troubled(lambda d: errors.UnavailableError("down") if d.data == b"x" else None)
    async with outbox_on(url, broker) as scene:
        await scene.pubsub.topic("stuck").create()
        await scene.add(*(Draft.of(b"x") for _ in range(50)), topic="stuck")
        await scene.add(*drafts(5))
        async with scene.relay(batch=5):

            async def arrived():
                return len(await scene.stored()) == 5

            await until(arrived)
        assert await scene.outbox.pending() == 50


@pytest.mark.parametrize("raises", [errors.UnavailableError, OSError])
async def test_whatever_the_broker_raises_the_rows_are_kept(url, raises):
    class Raising(Troubled):
        async def publish(self, topic, drafts):
            if len(self.calls) < 2:
                self.calls.append([])
                raise raises("boom")
            return await super().publish(topic, drafts)

    async with outbox_on(url, Raising()) as scene:
        await scene.add(*drafts(2))
        async with scene.relay():
            await scene.drained()
        assert len(await scene.stored()) == 2


async def test_a_publish_that_never_answers_is_given_up_and_tried_again(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(2))
        broker.open.clear()
        async with scene.relay(timeout=0.05):
            await eventually(lambda: len(broker.calls) > 1)
            broker.open.set()
            await scene.drained()
        assert len(await scene.stored()) == 2


async def test_what_can_never_be_published_dies_and_blocks_nothing(url):
    broker = Troubled(failing(99, errors.InvalidArgumentError, only={"a-1", "m-1"}))
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(3, "a"), *drafts(3))
        async with scene.relay() as relay:
            await scene.drained()
        assert sorted(ids(await scene.stored())) == ["a-0", "a-2", "m-0", "m-2"]
        dead = {row.message_id: row.reason for row in await scene.outbox.dead()}
        reason = "InvalidArgumentError: not now"
        assert dead == {"a-1": reason, "m-1": reason}
        assert relay.statistics().dead == 2


async def test_a_row_that_keeps_failing_dies_after_its_attempts(url):
    broker = Troubled(failing(99))
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(1))
        async with scene.relay(max_attempts=3):
            await scene.drained()
        assert len(broker.calls) == 3
        [dead] = await scene.outbox.dead()
        assert (dead.attempts, dead.reason) == (3, "ResourceExhaustedError: not now")


async def test_a_topic_that_is_created_late_gets_its_messages(url):
    async with outbox_on(url) as scene, scene.relay():
        await scene.add(*drafts(2, "a"), topic="later")

        async def failed():
            return "later" in str(await scene.column("last_error", "a-0"))

        await until(failed)
        await scene.pubsub.topic("later").create(message_retention=60)
        await scene.drained()
        assert ids(await scene.stored("later")) == ["a-0", "a-1"]
