"""The relay: its rounds, order, claims and their ends, on SQLite and PostgreSQL."""

import asyncio
import re
import sqlite3

import pytest
from sqlalchemy import select, update

from penstock import PubSub, errors
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.message import Draft
from penstock.testing.waiting import eventually
from penstock.transactional import Database, Outbox, Relay
from penstock.transactional.claim_queries import keyed_rows, keyless_rows, prospect
from penstock.transactional.outbox_table import table
from penstock.transactional.row_leases import Claims, Outcomes, Prospect
from tests.support.outbox_scenes import drafts, ids, outbox_on, until
from tests.support.statements import statements_of
from tests.support.troubled_broker import Troubled, failing

pytestmark = pytest.mark.real_time


async def test_a_commit_and_a_wake_are_enough(url):
    async with outbox_on(url) as scene, scene.relay(poll=3600) as relay:
        await scene.add(*drafts(3))
        relay.wake()
        await scene.drained()
        assert ids(await scene.stored()) == ["m-0", "m-1", "m-2"]
        assert relay.statistics().published == 3
        assert await scene.column("sequence", "m-2") == 3


async def test_a_relay_of_some_topics_leaves_the_rows_of_others_alone(url):
    """Another broker has those; to try them here would use up their attempts."""
    async with outbox_on(url) as scene:
        await scene.add(*drafts(3), topic="elsewhere")
        await scene.add(*drafts(3, "k"), topic="elsewhere")
        await scene.add(*drafts(1, start=9), topic="elsewhere", after=60)
        await scene.add(*drafts(3, start=3), *drafts(2, "j"))
        async with scene.relay(topics=["orders"]) as relay:
            await until(lambda: _is(scene.outbox.pending(), 7))
            assert await relay._claims.look() == Prospect(rows=False, due=None)
        assert ids(await scene.stored()) == ["m-3", "m-4", "m-5", "j-0", "j-1"]
        assert await scene.column("attempts", "m-0") == 0
        assert await scene.column("attempts", "k-0") == 0


async def _is(found, wanted):
    return await found == wanted


async def test_a_transaction_that_commits_after_a_later_one_is_not_skipped(postgres):
    async with outbox_on(postgres.new_database()) as scene, scene.relay():
        async with scene.database.transaction() as connection:
            await scene.outbox.add(connection, "orders", drafts(1))
            await scene.add(*drafts(1, start=1))
            await scene.drained()
            assert ids(await scene.stored()) == ["m-1"]
        assert await scene.column("id", "m-0") < await scene.column("id", "m-1")
        await scene.drained()
        assert ids(await scene.stored()) == ["m-1", "m-0"]


async def test_a_row_of_a_key_added_while_an_earlier_one_waits_does_not_pass_it(url):
    broker = Troubled(failing(1, only={"a-0"}))
    async with outbox_on(url, broker) as scene:
        relay = scene.relay()
        await scene.add(*drafts(1, "a"))
        assert await relay.step() == 1
        async with scene.database.transaction() as connection:
            await connection.execute(
                update(table).values(next_attempt_at=table.c.next_attempt_at + 60)
            )
        await scene.add(*drafts(2, "a", start=1))
        assert await relay.step() == 0
        async with scene.database.transaction() as connection:
            await connection.execute(update(table).values(next_attempt_at=0))
        assert await relay.step() == 3
        assert ids(await scene.stored()) == ["a-0", "a-1", "a-2"]


async def test_a_message_added_for_later_waits_until_then(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(2), after=3600)
        await scene.add(*drafts(1, start=2))
        relay = scene.relay()
        assert [await relay.step(), await relay.step()] == [1, 0]
        await scene.time_passes()
        assert await relay.step() == 2
        assert ids(await scene.stored()) == ["m-2", "m-0", "m-1"]


async def test_an_idle_relay_only_reads_and_a_statement_a_look(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(3), *drafts(2, "k"))
        async with scene.relay():
            await scene.drained()
            with statements_of(scene.database) as settling:
                await eventually(lambda: _repeats(_selects(settling)[-3:]))
            with statements_of(scene.database) as told:
                await eventually(lambda: len(_selects(told)) >= 5)
            assert _writes(told) == []
            assert len(set(_selects(told))) == 1


