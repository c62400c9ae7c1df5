"""Messages that are sent by whoever committed them, as one row. What is said of
rows as well is in `test_held_outbox.py`."""

import pytest
from sqlalchemy import select

from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.errors import InvalidArgumentError
from penstock.message import Draft, PublishFault
from penstock.transactional.outbox_table import bundles, table
from tests.support.outbox_scenes import drafts, ids, outbox_on
from tests.support.statements import statements_of
from tests.support.troubled_broker import Away

pytestmark = pytest.mark.real_time
ALL = ["m-0", "m-1", "m-2"]


async def add(scene, outbox, *messages, topic="orders"):
    await scene.add_to(outbox, *messages, way="add_new", topic=topic)


async def test_what_a_transaction_says_to_a_topic_is_one_row_until_it_is_sent(url):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        await add(scene, relay.held_outbox(), *drafts(3))
        assert await scene.rows() == [1, 0]
        await relay.send_held()
        assert await scene.rows() == [0, 0]


class Choosy(MemoryBroker):
    """Refuses the second message the first time."""

    refused = False

    async def publish(self, topic, messages):
        answers = list(await super().publish(topic, [messages[0], *messages[2:]]))
        if self.refused:
            return await super().publish(topic, messages)
        self.refused = True
        return [answers[0], PublishFault(InvalidArgumentError("no")), *answers[1:]]


async def test_what_a_broker_did_not_store_becomes_a_row_and_the_others_are_done(url):
    async with outbox_on(url, Choosy(Clock())) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await add(scene, outbox, *drafts(3))
        assert await relay.send_held() == 3
        assert relay.statistics().published == 2
        assert await scene.rows() == [0, 1]
        status = await outbox.status()
        assert (status.pending, status.claimed, status.dead) == (1, 0, 0)
        async with scene.database.transaction(reading=True) as connection:
            assert (await connection.scalar(select(table.c.message_id))) == "m-1"


async def test_a_large_transaction_is_several_rows_and_a_death_loses_none_of_them(url):
    async with outbox_on(url) as scene:
        await add(scene, scene.relay().held_outbox(), *drafts(2500))
        assert await scene.rows() == [3, 0]
        await scene.time_passes()
        async with scene.relay(batch=1000) as relay:
            relay.wake()
            await scene.drained()
        assert sorted(ids(await scene.stored())) == sorted(one.message_id for one in drafts(2500))


async def test_what_others_left_has_its_turn_while_something_is_always_in_hand(url):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add(*drafts(2, "row"))
        for number in range(200):
            await add(scene, outbox, *drafts(1, start=number))
            await relay._deal_with(await relay._next())
            if "row-1" in ids(await scene.stored()):
                break
        assert "row-1" in ids(await scene.stored())
        # And so has what is in hand.
        await scene.add(*drafts(1, "more"))
        await add(scene, outbox, *drafts(1, start=1000))
        await relay._deal_with(await relay._next())
        assert ids(await scene.stored())[-1] == "m-1000"


async def test_what_no_check_would_pass_holds_up_nobody_when_its_process_is_killed(url):
    async with outbox_on(url) as scene:
        strange = Draft(b"", {"long": "v" * 2000}, message_id="strange")
        await add(scene, scene.relay().held_outbox(), strange)
        await scene.time_passes()
        await scene.add(*drafts(1))
        assert await scene.relay().step() == 2
        assert ids(await scene.stored()) == ["m-0", "strange"]


async def test_what_has_a_key_or_no_id_is_a_row_of_its_own(url):
    async with outbox_on(url) as scene:
        outbox = scene.relay().held_outbox()
        await add(scene, outbox, *drafts(1, "key"))
        await add(scene, outbox, Draft(b""))
        assert await scene.rows() == [0, 2]


