"""How a claim is published, without a database: what each answer means, order, pauses."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock import Backoff, PubSub, errors
from penstock.testing.waiting import settled
from penstock.transactional.bundles import Bundle
from penstock.transactional.claim_publisher import ClaimPublisher
from penstock.transactional.row_leases import Claim, Claimed, Outcomes
from tests.support.outbox_scenes import drafts
from tests.support.troubled_broker import Troubled, failing

# Jitter may make any pause short; this one is not, but once in a million runs.
LONG = Backoff(initial=1e6, maximum=1e6)


@asynccontextmanager
async def publishing(broker, **options):
    async with PubSub(broker=broker) as pubsub:
        for topic in ("orders", "others"):
            await pubsub.topic(topic).create(message_retention=3600)
        defaults = {"retry": LONG, "max_attempts": 3, "timeout": 5.0, "observe": None}
        defaults["checkpoint"] = lambda _: None
        yield ClaimPublisher(pubsub, "mine", **defaults | options)


def rows(*drafts, topic="orders", attempts=0, start=1):
    return [Claimed(n, topic, attempts, draft) for n, draft in enumerate(drafts, start)]


def claim(*rows, keyed=False):
    return Claim(1, keyed, rows)


def in_bundles(*bundles, topic="orders"):
    return Claim(1, False, [], [Bundle(f"b-{n}", topic, some) for n, some in enumerate(bundles)])


async def outcomes_of(publisher, claim):
    outcomes = Outcomes()
    await publisher.publish(claim, outcomes)
    return outcomes


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ResourceExhaustedError, "again"),
        (errors.NotFoundError, "again"),
        (errors.PermissionDeniedError, "again"),
        (errors.UnauthenticatedError, "again"),
        (errors.InvalidArgumentError, "dead"),
        (errors.UnavailableError, "given_back"),
        (errors.DeadlineExceededError, "given_back"),
        (errors.ClosedError, "given_back"),
    ],
)
async def test_a_row_is_published_or_what_its_error_says_and_the_others_are_published(error, kind):
    async with publishing(Troubled(failing(1, error, only={"m-1"}))) as publisher:
        outcomes = await outcomes_of(publisher, claim(*rows(*drafts(3))))
        assert outcomes.published == {1: 1, 3: 2}
        assert outcomes.mentioned() == {1, 2, 3}
        assert f"{error.__name__}: not now" in str(getattr(outcomes, kind)[2])


async def test_an_observer_that_fails_changes_nothing(caplog):
    def observe(topic, *_):
        raise RuntimeError(topic)

    async with publishing(Troubled(), observe=observe) as publisher:
        others = rows(*drafts(1), topic="others", start=3)
        outcomes = await outcomes_of(publisher, claim(*rows(*drafts(2)), *others))
        assert outcomes.published == {1: 1, 2: 2, 3: 1}
        assert "observer of a relay failed" in caplog.text


async def test_the_last_attempt_of_a_row_is_counted_and_then_it_is_dead():
    async with publishing(Troubled(failing(1))) as publisher:
        [before], [last] = rows(*drafts(1), attempts=1), rows(*drafts(1), attempts=2, start=2)
        outcomes = await outcomes_of(publisher, claim(before))
        assert list(outcomes.again) == [1]
    async with publishing(Troubled(failing(1))) as publisher:
        outcomes = await outcomes_of(publisher, claim(last))
        assert outcomes.dead == {2: "ResourceExhaustedError: not now"}


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (errors.ResourceExhaustedError, [["a-0", "b-0"], ["b-1"], ["b-2"]]),
        (errors.UnavailableError, [["a-0", "b-0"], ["b-1"], ["b-2"]]),
        (errors.InvalidArgumentError, [["a-0", "b-0"], ["a-1", "b-1"], ["a-2", "b-2"]]),
    ],
)
async def test_what_follows_in_a_key_is_sent_when_what_is_before_it_is_published_or_dead(
    error, sent
):
    broker = Troubled(failing(1, error, only={"a-0"}))
    async with publishing(broker) as publisher:
        both = rows(*drafts(3, "a"), *drafts(3, "b"))
        await outcomes_of(publisher, claim(*both, keyed=True))
        assert list(map(sorted, broker.calls)) == sent


async def test_a_topic_that_does_not_answer_holds_up_no_other_and_its_rows_are_given_back():
    class Half(Troubled):
        async def publish(self, topic, messages):
            if topic == "others":
                await asyncio.Event().wait()
            return await super().publish(topic, messages)

    async with publishing(Half()) as publisher:
        both = [*rows(*drafts(2)), *rows(*drafts(2), topic="others", start=3)]
        outcomes = Outcomes()
        task = asyncio.create_task(publisher.publish(claim(*both), outcomes))
        await settled()
        assert outcomes.mentioned() == {1, 2}
        await task
        reason = "DeadlineExceededError: Topic 'others' did not answer within 5 s"
        assert outcomes.given_back == {3: reason, 4: reason}
        assert publisher.paused() == ["others"]


async def test_when_it_is_cancelled_the_outcomes_say_what_is_known():
    broker = Troubled()
    async with publishing(broker) as publisher:
        outcomes = Outcomes()
        keyed = claim(*rows(*drafts(3, "a")), keyed=True)

        def shut(draft):
            broker.open.clear()

        broker.trouble = shut
        task = asyncio.create_task(publisher.publish(keyed, outcomes))
        await settled()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert outcomes.mentioned() == {1}
        assert broker.calls == [["a-0"], ["a-1"]]


@pytest.mark.parametrize("raised", [OSError("boom"), errors.InternalError("boom")])
async def test_what_a_broker_raises_is_its_answer_to_every_message(raised):
    class Raising(Troubled):
        async def publish(self, topic, messages):
            raise raised

    async with publishing(Raising()) as publisher:
        outcomes = await outcomes_of(publisher, claim(*rows(*drafts(2))))
        assert list(outcomes.again) == [1, 2]
        assert all("boom" in reason for _, reason in outcomes.again.values())
        outcomes = await outcomes_of(publisher, in_bundles(drafts(2)))
        assert outcomes.left == {"b-0": drafts(2)}


@pytest.mark.parametrize("answered", [1, 3])
async def test_answers_that_are_too_few_or_too_many_are_nobodys(answered):
    class Miscounting(Troubled):
        async def publish(self, topic, messages):
            return (await super().publish(topic, [*messages, *messages]))[:answered]

    async with publishing(Miscounting()) as publisher:
        outcomes = await outcomes_of(publisher, claim(*rows(*drafts(2))))
        assert outcomes.published == {}
        reason = f"InternalError: Topic 'orders': {answered} answers came for 2 messages"
        assert [why for _, why in outcomes.again.values()] == [reason, reason]


async def test_of_each_bundle_there_is_left_what_was_not_stored():
    broker = Troubled(failing(1, only={"m-1", "m-4"}))
    async with publishing(broker) as publisher:
        three = in_bundles(drafts(2), drafts(1, start=2), drafts(3, start=3))
        outcomes = await outcomes_of(publisher, three)
        left = {name: [draft.message_id for draft in some] for name, some in outcomes.left.items()}
        assert left == {"b-0": ["m-1"], "b-1": [], "b-2": ["m-4"]}
        # In one call, in order.
        assert broker.calls == [[f"m-{n}" for n in range(6)]]


@pytest.mark.parametrize("made", [lambda some: claim(*rows(*some)), in_bundles])
async def test_a_topic_out_of_reach_is_left_alone_until_it_is_reached(made, caplog):
    caplog.set_level("INFO")
    broker = Troubled(failing(2, errors.UnavailableError))
    async with publishing(broker) as publisher:
        for _ in range(2):
            await outcomes_of(publisher, made(drafts(1)))
            assert publisher.paused() == ["orders"]
        await outcomes_of(publisher, made(drafts(1)))
        assert publisher.paused() == []
    told = [r.levelname for r in caplog.records if "out of reach of relay mine" in r.getMessage()]
    assert told == ["WARNING", "INFO"]


async def test_a_pause_ends_by_itself():
    broker = Troubled(failing(1, errors.UnavailableError))
    async with publishing(broker, retry=Backoff(initial=1.0, maximum=1.0)) as publisher:
        await outcomes_of(publisher, claim(*rows(*drafts(1))))
        await asyncio.sleep(1.0)
        assert publisher.paused() == []


@pytest.mark.parametrize("made", [lambda some: claim(*rows(*some)), in_bundles])
async def test_who_wants_to_know_is_told_when_something_was_stored_and_only_meanwhile(made):
    told = []
    async with publishing(Troubled(failing(1, only={"m-0"}))) as publisher:
        with publisher.telling(lambda: told.append(1)):
            await outcomes_of(publisher, made(drafts(1)))
            assert told == []
            await outcomes_of(publisher, made(drafts(2)))
            assert told == [1]
        await outcomes_of(publisher, made(drafts(1, start=2)))
        assert told == [1]


@pytest.mark.parametrize("made", [lambda some: claim(*rows(*some)), in_bundles])
async def test_an_observer_is_told_of_each_message_what_the_broker_said(made):
    class Slow(Troubled):
        async def publish(self, topic, messages):
            await asyncio.sleep(2.0)
            return await super().publish(topic, messages)

    told, steps = [], []
    broker = Slow(failing(1, only={"m-1"}))
    async with publishing(
        broker, observe=lambda *said: told.append(said), checkpoint=steps.append
    ) as publisher:
        await outcomes_of(publisher, made(drafts(2)))
    (first, second), (well, badly) = drafts(2), told
    assert well == ("orders", first, 2.0, None)
    assert badly[:3] == ("orders", second, 2.0)
    assert isinstance(badly[3], errors.ResourceExhaustedError)
    assert steps == ["publishing", "published"]


async def test_a_long_reason_is_cut():
    long = Troubled(lambda _: errors.InvalidArgumentError("x" * 1000))
    async with publishing(long) as publisher:
        outcomes = await outcomes_of(publisher, claim(*rows(*drafts(1))))
        assert len(outcomes.dead[1]) == 500
        assert outcomes.dead[1].endswith("x…")
