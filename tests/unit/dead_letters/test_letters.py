"""Dead letters read from the log, replayed and discarded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from penstock import App, DeadLetterPolicy, Message, PubSub, Reject, Selection, connect
from penstock.dead_letters.letters import DeadLetters
from penstock.dead_letters.marks import mark, read_marks
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from penstock.message import PublishFault, Record
from penstock.testing import TestApp, VirtualClock, eventually
from tests.support.shop import Order

EVERYTHING = Selection()


@asynccontextmanager
async def graves(count: int = 3) -> AsyncIterator[tuple[TestApp, DeadLetters, list[str]]]:
    """An app whose billing rejects every order, alternately for two reasons, and then does not."""
    app = App()
    closed = True

    @app.subscriber("orders", "billing")
    def bill(order: Order) -> None:
        if closed and not order.customer.startswith("open"):
            raise Reject("odd" if order.id % 2 else "even")

    @app.subscriber("orders", "shipping")
    def ship(order: Order) -> None:
        pass

    async with TestApp(app) as shop:
        ids = [
            await shop.publish(
                "orders",
                Order(n),
                attributes={"tenant": f"t{n}"},
                ordering_key=f"key-{n % 5}",
                wait=False,
            )
            for n in range(count)
        ]
        await shop.idle()
        closed = False
        yield shop, app.pubsub.dead_letters("orders-dead"), ids


async def sequences(letters: DeadLetters, **selection) -> list[int]:
    return [letter.sequence async for letter in letters.read(Selection(**selection))]


async def test_letters_are_read_from_the_log_without_a_subscription():
    async with graves() as (_, letters, ids):
        found = [letter async for letter in letters.read()]
        assert [letter.origin.message_id for letter in found] == ids
        assert [letter.reason for letter in found] == ["even", "odd", "even"]
        assert await letters.count() == 3
        assert (await letters.get(2)).origin.message_id == ids[1]
        with pytest.raises(NotFoundError, match="No dead letter 9 in topic 'orders-dead'"):
            await letters.get(9)


async def test_letters_are_selected_by_everything_they_say():
    async with graves(6) as (_, letters, _):
        assert await sequences(letters, reason="odd") == [2, 4, 6]
        assert await sequences(letters, reason="o*", limit=2) == [2, 4]
        assert await sequences(letters, sequences=frozenset([1, 5, 99])) == [1, 5]
        assert await sequences(letters, sequences=frozenset()) == []
        assert await sequences(letters, filter='attributes.tenant = "t3"') == [4]
        assert await sequences(letters, subscription="shipping") == []
        assert await sequences(letters, subscription="billing", limit=1) == [1]
        assert await sequences(letters, error="ValueError*") == []
        moment = (await letters.get(4)).time
        assert await sequences(letters, since=moment + timedelta(seconds=1)) == []
        assert len(await sequences(letters, until=moment + timedelta(seconds=1))) == 6


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"limit": 0}, "limit"),
        ({"since": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"filter": "attributes."}, "Filter"),
    ],
)
def test_selections_that_cannot_be(selection, said):
    with pytest.raises(InvalidArgumentError, match=said):
        Selection(**selection)


def test_a_selection_knows_when_nothing_was_asked_for():
    assert Selection().everything and Selection(settled=True).everything
    assert not Selection(reason="x").everything


async def test_a_replay_is_a_new_message_that_keeps_the_original_id():
    async with graves() as (shop, letters, ids):
        result = await letters.replay(Selection(reason="even"))
        await shop.idle()
        assert (result.replayed, result.repeated, result.failed) == (2, 0, {})
        again = shop.records("orders")[3:]
        assert [record.attributes["replay-of"] for record in again] == [ids[0], ids[2]]
        assert not {record.message_id for record in again} & set(ids)
        assert again[0].data == shop.records("orders")[0].data
        assert again[0].ordering_key == "key-0"
        assert {k: v for k, v in again[0].attributes.items() if "dead" in k} == {}
        assert [letter.origin.message_id for letter in shop.dead()] == [ids[1]]


async def test_a_replay_is_handled_by_who_gave_it_up_alone():
    async with graves() as (shop, letters, _):
        bill, ship = (one.subscriber.function.__wrapped__ for one in shop._bindings)
        before = len(shop.calls(bill)), len(shop.calls(ship))
        await letters.replay(EVERYTHING)
        await shop.idle()
        assert (len(shop.calls(bill)), len(shop.calls(ship))) == (before[0] + 3, before[1])


async def test_what_was_replayed_is_not_replayed_again_unless_meant():
    async with graves() as (shop, letters, _):
        await letters.replay(EVERYTHING)
        assert await sequences(letters) == []
        assert (await letters.replay(EVERYTHING)).replayed == 0
        assert [letter.settled async for letter in letters.read(Selection(settled=True))] == [
            "replayed"
        ] * 3
        meant = await letters.replay(Selection(settled=True))
        assert (meant.replayed, meant.repeated) == (0, 3)
        await shop.idle()
        assert len(shop.records("orders")) == 6


async def test_a_replay_that_was_interrupted_doubles_nothing_when_run_again(monkeypatch):
    async with graves(250) as (shop, letters, _):
        real, marked = letters._mark, 0

        async def dies(deed, sequences):
            nonlocal marked
            marked += 1
            if marked == 2:
                raise KeyboardInterrupt  # Sent, and killed before it could be marked.
            await real(deed, sequences)

        monkeypatch.setattr(letters, "_mark", dies)
        with pytest.raises(KeyboardInterrupt):
            await letters.replay(EVERYTHING)
        monkeypatch.undo()
        result = await letters.replay(EVERYTHING)
        await shop.idle()
        assert (result.replayed, result.repeated) == (50, 100)
        assert len(shop.records("orders")) == 500
        assert await letters.count() == 0


async def test_progress_is_told_batch_by_batch():
    async with graves(150) as (_, letters, _):
        told = []
        await letters.replay(EVERYTHING, on_progress=lambda r: told.append(r.replayed))
        assert told == [100, 150]


async def test_a_replay_may_go_elsewhere_and_what_cannot_go_is_told():
    async with graves() as (shop, letters, _):
        result = await letters.replay(Selection(limit=1), to="nowhere-at-all")
        assert result.replayed == 0
        assert isinstance(result.failed[1], NotFoundError)
        assert await letters.count() == 3
        await shop.app.pubsub.topic("elsewhere").create(message_retention=60)
        await letters.replay(EVERYTHING, to="elsewhere")
        await shop.idle()
        assert len(shop.records("elsewhere")) == 3


async def test_a_replay_that_goes_elsewhere_is_handled_there():
    app, seen = App(), []
    app.subscriber("orders", "billing")(lambda: Reject("bug"))

    @app.subscriber("orders-v2", "billing-v2")
    def bill(message: Message) -> None:
        seen.append(message.data)

    async with TestApp(app) as shop:
        await shop.publish("orders", b"x")
        letters = app.pubsub.dead_letters("orders-dead")
        # Its second death is of a replay that says for whom it was meant.
        await letters.replay(EVERYTHING)
        await shop.idle()
        await letters.replay(EVERYTHING, to="orders-v2")
        await shop.idle()
        assert seen == [b"x"]


async def test_a_replay_for_a_subscription_that_is_gone_is_for_all_that_are_left():
    app, seen = App(), []

    @app.subscriber("orders", "billing-renamed")
    def bill(message: Message) -> None:
        seen.append(message.data)

    async with TestApp(app) as shop:
        whence = {"dead-letter-topic": "orders", "dead-letter-subscription": "billing"}
        await app.pubsub.topic("orders-dead").publish_message(b"x", whence)
        assert (await app.pubsub.dead_letters("orders-dead").replay(EVERYTHING)).replayed == 1
        await shop.idle()
        assert seen == [b"x"]


async def test_a_letter_that_names_only_a_subscription_that_is_gone_says_so():
    async with PubSub(clock=VirtualClock()) as pubsub:
        await pubsub.topic("dead").create(message_retention=60)
        source = {"CloudPubSubDeadLetterSourceSubscription": "billing"}
        await pubsub.topic("dead").publish_message(b"x", source)
        result = await pubsub.dead_letters("dead").replay(EVERYTHING)
        assert "'billing', which is gone; say where to" in str(result.failed[1])


async def test_discarded_letters_are_out_of_the_way_and_not_gone():
    async with graves() as (_, letters, _):
        assert await letters.discard(Selection(reason="even")) == 2
        assert await sequences(letters) == [2]
        assert (await letters.get(1)).settled == "discarded"
        assert await letters.discard(Selection(reason="even")) == 0


@pytest.mark.parametrize("batches", [False, True])
async def test_an_app_that_reads_dead_letters_does_not_see_marks(batches):
    app, seen = App(), []
    app.subscriber("orders", "billing")(lambda: Reject("bug"))

    def watch_each(body: bytes) -> None:
        seen.append(body)

    def watch_all(bodies: list[bytes]) -> None:
        seen.extend(bodies)

    app.subscriber("orders-dead", "watcher")(watch_all if batches else watch_each)
    async with TestApp(app) as shop:
        await shop.publish("orders", b"x")
        await app.pubsub.dead_letters("orders-dead").discard(EVERYTHING)
        await shop.idle()
        assert len(shop.records("orders-dead")) == 2
        assert seen == [b"x"]


async def test_a_message_whose_letter_would_be_too_large_dies_cut_and_is_not_replayed(
    monkeypatch, caplog
):
    app, largest = App(), 50_000
    app.subscriber("orders", "billing", max_attempts=1)(lambda: Reject("bug"))
    async with TestApp(app) as shop:
        broker = await app.pubsub.broker()
        publish = broker.publish

        async def limited(topic, drafts):
            sizes = [
                len(one.data) + sum(len(key) + len(value) for key, value in one.attributes.items())
                for one in drafts
            ]
            if max(sizes) > largest:
                return [PublishFault(InvalidArgumentError("too large"))] * len(drafts)
            return await publish(topic, drafts)

        monkeypatch.setattr(broker, "publish", limited)
        await shop.publish("orders", b"x" * largest)
        [letter] = shop.dead()
        assert (letter.reason, letter.origin.subscription) == ("bug", "billing")
        assert letter.cut == largest - len(letter.data) > 0
        assert f"lacks {letter.cut} bytes" in caplog.text
        result = await app.pubsub.dead_letters("orders-dead").replay(EVERYTHING)
        assert f"lacks the last {letter.cut:,} bytes" in str(result.failed[letter.sequence])
        assert await app.pubsub.dead_letters("orders-dead").count() == 1


async def test_a_message_that_dies_again_keeps_its_first_id():
    app = App()
    app.subscriber("orders", "billing")(lambda: Reject("no"))
    async with TestApp(app) as shop:
        first = await shop.publish("orders", b"x")
        letters = app.pubsub.dead_letters("orders-dead")
        for _ in range(2):
            await letters.replay(EVERYTHING)
            await shop.idle()
        [letter] = shop.dead()
        assert letter.attributes["replay-of"] == first
        assert letter.origin.message_id != first
        assert len({record.message_id for record in shop.records("orders")}) == 3


async def test_letters_of_a_brokers_own_policy_are_listed_and_find_their_way_back():
    async with PubSub(clock=VirtualClock()) as pubsub:
        topic = await pubsub.topic("orders").create(message_retention=60)
        await pubsub.topic("dead").create(message_retention=60)
        policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=2)
        subscription = await topic.subscription("billing", dead_letter_policy=policy).create()
        broken, done = True, []

        @subscription.on("message")
        def handle(message: Message) -> None:
            if broken:
                message.nack()
            else:
                message.ack()
                done.append(message)

        subscription.open()
        await topic.publish_message(b"x", {"k": "v"})
        letters = pubsub.dead_letters("dead")
        while not await letters.count():
            await eventually(lambda: True)
        [letter] = [letter async for letter in letters.read()]
        assert (letter.reason, letter.attempt) == ("max-delivery-attempts", 2)
        broken = False
        assert (await letters.replay(EVERYTHING)).replayed == 1
        await eventually(lambda: done)
        assert dict(done[0].attributes) == {"k": "v", "replay-for": "billing"}


async def test_a_letter_that_does_not_say_where_it_came_from_needs_to_be_told():
    async with PubSub(clock=VirtualClock()) as pubsub:
        await pubsub.topic("dead").create(message_retention=60)
        await pubsub.topic("dead").publish_message(b"by hand")
        result = await pubsub.dead_letters("dead").replay(EVERYTHING)
        assert "does not say where it came from" in str(result.failed[1])


@pytest.mark.parametrize("deed", ["discard", "replay"])
async def test_a_live_topic_that_was_named_by_a_slip_is_left_as_it_is(deed):
    async with graves() as (shop, letters, _):
        live = shop.app.pubsub.dead_letters("orders")
        change = live.discard if deed == "discard" else partial(live.replay, to="elsewhere")
        await shop.app.pubsub.topic("elsewhere").create(message_retention=60)
        before = len(shop.records("orders"))
        with pytest.raises(FailedPreconditionError, match=r"'orders' .* 'orders-dead'\? .*--force"):
            await change(EVERYTHING)
        await shop.idle()
        assert len(shop.records("orders")) == before
        assert shop.records("elsewhere") == []
        # It may be meant all the same.
        await change(EVERYTHING, force=True)
        await shop.idle()
        assert len(shop.records("orders")) == before + 1
        assert await live.count() == 0 and await letters.count() == 3


@pytest.mark.parametrize(
    "letter",
    [
        {"dead-letter-reason": "bug"},
        {"x-dead-letter": "true", "x-dlq-reason": "malformed_json"},
        {"CloudPubSubDeadLetterSourceSubscription": "billing"},
    ],
)
async def test_what_was_put_by_hand_beside_letters_of_any_kind_can_be_discarded(letter):
    async with PubSub(clock=VirtualClock()) as pubsub:
        await pubsub.topic("dead").create(message_retention=60)
        for attributes in ({}, letter):
            await pubsub.topic("dead").publish_message(b"x", attributes)
        letters = pubsub.dead_letters("dead")
        assert [one.by_hand async for one in letters.read()] == [True, False]
        assert await letters.discard(Selection(sequences=frozenset([1]))) == 1
        assert await sequences(letters) == [2]


async def test_a_broker_without_a_log_says_what_to_do_instead():
    broker = await connect(clock=VirtualClock())
    broker.capabilities = replace(broker.capabilities, replay=False)
    pubsub = PubSub(broker=broker)
    with pytest.raises(UnimplementedError, match=r"'replay'.* make a subscription"):
        await pubsub.dead_letters("dead").count()


def test_marks_are_read_and_what_is_none_is_not():
    def record(draft, sequence):
        return Record(sequence, "", draft.data, draft.attributes, None, "dead", 0)

    bogus = Record(9, "", b"{", {"dead-letter-mark": "replayed"}, None, "dead", 0)
    marks = [mark("discarded", [1, 2]), mark("replayed", [2])]
    records = [record(one, at) for at, one in enumerate(marks)]
    assert read_marks([bogus, *records]) == {1: "discarded", 2: "replayed"}


def test_moments_have_a_zone():
    assert Selection(since=datetime(2026, 1, 1, tzinfo=UTC)).since is not None
