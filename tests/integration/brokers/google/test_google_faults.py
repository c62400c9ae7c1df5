"""Google's adapter against a Google that misbehaves, and an emulator that goes away."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from penstock import Draft, connect
from penstock.config import DeadLetterPolicy, SubscriptionConfig, TopicConfig
from penstock.emulator import Emulator
from penstock.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    TopicNotFoundError,
    UnavailableError,
)
from penstock.googlepubsub.messages import (
    Empty,
    PublishResponse,
    StreamingPullResponse,
    Subscription,
)
from penstock.message import AckResponse, PublishFault, Receipt, Settlement, Verb
from penstock.testing import eventually
from tests.support.scripted_google import ScriptedGoogle, for_ever, refuse_ack_ids

pytestmark = pytest.mark.real_time

SUB = "projects/project-one/subscriptions/billing"


async def described(*_: Any) -> Any:
    return Subscription(
        name=SUB, topic="projects/project-one/topics/orders", ack_deadline_seconds=10
    )


async def done(*_: Any) -> Any:
    return Empty()


def received(*texts: str) -> Any:
    response = StreamingPullResponse()
    for text in texts:
        one = response.received_messages.add(ack_id=f"ack-{text}")
        one.message.data = text.encode()
        one.message.message_id = text
    return response


def sending(*batches: Any):
    """A stream that sends these and then nothing."""

    async def serve(first: Any, requests: Any, context: Any) -> None:
        for batch in batches:
            await context.write(batch)
        await for_ever()

    return serve


async def pull(broker, count: int = 10, wait: float = 5):
    return await broker.pull("billing", max_messages=count, max_bytes=10**9, wait=wait)


def texts(deliveries) -> list[str]:
    return [delivery.record.data.decode() for delivery in deliveries]


# Publishing.


def storing(google_calls: list[int]):
    async def serve(request: Any, _: Any) -> Any:
        google_calls.append(len(request.messages))
        return PublishResponse(message_ids=[str(n) for n in range(len(request.messages))])

    return serve


async def test_what_waits_together_is_published_together():
    sizes: list[int] = []
    google = ScriptedGoogle(publish=storing(sizes))
    async with google.serving() as url:
        broker = await connect(url)
        publishes = (broker.publish("orders", [Draft.of(b"%d" % n)]) for n in range(500))
        answers = await asyncio.gather(*publishes)
        await broker.aclose()
    assert all(isinstance(answer, Receipt) for [answer] in answers)
    assert sum(sizes) == 500
    assert len(sizes) < 50


async def test_no_call_carries_more_than_google_takes():
    sizes: list[int] = []
    google = ScriptedGoogle(publish=storing(sizes))
    async with google.serving() as url:
        broker = await connect(url)
        await broker.publish("orders", [Draft.of(b"x")] * 2500)
        assert max(sizes) == 1000
        sizes.clear()
        await broker.publish("orders", [Draft.of(b"x" * 3_000_000)] * 7)
        await broker.aclose()
    assert max(sizes) == 3
    assert max(request.ByteSize() for request in google.named("Publish")) < 10_000_000


async def test_a_failed_message_of_a_key_is_not_overtaken():
    stored: list[str] = []
    failing = asyncio.Event()

    async def serve(request: Any, context: Any) -> Any:
        if request.messages[0].ordering_key and not failing.is_set():
            failing.set()
            await asyncio.sleep(0.1)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "try again")
        stored.extend(message.data.decode() for message in request.messages)
        return PublishResponse(message_ids=["1"] * len(request.messages))

    google = ScriptedGoogle(publish=serve)
    async with google.serving() as url:
        broker = await connect(url)
        first = asyncio.ensure_future(
            broker.publish("orders", [Draft.of(b"a1", ordering_key="a"), Draft.of(b"plain")])
        )
        await failing.wait()
        second = await broker.publish(
            "orders", [Draft.of(b"a2", ordering_key="a"), Draft.of(b"b1", ordering_key="b")]
        )
        answers = await first
        again = await broker.publish("orders", [Draft.of(b"a1", ordering_key="a")] * 2)
        await broker.aclose()
    failed = [isinstance(answer, PublishFault) for answer in (*answers, *second)]
    assert failed == [True, False, True, False]
    assert "earlier message of its ordering key" in str(second[0].error)
    assert stored == ["plain", "b1", "a1", "a1"]
    assert all(isinstance(answer, Receipt) for answer in again)


def refusing(stored: list[str]):
    """Stores all messages of a call, or none when one of them is bad."""

    async def serve(request: Any, context: Any) -> Any:
        texts = [message.data.decode() for message in request.messages]
        if any("bad" in text for text in texts):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "failed schema validation")
        stored.extend(texts)
        return PublishResponse(message_ids=texts)

    return serve


async def test_a_message_that_google_refuses_takes_no_other_with_it():
    stored: list[str] = []
    google = ScriptedGoogle(publish=refusing(stored))
    names = [f"bad{n}" if n in (0, 20, 21) else f"good{n}" for n in range(40)]
    async with google.serving() as url:
        broker = await connect(url)
        together = await broker.publish("orders", [Draft.of(name.encode()) for name in names])
        apart = await asyncio.gather(
            *(broker.publish("orders", [Draft.of(name.encode())]) for name in names)
        )
        await broker.aclose()
    for answers in (together, [answer for [answer] in apart]):
        errors = [getattr(answer, "error", None) for answer in answers]
        assert [isinstance(e, InvalidArgumentError) for e in errors] == ["bad" in n for n in names]
    assert sorted(stored) == sorted(name for name in names * 2 if "good" in name)


async def test_a_key_stops_at_the_message_that_google_refuses():
    stored: list[str] = []
    google = ScriptedGoogle(publish=refusing(stored))
    async with google.serving() as url:
        broker = await connect(url)
        answers = await broker.publish(
            "orders",
            [Draft.of(f"{n}{key}".encode(), ordering_key=key) for n in range(4) for key in "ab"]
            + [Draft.of(b"bad", ordering_key="a")]
            + [Draft.of(f"{n}{key}".encode(), ordering_key=key) for n in (4, 5) for key in "ab"],
        )
        await broker.aclose()
    assert stored == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b", "4b", "5b"]
    *good, bad, behind, other, behind_too, another = answers
    assert all(isinstance(answer, Receipt) for answer in (*good, other, another))
    assert isinstance(bad.error, InvalidArgumentError)
    for answer in (behind, behind_too):
        assert answer.error.retryable and "earlier message of its ordering key" in str(answer.error)


async def test_what_google_cannot_do_is_refused_for_its_draft_alone():
    google = ScriptedGoogle(publish=storing([]))
    async with google.serving() as url:
        broker = await connect(url)
        good, bad = await broker.publish("orders", [Draft.of(b"x"), Draft.of(b"x", ttl=5)])
        await broker.aclose()
    assert isinstance(good, Receipt) and isinstance(bad, PublishFault)
    assert "time to live" in str(bad.error)


async def test_a_missing_permission_names_the_role_that_grants_it():
    async def refuse(_: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "User not authorized")

    google = ScriptedGoogle(publish=refuse)
    async with google.serving() as url:
        broker = await connect(url)
        with pytest.raises(PermissionDeniedError, match=r"roles/pubsub\.publisher"):
            await broker.publish("orders", [Draft.of(b"x")])
        await broker.aclose()


# Receiving.


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Resource not found (resource=orders).", TopicNotFoundError),
        ("Topic not found", TopicNotFoundError),
        ("Resource not found (resource=elsewhere).", NotFoundError),
        ("Requested project not found (project=project-one).", NotFoundError),
    ],
)
async def test_what_is_missing_is_what_google_says_or_what_was_asked_for(said, kind):
    async def serve(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, said)

    google = ScriptedGoogle(delete_topic=serve)
    async with google.serving() as url:
        broker = await connect(url)
        with pytest.raises(NotFoundError) as caught:
            await broker.admin.delete_topic("orders")
        await broker.aclose()
    assert type(caught.value) is kind
    assert kind is TopicNotFoundError or said in str(caught.value)


async def test_what_exists_is_named_even_where_google_does_not():
    routed: list[str] = []

    async def serve(_: Any, context: Any) -> None:
        routed.append(dict(context.invocation_metadata())["x-goog-request-params"])
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, "Subscription already exists")

    google = ScriptedGoogle(create_subscription=serve)
    async with google.serving() as url:
        broker = await connect(url)
        config = SubscriptionConfig(name="billing", topic="orders")
        with pytest.raises(AlreadyExistsError, match="subscriptions/billing"):
            await broker.admin.create_subscription(config)
        await broker.aclose()
    assert routed == ["name=projects%2Fproject-one%2Fsubscriptions%2Fbilling"]


async def test_a_stream_that_ends_is_opened_again_without_a_word():
    opened = 0

    async def serve(first: Any, requests: Any, context: Any) -> None:
        nonlocal opened
        opened += 1
        await context.write(received(str(opened)))
        if opened == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "closed as all streams are")
        if opened > 2:
            await for_ever()

    google = ScriptedGoogle(
        get_subscription=described, streaming_pull=serve, modify_ack_deadline=done
    )
    async with google.serving() as url:
        broker = await connect(url)
        seen: list[str] = []
        while len(seen) < 3:
            seen += texts(await pull(broker))
        await broker.aclose()
    assert seen == ["1", "2", "3"]


async def test_a_stream_that_only_ends_is_opened_more_and_more_slowly_and_an_error():
    async def serve(first: Any, requests: Any, context: Any) -> None:
        return

    google = ScriptedGoogle(get_subscription=described, streaming_pull=serve)
    async with google.serving() as url:
        broker = await connect(url)
        with pytest.raises(UnavailableError, match="ended without a word"):
            await pull(broker, wait=20)
        await broker.aclose()
    assert len(google.named("StreamingPull")) == 4


async def test_a_stream_that_cannot_be_opened_is_an_error_and_then_tried_again():
    google = ScriptedGoogle(get_subscription=described)
    async with google.serving() as url:
        broker = await connect(url)
        assert (await broker.admin.describe_subscription("billing")).config.ack_deadline == 10
    with pytest.raises(UnavailableError):
        await pull(broker, wait=30)
    await broker.aclose()


async def test_google_is_asked_for_what_callers_can_take_and_no_more():
    google = ScriptedGoogle(
        get_subscription=described,
        streaming_pull=sending(received("a", "b")),
        modify_ack_deadline=done,
        acknowledge=done,
    )
    async with google.serving() as url:
        broker = await connect(url)
        assert texts(await pull(broker, 2)) == ["a", "b"]
        waiting = asyncio.ensure_future(pull(broker, 5, wait=1))
        await waiting
        windows = [first.max_outstanding_messages for first in google.named("StreamingPull")]
        assert windows == [2, 5]
        await broker.aclose()


async def test_google_is_asked_for_no_more_bytes_than_callers_have_room_for():
    mb = 10**6
    async with Emulator(project="project-one") as emulator:
        broker = await connect(f"pubsub://project-one?emulator={emulator.address}")
        other = await connect(f"pubsub://project-one?emulator={emulator.address}")
        await broker.admin.create_topic(TopicConfig(name="orders"))
        await broker.admin.create_subscription(SubscriptionConfig(name="billing", topic="orders"))
        await broker.publish("orders", [Draft.of(b"x" * mb)] * 8)
        first, second = [
            await client.pull("billing", max_messages=99, max_bytes=2 * mb, wait=5)
            for client in (broker, other)
        ]
        assert (len(first), len(second)) == (2, 2)
        # What the first has not asked for is there for others.
        rest = 0
        while rest < 4:
            rest += len(await other.pull("billing", max_messages=99, max_bytes=99 * mb, wait=5))
        await broker.aclose()
        await other.aclose()


async def test_what_nobody_asked_for_is_given_back_at_the_end():
    google = ScriptedGoogle(
        get_subscription=described,
        streaming_pull=sending(received("a", "b", "c")),
        modify_ack_deadline=done,
    )
    async with google.serving() as url:
        broker = await connect(url)
        assert texts(await pull(broker, 1)) == ["a"]
        await broker.aclose()
        [given] = google.named("ModifyAckDeadline")
    assert (list(given.ack_ids), given.ack_deadline_seconds) == (["ack-b", "ack-c"], 0)


async def test_a_subscriber_need_not_be_allowed_to_look_at_its_subscription():
    async def refuse(_: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "User not authorized")

    google = ScriptedGoogle(
        get_subscription=refuse, streaming_pull=sending(received("a")), acknowledge=done
    )
    async with google.serving() as url:
        broker = await connect(url)
        [delivery] = await pull(broker)
        assert await broker.settle("billing", [Settlement(delivery.ack_id, Verb.ACK)]) == [
            AckResponse.SUCCESS
        ]
        assert await pull(broker, wait=0.2) == []
        await broker.aclose()


# Settling.


async def test_acks_and_deadlines_go_in_few_calls():
    google = ScriptedGoogle(get_subscription=described, acknowledge=done, modify_ack_deadline=done)
    async with google.serving() as url:
        broker = await connect(url)
        acks = [Settlement(f"ack-{n}", Verb.ACK) for n in range(3000)]
        others = [
            Settlement("n", Verb.NACK),
            Settlement("d", Verb.NACK, 29.5),
            Settlement("r", Verb.RELEASE),
            Settlement("e", Verb.EXTEND, 20.2),
        ]
        responses = await broker.settle("billing", [*acks, *others])
        await broker.aclose()
    assert responses == [AckResponse.SUCCESS] * 3004
    assert [len(request.ack_ids) for request in google.named("Acknowledge")] == [2500, 500]
    changed = {
        request.ack_deadline_seconds: list(request.ack_ids)
        for request in google.named("ModifyAckDeadline")
    }
    assert changed == {0: ["n", "r"], 30: ["d"], 21: ["e"]}


async def test_exactly_once_each_ack_id_has_an_answer_of_its_own():
    tries: list[list[str]] = []

    async def serve(request: Any, context: Any) -> Any:
        tries.append(list(request.ack_ids))
        if len(tries) == 1:
            await refuse_ack_ids(
                context,
                {
                    "old": "PERMANENT_FAILURE_INVALID_ACK_ID",
                    "later": "TRANSIENT_FAILURE_ORDERING",
                },
            )
        return Empty()

    google = ScriptedGoogle(get_subscription=described, acknowledge=serve)
    async with google.serving() as url:
        broker = await connect(url)
        settlements = [Settlement(i, Verb.ACK) for i in ("old", "later", "unsaid")]
        responses = await broker.settle("billing", settlements)
        await broker.aclose()
    assert responses == [AckResponse.INVALID, AckResponse.SUCCESS, AckResponse.OTHER]
    assert tries == [["old", "later", "unsaid"], ["later"]]


async def test_exactly_once_thousands_of_ack_ids_are_answered_too():
    async def serve(request: Any, context: Any) -> None:
        reason = "PERMANENT_FAILURE_INVALID_ACK_ID"
        await refuse_ack_ids(context, dict.fromkeys(request.ack_ids, reason))

    google = ScriptedGoogle(get_subscription=described, acknowledge=serve)
    acks = [Settlement(f"{number:0190}", Verb.ACK) for number in range(2500)]
    async with google.serving() as url:
        broker = await connect(url)
        responses = await broker.settle("billing", acks)
        await broker.aclose()
    assert set(responses) == {AckResponse.INVALID}


async def test_an_ack_id_that_google_never_gave_keeps_no_other_from_being_acked():
    acked: list[str] = []

    async def serve(request: Any, context: Any) -> Any:
        if "never given" in request.ack_ids:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Some ack ids were malformed")
        acked.extend(request.ack_ids)
        return Empty()

    google = ScriptedGoogle(get_subscription=described, acknowledge=serve)
    ids = [f"ack-{n}" for n in range(99)]
    async with google.serving() as url:
        broker = await connect(url)
        settlements = [Settlement(i, Verb.ACK) for i in (*ids[:42], "never given", *ids[42:])]
        responses = await broker.settle("billing", settlements)
        await broker.aclose()
    assert responses == [AckResponse.SUCCESS] * 100
    assert sorted(acked) == sorted(ids)
    assert len(google.named("Acknowledge")) <= 1 + 2 * 7  # halves, not one by one


async def test_a_rejected_message_is_buried_with_its_id_and_subject_or_comes_again_later(caplog):
    policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=5)
    async with Emulator(project="project-one") as emulator:
        broker = await connect(f"pubsub://project-one?emulator={emulator.address}")
        for topic in ("orders", "dead"):
            await broker.admin.create_topic(TopicConfig(name=topic))
        for name, topic, dead in (("billing", "orders", policy), ("grave", "dead", None)):
            config = SubscriptionConfig(name=name, topic=topic, dead_letter_policy=dead)
            await broker.admin.create_subscription(config)
        await broker.publish("orders", [Draft.of(b"x", None, None, "my-id", "orders.eu")])
        [rejected] = await pull(broker)
        await broker.settle("billing", [Settlement(rejected.ack_id, Verb.REJECT)])
        [letter] = await broker.pull("grave", max_messages=9, max_bytes=10**6, wait=5)
        assert (letter.record.message_id, letter.record.subject) == ("my-id", "orders.eu")
        await broker.admin.delete_topic("dead")
        await broker.publish("orders", [Draft.of(b"y")])
        [rejected] = await pull(broker)
        await broker.settle("billing", [Settlement(rejected.ack_id, Verb.REJECT)])
        assert await pull(broker, wait=0.5) == []
        await broker.aclose()
    assert "rejected by subscription 'billing', comes again" in caplog.text


async def test_what_a_subscription_was_changed_to_counts_at_once():
    async with Emulator(project="project-one") as emulator:
        broker = await connect(f"pubsub://project-one?emulator={emulator.address}")
        await broker.admin.create_topic(TopicConfig(name="orders"))
        config = SubscriptionConfig(name="billing", topic="orders")
        await broker.admin.create_subscription(config)
        never = [Settlement("never given", Verb.ACK)]
        assert await broker.settle("billing", never) == [AckResponse.SUCCESS]
        exact = replace(config, enable_exactly_once_delivery=True)
        await broker.admin.update_subscription(exact)
        assert await broker.settle("billing", never) == [AckResponse.INVALID]
        await broker.aclose()


async def test_a_pull_that_has_not_even_begun_ends_when_the_broker_is_closed():
    google = ScriptedGoogle(get_subscription=for_ever)
    async with google.serving() as url:
        broker = await connect(url)
        waiting = asyncio.ensure_future(pull(broker, wait=30))
        await eventually(lambda: google.named("GetSubscription"))
        await broker.aclose()
        with pytest.raises(ClosedError):
            await waiting


# A server that goes away.


async def test_a_subscriber_goes_on_when_the_emulator_comes_back():
    first = Emulator(project="project-one")
    await first.start()
    port = first.port
    broker = await connect(f"pubsub://project-one?emulator=127.0.0.1:{port}")

    async def create() -> None:
        await broker.admin.create_topic(TopicConfig(name="orders"))
        await broker.admin.create_subscription(SubscriptionConfig(name="billing", topic="orders"))

    await create()
    waiting = asyncio.ensure_future(pull(broker, wait=30))
    await asyncio.sleep(0.2)
    await first.aclose()
    async with Emulator(project="project-one", port=port):
        await eventually(lambda: waiting.done(), within=40)
        assert isinstance(waiting.exception(), Exception)  # a memory broker forgot it
        await create()
        await broker.publish("orders", [Draft.of(b"again")])
        assert texts(await pull(broker)) == ["again"]
        await broker.aclose()
