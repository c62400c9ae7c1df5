"""Messages that are sent by whoever committed them: no claim, and as exact as with one."""

import asyncio
import gc

import pytest
from sqlalchemy import select

from penstock import Backoff
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.message import Draft
from penstock.transactional.outbox_table import table
from penstock.transactional.row_leases import Outcomes
from tests.support.outbox_scenes import drafts, ids, outbox_on
from tests.support.statements import statements_of
from tests.support.troubled_broker import Away

pytestmark = pytest.mark.real_time
ALL = ["m-0", "m-1", "m-2"]


@pytest.fixture(params=["add", "add_new"])
def way(request) -> str:
    """How messages are added: a row of each, or one of all of them."""
    return request.param


async def test_what_was_committed_is_sent_without_a_claim_and_settled(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)
        status = await outbox.status()
        assert (status.pending, status.claimed, await outbox.pending()) == (3, 3, 3)
        assert (await outbox.status("others")).pending == 0
        # Nobody else takes them meanwhile.
        assert await scene.relay().step() == 0
        with statements_of(scene.database) as told:
            assert await relay.send_held() == 3
        settled = {"add": "UPDATE", "add_new": "DELETE"}[way]
        assert [one.split()[0] for one in told if "penstock_outbox" in one] == ["SELECT", settled]
        assert ids(await scene.stored()) == ALL
        assert await outbox.pending() == 0
        assert relay.statistics().published == 3
        assert await relay.send_held() == 0


async def test_what_was_sent_is_marked_in_transactions_of_others(url, way):
    """Which may fail for a reason of theirs, and are made again."""

    async def again(work):
        with pytest.raises(ZeroDivisionError):
            async with scene.database.transaction() as connection:
                await work(connection)
                raise ZeroDivisionError
        async with scene.database.transaction() as connection:
            await work(connection)

    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)
        with relay.settling_in(again):
            assert await relay.send_held() == 3
        assert ids(await scene.stored()) == ALL and await outbox.pending() == 0
        assert (relay.statistics().published, relay.statistics().lost) == (3, 0)
        await scene.add_to(outbox, *drafts(3, start=3), way=way)
        assert await relay.send_held() == 3 and await outbox.pending() == 0


async def test_a_row_that_was_sent_says_where_it_is_in_its_topic(url):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        await scene.add_to(relay.held_outbox(), *drafts(3))
        await relay.send_held()
        async with scene.database.transaction(reading=True) as connection:
            rows = await connection.execute(select(table.c.sequence, table.c.attempts))
        assert sorted(tuple(row) for row in rows) == [(1, 1), (2, 1), (3, 1)]


async def test_what_was_rolled_back_is_not_sent(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        with pytest.raises(ZeroDivisionError):
            async with scene.database.transaction() as connection:
                await getattr(outbox, way)(connection, "orders", drafts(3))
                raise ZeroDivisionError
        await scene.add_to(outbox, *drafts(1, start=7), way=way)
        assert await relay.send_held() == 1
        assert ids(await scene.stored()) == ["m-7"]


async def test_what_never_was_committed_is_forgotten_when_its_lease_is_over(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay(lease=0.001)
        outbox = relay.held_outbox()
        with pytest.raises(ZeroDivisionError):
            async with scene.database.transaction() as connection:
                await getattr(outbox, way)(connection, "orders", drafts(3))
                raise ZeroDivisionError
        in_hand = {"add": (3, 0), "add_new": (0, 1)}[way]
        assert (len(outbox._added), len(outbox._bundles)) == in_hand
        await asyncio.sleep(0.01)
        assert await relay.send_held() == 0
        assert not outbox._added
        assert not outbox._bundles
        assert await scene.stored() == []


async def test_what_is_committed_while_others_are_sent_is_sent_the_next_time(url):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(1))
        if scene.database.dialect == "sqlite":
            # One transaction at a time: nothing can be open meanwhile.
            await relay.send_held()
            await scene.add_to(outbox, *drafts(1, start=1))
        else:
            async with scene.database.transaction() as connection:
                await outbox.add(connection, "orders", drafts(1, start=1))
                assert await relay.send_held() == 1
        assert await relay.send_held() == 1
        assert ids(await scene.stored()) == ["m-0", "m-1"]


async def test_what_a_process_did_not_send_before_it_died_is_everybodys_when_its_lease_ends(
    url, way
):
    async with outbox_on(url) as scene:
        await scene.add_to(scene.relay().held_outbox(), *drafts(3), way=way)
        other = scene.relay()
        assert await other.step() == 0
        await scene.time_passes()
        assert (await other._claims.look()).rows
        assert not (await scene.relay(topics=["others"])._claims.look()).rows
        assert await scene.relay(topics=["others"]).step() == 0
        assert await other.step() == 3
        stored = await scene.stored()
        assert [(one.message_id, one.data, one.attributes) for one in stored] == [
            (one.message_id, one.data, one.attributes) for one in drafts(3)
        ]
        assert await scene.rows() == [0, 3]


async def test_a_process_that_died_before_it_settled_leaves_what_is_stored_once(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)

        async def die(*_, **__):
            raise UnavailableError("killed")

        relay._settle = die
        with pytest.raises(UnavailableError):
            await relay.send_held()
        assert await outbox.pending() == 3
        await scene.time_passes()
        assert await scene.relay().step() == 3
        assert ids(await scene.stored()) == ALL
        assert await outbox.pending() == 0


async def test_a_process_that_slept_longer_than_its_lease_sends_nothing_that_others_have(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)
        await scene.time_passes()
        assert await scene.relay().step() == 3
        assert await relay.send_held() == 0
        assert ids(await scene.stored()) == ALL


class Interrupted(MemoryBroker):
    """Something else happens while it publishes for the first time."""

    async def publish(self, topic, messages):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().publish(topic, messages)


async def test_a_process_that_loses_its_lease_while_it_sends_leaves_the_others_rows_alone(url, way):
    broker = Interrupted(Clock())
    async with outbox_on(url, broker) as scene:
        relay = scene.relay()
        await scene.add_to(relay.held_outbox(), *drafts(3), way=way)

        async def take_over():
            await scene.time_passes()
            async with scene.database.transaction() as connection:
                await scene.relay()._claims.claim_in(connection, 10, 2**20, keyed_first=False)

        broker.meanwhile = take_over
        await relay.send_held()
        assert relay.statistics().lost == 3
        assert await scene.rows() == [0, 3]
        assert await scene.outbox.pending() == 3


async def test_what_is_in_hand_is_renewed_until_it_is_lost(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay(lease=600.0)
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)
        claim, _ = await outbox.committed()
        await scene.time_passes()
        assert await relay._claims.renew(claim)
        assert await scene.relay().step() == 0
        await scene.time_passes()
        assert await scene.relay().step() == 3
        assert not await relay._claims.renew(claim)


async def test_what_was_let_go_of_is_not_kept_from_others_by_what_is_in_hand(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay(lease=600.0)
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)
        # As after a settlement that the database did not take.
        lost, _ = await outbox.committed()
        await scene.add_to(outbox, *drafts(1, start=3), way=way)
        kept, _ = await outbox.committed()
        await scene.time_passes()
        assert await relay._claims.renew(kept)
        assert await scene.relay().step() == 3
        assert not await relay._claims.renew(lost)
        assert ids(await scene.stored()) == ALL


async def test_what_is_given_back_takes_nothing_along_that_was_added_meanwhile(url, way):
    async with outbox_on(url) as scene:
        relay = scene.relay(lease=600.0)
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(3), way=way)
        claim, _ = await outbox.committed()
        await scene.add_to(outbox, *drafts(1, start=3), way=way)
        async with scene.database.transaction() as connection:
            assert await relay._claims.settle(connection, claim, Outcomes()) == 3
        assert (await outbox.status()).claimed == 1
        assert await relay.send_held() == 1


