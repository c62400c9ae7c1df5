"""What waits together is done together, and answered for itself."""

import asyncio

import pytest

from penstock.batching import GroupCommit
from penstock.errors import InternalError
from tests.support.scenes import cancel_all_others


class Acts:
    def __init__(self, fails=lambda item: False):
        self.batches = []
        self.gate = asyncio.Event()
        self._fails = fails

    async def __call__(self, items):
        self.batches.append(list(items))
        await self.gate.wait()
        if any(self._fails(item) for item in items):
            raise ZeroDivisionError
        return [item * 2 for item in items]


async def test_a_lone_call_goes_at_once_and_the_rest_together():
    acts = Acts()
    commit = GroupCommit(acts, all_or_none=True)
    calls = [asyncio.ensure_future(commit.do(0))]
    await asyncio.sleep(0)
    calls += [asyncio.ensure_future(commit.do(n)) for n in range(1, 6)]
    await asyncio.sleep(0)
    acts.gate.set()
    assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8, 10]
    assert acts.batches == [[0], [1, 2, 3, 4, 5]]


async def test_no_batch_is_larger_than_allowed():
    acts = Acts()
    acts.gate.set()
    commit = GroupCommit(acts, most=3)
    await asyncio.gather(*(commit.do(n) for n in range(8)))
    assert max(map(len, acts.batches)) == 3


async def test_a_failure_is_that_of_its_own_call_alone():
    acts = Acts(fails=lambda item: item == 3)
    acts.gate.set()
    commit = GroupCommit(acts, all_or_none=True)
    answers = await asyncio.gather(*(commit.do(n) for n in range(6)), return_exceptions=True)
    assert isinstance(answers.pop(3), ZeroDivisionError)
    assert answers == [0, 2, 4, 8, 10]


async def test_a_caller_that_is_cancelled_takes_nobody_along():
    acts = Acts()
    commit = GroupCommit(acts, all_or_none=True)
    calls = [asyncio.ensure_future(commit.do(n)) for n in range(4)]
    await asyncio.sleep(0)
    calls[2].cancel()
    calls[0].cancel()
    await asyncio.sleep(0)
    acts.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [a for a in answers if not isinstance(a, asyncio.CancelledError)] == [2, 6]
    await commit.aclose()