async def test_what_becomes_rows_while_somebody_counts_is_counted(url):
    """On PostgreSQL each statement sees what is committed when it begins."""
    async with outbox_on(url) as scene:
        await add(scene, scene.relay().held_outbox(), *drafts(3))
        await scene.time_passes()
        for count in (scene.outbox.pending, scene.outbox.status):
            with statements_of(scene.database) as told:
                await count()
            assert sum("penstock_outbox_bundles" in one for one in told) == 1
            assert all("state = 'pending'" in one for one in told if "_bundles" in one)
        assert await scene.outbox.pending() == (await scene.outbox.status()).pending == 3


async def test_what_is_in_hand_need_not_be_hastened(url):
    async with outbox_on(url) as scene:
        outbox = scene.relay().held_outbox()
        await add(scene, outbox, *drafts(11, start=1))
        async with scene.database.transaction() as connection:
            assert await outbox.hasten(connection, "orders", "m-10")
            assert await outbox.hasten(connection, "orders", "m-1")
            assert not await outbox.hasten(connection, "orders", "m-")
            assert not await outbox.hasten(connection, "orders", "m-12")
            assert not await outbox.hasten(connection, "others", "m-1")


async def test_who_wants_to_know_is_told_when_something_was_stored_and_only_then(url):
    async with outbox_on(url, Choosy(Clock())) as scene:
        relay = scene.relay()
        told = []
        with relay.telling(lambda: told.append(1)):
            await add(scene, relay.held_outbox(), *drafts(3))
            await relay.send_held()
        assert told == [1]
        await add(scene, relay.held_outbox(), *drafts(1), topic="missing")
        with relay.telling(lambda: told.append(1)):
            await relay.send_held()
        assert told == [1]


async def test_what_becomes_rows_is_as_old_as_it_was(url):
    async with outbox_on(url, Away()) as scene:
        relay = scene.relay()
        await add(scene, relay.held_outbox(), *drafts(1))
        await add(scene, scene.relay().held_outbox(), *drafts(1, start=1))
        async with scene.database.transaction() as connection:
            hour = bundles.c.created_at - 3600
            await connection.execute(bundles.update().values(created_at=hour))
        await relay.send_held()
        await scene.time_passes()
        await scene.relay().step()
        assert await scene.rows() == [0, 2]
        async with scene.database.transaction(reading=True) as connection:
            since = (await connection.scalars(select(table.c.created_at))).all()
        assert max(since) - min(since) < 1800
        assert (await scene.outbox.status()).oldest_age >= 3600


async def test_a_bundle_that_cannot_be_read_is_kept_and_holds_up_nobody(url, caplog):
    async with outbox_on(url) as scene:
        await add(scene, scene.relay().held_outbox(), Draft(b"secret", message_id="m-9"))
        async with scene.database.transaction() as connection:
            await connection.execute(bundles.update().values(messages=b"\x91\xa6secret"))
        await add(scene, scene.relay().held_outbox(), *drafts(3))
        await scene.time_passes()
        assert await scene.relay().step() == 3
        assert await scene.relay().step() == 0
        assert ids(await scene.stored()) == ALL
        assert await scene.outbox.pending() == 1
        assert caplog.text.count("Messages for topic 'orders' wait in row") == 1
        assert "secret" not in caplog.text


class Forgetful(MemoryBroker):
    """Answers all but the last."""

    async def publish(self, topic, messages):
        return await super().publish(topic, messages[:-1])


async def test_a_message_that_is_not_answered_is_not_taken_for_sent(url):
    async with outbox_on(url, Forgetful(Clock())) as scene:
        relay = scene.relay()
        await add(scene, relay.held_outbox(), *drafts(3))
        await relay.send_held()
        assert await scene.rows() == [0, 3]
        assert relay.statistics().published == 0


async def test_messages_go_in_the_order_in_which_they_were_committed(url):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        for number in range(12):
            await add(scene, outbox, *drafts(1, start=number))
        await relay.send_held()
        for number in range(12, 24):
            await add(scene, outbox, *drafts(1, start=number))
        await scene.time_passes()
        while await scene.relay(batch=5).step():
            pass
        assert ids(await scene.stored()) == [f"m-{number}" for number in range(24)]