async def test_while_a_topic_is_out_of_reach_its_messages_are_for_whoever_reaches_it(url, way):
    async with outbox_on(url, Away()) as scene:
        relay = scene.relay(retry=Backoff(initial=1e6, maximum=1e6))
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(2), way=way)
        assert await relay.send_held() == 2
        assert await scene.rows() == [0, 2]
        assert (await outbox.status()).claimed == 0
        await scene.add_to(outbox, *drafts(1, start=2), way=way)
        assert await scene.rows() == [0, 3]
        assert (await outbox.status()).claimed == 0
        assert await relay.send_held() == 0


async def test_a_relay_that_is_closed_leaves_nothing_in_its_hands(url, way):
    async with outbox_on(url) as scene:
        async with scene.relay(poll=600.0, lease=600.0) as relay:
            outbox = relay.held_outbox()
            await asyncio.sleep(0.05)
            await scene.add_to(outbox, *drafts(1), way=way)
        await scene.add_to(outbox, *drafts(1, start=1), way=way)
        assert (await outbox.status()).claimed == 0
        assert await scene.relay().step() == 2


async def test_a_message_that_the_outbox_has_already_is_not_sent_once_more(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(1))
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(2))
        assert await relay.send_held() == 1
        assert ids(await scene.stored()) == ["m-1"]
        assert await relay.step() == 1


async def test_what_is_to_go_later_has_a_key_or_no_id_is_left_to_those_who_claim(url):
    async with outbox_on(url) as scene:
        relay = scene.relay()
        outbox = relay.held_outbox()
        await scene.add_to(outbox, *drafts(1), after=60.0)
        await scene.add_to(outbox, *drafts(1, "key"))
        await scene.add_to(outbox, Draft.of(b"no id"))
        status = await outbox.status()
        assert (status.pending, status.waiting, status.claimed) == (3, 1, 0)
        assert await relay.send_held() == 0


async def test_what_is_committed_while_a_running_relay_sends_is_sent_at_once(url):
    broker = Interrupted(Clock())

    async with outbox_on(url, broker) as scene, scene.relay(poll=600.0, lease=600.0) as relay:
        outbox = relay.held_outbox()

        async def commit_more():
            await scene.add_to(outbox, *drafts(1, start=1))
            relay.wake()

        broker.meanwhile = commit_more
        await scene.add_to(outbox, *drafts(1))
        relay.wake()
        await scene.drained()
        assert ids(await scene.stored()) == ["m-0", "m-1"]


async def test_a_relay_that_runs_sends_what_others_commit_as_well(url):
    async with outbox_on(url) as scene, scene.relay(poll=600.0) as relay:
        outbox = relay.held_outbox()
        await scene.add(*drafts(1))
        await scene.add_to(outbox, *drafts(1, start=1))
        relay.wake()
        await scene.drained()


async def test_what_cannot_be_given_back_at_the_end_is_sent_by_others_later(url, way, caplog):
    async def away(_):
        raise UnavailableError("The database is away")

    async with outbox_on(url) as scene:
        async with scene.relay(poll=600.0, lease=0.5) as relay:
            with relay.settling_in(away):
                await scene.add_to(relay.held_outbox(), *drafts(3), way=way)
                await relay.aclose()
        del relay
        gc.collect()  # A task whose failure nobody looked at says so when it is gone.
        [told] = [one.getMessage() for one in caplog.records if one.levelname != "INFO"]
        assert told.endswith("others have it in 0.5 s: The database is away")
        async with scene.relay(poll=0.1):
            await scene.drained()
        assert ids(await scene.stored()) == ALL
