"""Adding to the outbox, and looking after it."""

import asyncio

import pytest
from sqlalchemy import select, update

from penstock import Draft, Expect, errors
from penstock.transactional import Outbox
from penstock.transactional.outbox_table import table
from tests.support.outbox_scenes import drafts, ids, outbox_on

pytestmark = pytest.mark.real_time


async def test_what_a_rolled_back_transaction_added_is_never_published(url):
    async with outbox_on(url) as scene, scene.relay():
        with pytest.raises(ZeroDivisionError):
            async with scene.database.transaction() as connection:
                await scene.outbox.add(connection, "orders", drafts(3))
                raise ZeroDivisionError
        await scene.add(Draft.of(b"after", message_id="after"))
        await scene.drained()
        assert ids(await scene.stored()) == ["after"]


async def test_everything_a_draft_says_reaches_the_topic(url):
    async with outbox_on(url) as scene, scene.relay() as relay:
        data, attributes = bytes(range(256)), {"näme": "välue", "empty": ""}
        sent = Draft.of(data, attributes, "kéy", "my-id", "orders.special")
        assert await scene.add(sent) == ("my-id",)
        relay.wake()
        await scene.drained()
        [record] = await scene.stored()
        assert record.message_id == "my-id"
        assert (record.data, record.attributes) == (data, attributes)
        assert (record.ordering_key, record.subject) == ("kéy", "orders.special")


async def test_every_draft_gets_an_id_that_is_the_messages(url):
    async with outbox_on(url) as scene, scene.relay():
        given = await scene.add(Draft.of(b"a"), Draft.of(b"b", message_id="mine"), Draft(b"c"))
        assert len(set(given)) == 3 and given[1] == "mine"
        await scene.drained()
        assert ids(await scene.stored()) == list(given)


async def test_many_and_large_messages_are_added_in_order(url):
    async with outbox_on(url) as scene, scene.relay():
        large = [Draft.of(bytes([n]) * 5 * 2**20, message_id=f"large-{n}") for n in range(4)]
        await scene.add(*drafts(2500), *large)
        await scene.drained()
        arrived = await scene.stored()
        assert ids(arrived) == [f"m-{n}" for n in range(2500)] + [f"large-{n}" for n in range(4)]
        assert [record.data for record in arrived[2500:]] == [draft.data for draft in large]


async def test_adding_a_message_again_changes_nothing(url):
    async with outbox_on(url) as scene:
        first = Draft.of(b"first", message_id="same")
        await scene.add(first, first)
        await scene.add(Draft.of(b"second", message_id="same"), Draft.of(b"other"))
        await scene.add(first, topic="another")
        assert await scene.outbox.pending() == 3
        async with scene.relay():
            await scene.pubsub.topic("another").create()
            await scene.drained()
            await scene.add(first)
            assert await scene.outbox.pending() == 0
        assert [record.data for record in await scene.stored()] == [b"first", b"other"]


@pytest.mark.parametrize(
    ("topic", "draft", "problem"),
    [
        ("x", Draft.of(b""), "Topic name"),
        ("orders", b"bytes", "takes drafts"),
        ("orders", Draft(attributes={"a": "\0"}), "control character"),
        ("orders", Draft(data="text"), "must be bytes"),
        ("orders", Draft.of(b"", expect=Expect(last_sequence=1)), "cannot expect"),
    ],
)
async def test_what_no_broker_would_take_is_refused_before_it_is_added(topic, draft, problem):
    async with outbox_on("sqlite://") as scene:
        with pytest.raises(errors.InvalidArgumentError, match=problem):
            await scene.add(draft, topic=topic)
        assert await scene.outbox.pending() == 0


async def test_health_tells_what_is_pending_how_old_it_is_and_what_is_dead(url):
    async with outbox_on(url) as scene:
        status = await scene.outbox.status()
        assert (status.pending, status.oldest_age, status.dead) == (0, 0.0, 0)
        await scene.add(*drafts(3))
        async with scene.database.transaction() as connection:
            oldest = select(table.c.id).order_by(table.c.id).limit(1).scalar_subquery()
            await connection.execute(
                update(table)
                .where(table.c.id == oldest)
                .values(created_at=table.c.created_at - 60, state="dead")
            )
            await connection.execute(
                update(table)
                .where(table.c.message_id == "m-1")
                .values(created_at=table.c.created_at - 30)
            )
        status = await scene.outbox.status()
        assert (status.pending, status.claimed, status.waiting, status.dead) == (2, 0, 0, 1)
        assert 30 <= status.oldest_age < 59


async def test_health_does_not_count_the_time_that_a_message_was_asked_to_wait(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(2), after=3600)
        status = await scene.outbox.status()
        assert (status.pending, status.waiting, status.oldest_age) == (2, 2, 0.0)
        async with scene.database.transaction() as connection:
            earlier = {name: table.c[name] - 3700 for name in ("created_at", "next_attempt_at")}
            await connection.execute(update(table).values(earlier))
        status = await scene.outbox.status()
        assert (status.pending, status.waiting) == (2, 0)
        assert 100 <= status.oldest_age < 3600


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), "soon", True])
async def test_a_delay_that_is_none_is_refused_before_anything_is_added(after):
    async with outbox_on("sqlite://") as scene:
        with pytest.raises(errors.InvalidArgumentError, match="after"):
            await scene.add(*drafts(1), after=after)
        assert await scene.outbox.pending() == 0


async def test_a_message_that_waits_can_be_let_go_at_once(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(2), after=3600)
        relay = scene.relay()
        assert await relay.step() == 0
        async with scene.database.transaction() as connection:
            assert await scene.outbox.hasten(connection, "orders", "m-1")
            assert not await scene.outbox.hasten(connection, "others", "m-1")
        assert await relay.step() == 1
        assert ids(await scene.stored()) == ["m-1"]
        async with scene.database.transaction() as connection:
            assert not await scene.outbox.hasten(connection, "orders", "m-1")


async def test_dead_rows_can_be_read_and_published_after_all(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(3))
        async with scene.database.transaction() as connection:
            await connection.execute(
                update(table).values(state="dead", attempts=9, last_error="refused")
            )
        rows = await scene.outbox.dead(limit=2)
        assert [(row.message_id, row.reason, row.attempts) for row in rows] == [
            ("m-0", "refused", 9),
            ("m-1", "refused", 9),
        ]
        assert await scene.outbox.requeue([rows[1].id]) == 1
        assert await scene.outbox.requeue(topic="others") == 0
        assert await scene.outbox.requeue(topic="orders", limit=1) == 1
        async with scene.relay():
            await scene.drained()
        assert ids(await scene.stored()) == ["m-0", "m-1"]
        assert [row.message_id for row in await scene.outbox.dead()] == ["m-2"]


async def test_cleaning_takes_old_published_rows_and_no_others(url):
    async with outbox_on(url) as scene:
        await scene.add(*drafts(25))
        async with scene.relay():
            await scene.drained()
        await scene.add(*drafts(2, start=100))
        assert await scene.outbox.clean(3600) == 0
        assert await scene.outbox.clean(0, limit=10) == 25
        assert await scene.outbox.pending() == 2
        with pytest.raises(errors.InvalidArgumentError):
            await scene.outbox.clean(-1)


async def test_two_outboxes_that_add_the_same_messages_at_once_add_them_once(url):
    async with outbox_on(url) as scene:
        other = Outbox(scene.database)

        async def add(outbox):
            async with scene.database.transaction() as connection:
                await outbox.add(connection, "orders", drafts(50))

        await asyncio.gather(add(scene.outbox), add(other))
        assert await scene.outbox.pending() == 50