async def test_batches_that_follow_each_other_share_a_transaction_on_sqlite(tmp_path):
    async with outbox_on(f"sqlite:///{tmp_path}/app.db") as scene:
        await scene.add(*drafts(40))
        with statements_of(scene.database) as told:
            async with scene.relay(batch=4):
                await scene.drained()
        # The first claim, and each of ten batches settled; and at most a look for what is new.
        assert told.count("BEGIN IMMEDIATE") <= 12
        assert len(ids(await scene.stored())) == 40


async def test_a_batch_claimed_ahead_is_given_back_when_the_relay_ends(tmp_path):
    async with outbox_on(f"sqlite:///{tmp_path}/app.db") as scene:
        await scene.add(*drafts(8))
        relay = scene.relay(batch=4, checkpoint=lambda name: name == "marked" and stop())

        def stop():
            relay._stopping = True

        async with relay:
            await asyncio.wait({relay._task})
        assert len(ids(await scene.stored())) == 4
        # Nothing has to wait for the end of a claim.
        assert await scene.relay().step() == 4


def _repeats(told):
    return len(told) == 3 and len(set(told)) == 1


def _selects(told):
    return [one for one in told if one.startswith("SELECT") and "outbox" in one]


def _writes(told):
    return [one for one in told if one.startswith(("BEGIN IMMEDIATE", "UPDATE", "INSERT"))]


async def test_a_relay_that_is_never_woken_sends_what_is_due_when_it_is_due(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(1), *drafts(1, "a"), after=0.2)
        async with scene.relay(poll=3600):
            await scene.drained()
        assert sorted(ids(await scene.stored())) == ["a-0", "m-0"]


async def test_a_message_added_for_later_holds_up_what_follows_in_its_key_and_nothing_else(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(1, "a"))
        await scene.add(*drafts(2, "a", start=1), after=3600)
        await scene.add(*drafts(2, "a", start=3), *drafts(2, "b"), *drafts(2))
        relay = scene.relay()
        while await relay.step():
            pass
        assert sorted(ids(await scene.stored())) == ["a-0", "b-0", "b-1", "m-0", "m-1"]
        await scene.time_passes()
        while await relay.step():
            pass
        arrived = [i for i in ids(await scene.stored()) if i[0] == "a"]
        assert arrived == [f"a-{n}" for n in range(5)]


async def test_of_what_is_due_and_what_is_new_neither_waits_for_the_other(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(20), after=3600)
        await scene.add(*drafts(20, start=20))
        await scene.time_passes()
        await scene.relay(batch=4).step()
        assert ids(await scene.stored()) == ["m-0", "m-1", "m-20", "m-21"]


async def test_a_claim_walks_over_nothing_that_waits(tmp_path):
    """Each part of a claim finds its rows by an index that has no others."""
    async with outbox_on(f"sqlite:///{tmp_path}/app.db") as scene:
        given = {"without": [], "topics": ["orders"]}
        parts = {
            keyless_rows(10, True).params(given): {"keyless", "keyless_delayed"},
            prospect(True).params(given): {
                *("keyless", "keyless_delayed", "keyed", "keyed_delayed"),
            },
            keyed_rows(10, True).params({**given, "full": []}): {
                "keyed", "keyed_delayed", "claimed", "keys", "delayed_keys",
            },
        }  # fmt: skip
        async with scene.database.transaction(reading=True) as connection:
            for query, wanted in parts.items():
                compiled = query.compile(
                    dialect=connection.dialect, compile_kwargs={"literal_binds": True}
                )
                plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}")
                lines = [row[3] for row in plan]
                used = re.findall(r"INDEX penstock_outbox_(\w+)", " ".join(lines))
                assert set(used) == wanted
                walks = [
                    line
                    for line in lines
                    if re.match("(SCAN|SEARCH) (penstock_outbox |earl)", line)
                ]
                assert len(walks) == len(used), lines


async def test_a_key_in_the_hands_of_one_relay_is_left_alone_by_another(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(2, "a"))
        one, two = scene.relay(), scene.relay()
        broker.open.clear()
        first = asyncio.create_task(one.step())
        await eventually(lambda: broker.calls)
        await scene.add(*drafts(1, "a", start=2))
        assert await two.step() == 0
        await scene.add(*drafts(1, "b"), *drafts(1))
        broker.open.set()
        assert await two.step() == 1
        assert await two.step() == 1
        assert await first == 2
        assert await two.step() == 1
        assert [i for i in ids(await scene.stored()) if i[0] == "a"] == ["a-0", "a-1", "a-2"]