async def test_closing_waits_for_what_was_begun():
    acts = Acts()
    commit = GroupCommit(acts, all_or_none=True)
    call = asyncio.ensure_future(commit.do(1))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(commit.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    acts.gate.set()
    await closing
    assert await call == 2


async def test_when_the_work_itself_is_cancelled_nobody_waits_for_ever():
    acts = Acts()
    commit = GroupCommit(acts, all_or_none=True)
    calls = [asyncio.ensure_future(commit.do(n)) for n in range(3)]
    while not acts.batches:
        await asyncio.sleep(0)
    commit._task.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
    with pytest.raises(asyncio.CancelledError):
        await calls[0]


async def test_a_measure_that_fails_is_told_to_all_who_ask_and_the_next_are_answered():
    async def act(items):
        return items

    def measure(item):
        if item == "odd":
            raise TypeError("no measure")
        return 1, 0

    commit = GroupCommit(act, measure=measure)
    answers = await asyncio.gather(*map(commit.do, ["a", "odd"]), return_exceptions=True)
    assert [str(one) for one in answers] == ["no measure", "no measure"]
    assert await commit.do("b") == "b"


async def test_a_call_is_bounded_by_what_its_items_measure():
    acts = Acts()
    acts.gate.set()
    commit = GroupCommit(acts, most=5, most_bytes=100, measure=lambda item: (2, item))
    answers = await asyncio.gather(*(commit.do(n) for n in (10, 500, 60, 50, 20, 10)))
    assert answers == [20, 1000, 120, 100, 40, 20]
    assert acts.batches == [[10], [500], [60], [50, 20], [10]]


async def test_most_items_want_no_answer_and_those_that_do_get_their_own():
    acts = Acts()
    acts.gate.set()
    commit = GroupCommit(acts, most=3)
    answers = {}
    for n in range(8):
        if n % 3 == 1:
            answers[n] = commit.ask(n)
        else:
            commit.add(n)
    assert (len(commit), commit.unanswered) == (8, 8)
    assert await commit.finished()
    assert {n: answer.result() for n, answer in answers.items()} == {1: 2, 4: 8, 7: 14}
    assert acts.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert commit.unanswered == 0


async def test_what_was_cancelled_before_its_call_is_left_out():
    acts = Acts()
    commit = GroupCommit(acts)
    first = commit.ask(0)
    await asyncio.sleep(0)
    later = [commit.ask(n) for n in range(1, 5)]
    later[1].cancel()
    acts.gate.set()
    assert await asyncio.gather(first, *later[:1], *later[2:]) == [0, 2, 6, 8]
    assert acts.batches == [[0], [1, 3, 4]]


async def test_a_call_waits_for_those_who_are_about_to_come_with_more():
    acts = Acts()
    acts.gate.set()
    commit = GroupCommit(acts, quiet_turns=5)

    async def comes_again(n):
        await commit.do(n)
        for _ in range(n):
            await asyncio.sleep(0)
        await commit.do(n)

    await asyncio.gather(*(comes_again(n) for n in range(4)))
    assert acts.batches == [[0, 1, 2, 3], [0, 1, 2, 3]]


async def test_giving_up_answers_everybody_and_ends_the_call():
    acts = Acts()
    commit = GroupCommit(acts)
    calls = [commit.ask(0)]
    await asyncio.sleep(0)
    calls.append(commit.ask(1))
    assert not await commit.finished(timeout=1)
    commit.give_up(-1)
    assert await asyncio.gather(*calls) == [-1, -1]
    assert (len(commit), commit.unanswered) == (0, 0)
    acts.gate.set()
    assert await commit.do(2) == 4
    assert acts.batches == [[0], [2]]


async def test_a_short_answer_is_an_error_not_a_wait_for_ever():
    async def forgets(items):
        return []

    with pytest.raises(InternalError, match="0 answers came for 1"):
        await GroupCommit(forgets).do(1)


async def test_without_a_promise_of_all_or_none_nothing_is_done_twice():
    acts = Acts(fails=lambda item: item == 1)
    acts.gate.set()
    commit = GroupCommit(acts)
    answers = await asyncio.gather(*(commit.do(n) for n in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3
    assert acts.batches == [[0, 1, 2]]


def cancel_all():
    """As `asyncio.run` does at the end, to all but the task that asks for it."""
    cancel_all_others()


@pytest.mark.parametrize("turns", [0, 1])
async def test_when_all_tasks_are_cancelled_nobody_waits_for_ever(turns):
    commit = GroupCommit(Acts())
    asked = commit.ask(1)
    for _ in range(turns):
        await asyncio.sleep(0)
    cancel_all()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await commit.finished()


@pytest.mark.parametrize("turns", [0, 1])
async def test_what_may_be_repeated_is_done_though_all_tasks_were_cancelled(turns):
    acts = Acts()
    commit = GroupCommit(acts, most=2, repeatable=True)
    asked = [commit.ask(n) for n in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    cancel_all()
    await asyncio.sleep(0)
    assert commit.unanswered == 3
    acts.gate.set()
    assert await commit.finished()
    assert await asyncio.gather(*asked) == [0, 2, 4]
    assert acts.batches == [[0, 1]] * turns + [[0, 1], [2]]


async def test_what_is_done_next_waits_for_the_running_call_alone():
    acts = Acts()
    commit = GroupCommit(acts, most=2)
    calls = [asyncio.ensure_future(commit.do(n)) for n in range(6)]
    await asyncio.sleep(0)
    calls[3].cancel()
    calls.append(asyncio.ensure_future(commit.do_next(10)))
    await asyncio.sleep(0)
    acts.gate.set()
    *answers, urgent = await asyncio.gather(*calls, return_exceptions=True)
    assert urgent == 20 and isinstance(answers.pop(3), asyncio.CancelledError)
    assert answers == [0, 2, 4, 8, 10]
    assert acts.batches == [[0, 1], [10, 2], [4], [5]]
    assert await commit.do_next(7) == 14
