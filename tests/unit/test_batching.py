"""What waits together is done together, and answered for itself."""

import asyncio

import pytest

from penstock.batching import Together


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
    together = Together(acts)
    calls = [asyncio.ensure_future(together.do(0))]
    await asyncio.sleep(0)
    calls += [asyncio.ensure_future(together.do(n)) for n in range(1, 6)]
    await asyncio.sleep(0)
    acts.gate.set()
    assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8, 10]
    assert acts.batches == [[0], [1, 2, 3, 4, 5]]


async def test_no_batch_is_larger_than_allowed():
    acts = Acts()
    acts.gate.set()
    together = Together(acts, most=3)
    await asyncio.gather(*(together.do(n) for n in range(8)))
    assert max(map(len, acts.batches)) == 3


async def test_a_failure_is_that_of_its_own_call_alone():
    acts = Acts(fails=lambda item: item == 3)
    acts.gate.set()
    together = Together(acts)
    answers = await asyncio.gather(*(together.do(n) for n in range(6)), return_exceptions=True)
    assert isinstance(answers.pop(3), ZeroDivisionError)
    assert answers == [0, 2, 4, 8, 10]


async def test_a_caller_that_is_cancelled_takes_nobody_along():
    acts = Acts()
    together = Together(acts)
    calls = [asyncio.ensure_future(together.do(n)) for n in range(4)]
    await asyncio.sleep(0)
    calls[2].cancel()
    calls[0].cancel()
    await asyncio.sleep(0)
    acts.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [a for a in answers if not isinstance(a, asyncio.CancelledError)] == [2, 6]
    await together.aclose()


async def test_closing_waits_for_what_was_begun():
    acts = Acts()
    together = Together(acts)
    call = asyncio.ensure_future(together.do(1))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(together.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    acts.gate.set()
    await closing
    assert await call == 2


async def test_when_the_work_itself_is_cancelled_nobody_waits_for_ever():
    acts = Acts()
    together = Together(acts)
    calls = [asyncio.ensure_future(together.do(n)) for n in range(3)]
    while not acts.batches:
        await asyncio.sleep(0)
    together._task.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