async def test_relays_side_by_side_keep_every_key_in_order_and_publish_once(url):
    async with outbox_on(url) as scene, Database(url) as second:
        other = Relay(second, scene.pubsub, batch=7, poll=0.01)
        keys = [f"key{n}" for n in range(5)]
        async with scene.relay(batch=5), other:
            for start in range(0, 30, 3):
                for key in keys:
                    await scene.add(*drafts(3, key, start))
                await scene.add(*drafts(5, start=start * 5))
            await scene.drained()
        arrived = ids(await scene.stored())
        assert len(arrived) == len(set(arrived)) == 5 * 30 + 50
        for key in keys:
            mine = [i for i in arrived if i.startswith(key)]
            assert mine == [f"{key}-{n}" for n in range(30)]


async def test_relays_share_the_rows_without_a_key(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(10))
        broker.open.clear()
        relays = [scene.relay(batch=5) for _ in range(3)]
        steps = [asyncio.create_task(relay.step()) for relay in relays]
        await eventually(lambda: len(broker.calls) == 2)
        broker.open.set()
        assert sorted([await step for step in steps]) == [0, 5, 5]
        assert sorted(ids(await scene.stored())) == sorted(f"m-{n}" for n in range(10))


async def test_a_stuck_claim_is_taken_over_when_its_lease_ends(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(2), *drafts(2, "a"))
        gone = Claims(scene.database, "gone", lease=0.3)
        for keyed in (True, False):
            claim = await gone.claim(10, 2**20, keyed_first=keyed)
            assert claim is not None and len(claim.rows) == 2 and claim.keyed is keyed
        relay = scene.relay()
        assert await relay.step() == 0
        async with relay:
            await scene.drained()
        assert len(await scene.stored()) == 4


@pytest.mark.parametrize("key", [None, "a"])
async def test_whoever_lost_a_claim_changes_nothing_any_more(url, key):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(4, key))
        slow = Claims(scene.database, "slow", lease=0.001)
        quick = Claims(scene.database, "quick", lease=60)
        lost = await slow.claim(10, 2**20, keyed_first=False)
        await asyncio.sleep(0.01)
        held = await quick.claim(10, 2**20, keyed_first=False)
        assert [row.id for row in held.rows] == [row.id for row in lost.rows]

        async def rows():
            async with scene.database.transaction(reading=True) as connection:
                return (await connection.execute(select(table).order_by(table.c.id))).all()

        before = await rows()
        assert await slow.renew(lost) is False
        a, b, c, _ = (row.id for row in lost.rows)
        late = Outcomes(published={a: 1}, again={b: (9.0, "late")}, dead={c: "late"})
        async with scene.database.transaction() as connection:
            assert await slow.settle(connection, lost, late) == 0
        assert await rows() == before
        assert await quick.renew(held) is True
        async with scene.database.transaction() as connection:
            assert await quick.settle(connection, held, late) == 4


async def test_the_same_owners_older_claim_is_fenced_out_too(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(1))
        claims = Claims(scene.database, "one", lease=0.001)
        old = await claims.claim(10, 2**20, keyed_first=False)
        await asyncio.sleep(0.01)
        new = await claims.claim(10, 2**20, keyed_first=False)
        assert new.rows == old.rows
        assert await claims.renew(old) is False
        assert await claims.renew(new) is True


async def test_a_claim_is_renewed_while_a_publish_takes_long(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(3, "a"), *drafts(3))
        broker.open.clear()
        async with scene.relay(lease=0.3) as relay:
            await eventually(lambda: broker.calls)
            first = await scene.column("lease_until", "m-0")

            async def renewed():
                return await scene.column("lease_until", "m-0") > first + 0.3

            await until(renewed)
            other = Claims(scene.database, "other", lease=0.01)
            claim = await other.claim(10, 2**20, keyed_first=False)
            assert claim.keyed, "only what the relay has not claimed"
            broker.open.set()
            await scene.drained()
            assert relay.statistics().lost == 0
        assert len(await scene.stored()) == 6


async def test_a_relay_that_lost_its_claim_stops_publishing_what_it_has(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(3, "a"))
        broker.open.clear()
        slow = scene.relay(lease=0.3)
        step = asyncio.create_task(slow.step())
        await eventually(lambda: broker.calls)
        async with scene.database.transaction() as connection:
            await connection.execute(update(table).values(claimed_by="thief", lease_until=1e12))
        await step
        assert broker.calls == [["a-0"]]
        assert slow.statistics().lost == 3
        assert await scene.column("claimed_by", "a-0") == "thief"


async def test_closing_finishes_the_batch_in_hand(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(3))
        broker.open.clear()
        relay = scene.relay()
        await relay.__aenter__()
        await eventually(lambda: broker.calls)
        closing = asyncio.create_task(relay.aclose())
        broker.open.set()
        await closing
        await relay.aclose()
        assert await scene.outbox.pending() == 0
        with pytest.raises(errors.ClosedError):
            relay.start()


@pytest.mark.parametrize("key", [None, "a"])
async def test_closing_in_the_middle_of_a_publish_gives_the_rows_back_at_once(url, key):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(3, key))
        broker.open.clear()
        relay = scene.relay(lease=3600)
        await relay.__aenter__()
        await eventually(lambda: broker.calls)
        await relay.aclose(timeout=0)
        assert (await scene.outbox.status()).claimed == 0
        broker.open.set()
        assert await scene.relay().step() == 3
        assert len(await scene.stored()) == 3


async def test_closing_ends_although_the_database_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.transactional.relay._GRACE", 0.05)
    async with outbox_on(f"sqlite:///{tmp_path}/app.db") as scene:
        relay, asked = scene.relay(), asyncio.Event()

        async def never(*_, **__):
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(relay._claims, "claim_in", never)
        relay.start()
        await asked.wait()
        async with asyncio.timeout(60):
            await relay.aclose(timeout=0.05)


async def test_a_cancelled_step_gives_the_rows_back(url):
    broker = Troubled()
    async with outbox_on(url, broker) as scene:
        await scene.add(*drafts(3))
        broker.open.clear()
        step = asyncio.create_task(scene.relay(lease=3600).step())
        await eventually(lambda: broker.calls)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert (await scene.outbox.status()).claimed == 0


async def test_a_claim_takes_no_more_bytes_than_it_may_but_always_one_row(url):
    async with outbox_on(url) as scene:
        await scene.add(*(Draft.of(bytes(1000)) for _ in range(5)), Draft.of(bytes(5000)))
        relay = scene.relay(max_bytes=2500)
        assert [await relay.step() for _ in range(5)] == [2, 2, 1, 1, 0]


@pytest.mark.parametrize("batch", [60, 500])
async def test_a_long_run_of_one_key_does_not_hold_up_the_others(url, batch):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(3, "warm"), *drafts(120, "hot"), *drafts(2, "cold"))
        relay = scene.relay(batch=batch)
        assert await relay.step() == 55
        arrived = ids(await scene.stored())
        assert {"warm-2", "cold-1"} < set(arrived) and len(arrived) == 55
        async with relay:
            await scene.drained()
        hot = [i for i in ids(await scene.stored()) if i.startswith("hot")]
        assert hot == [f"hot-{n}" for n in range(120)]


async def test_a_database_that_was_away_for_a_while_is_used_again(tmp_path, caplog):
    path = tmp_path / "app.db"
    async with outbox_on(f"sqlite:///{path}") as scene:
        async with Database(f"sqlite:///{path}", busy_timeout=0.01) as impatient:
            await scene.add(*drafts(3))
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            relay = Relay(impatient, scene.pubsub, poll=0.01)
            relay.start()
            await eventually(lambda: "locked" in caplog.text)
            other.close()
            await scene.drained()
            await relay.aclose()
        assert len(await scene.stored()) == 3


def test_a_relay_refuses_options_that_make_no_sense():
    database = Database("sqlite://")
    for options in ({"batch": 0}, {"lease": 0}, {"poll": -1}, {"max_attempts": 0}):
        with pytest.raises(errors.InvalidArgumentError):
            Relay(database, PubSub(), **options)
    with pytest.raises(errors.InvalidArgumentError, match="another database"):
        Relay(database, PubSub(), outbox=Outbox(Database("sqlite://")))
    with pytest.raises(errors.InvalidArgumentError, match=r"PubSub\(broker="):
        Relay(database, MemoryBroker(Clock()))
