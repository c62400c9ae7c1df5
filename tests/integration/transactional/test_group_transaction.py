"""What waits for the database at the same time is one transaction, and answered for itself."""

import asyncio

import pytest

from penstock.errors import UnavailableError
from penstock.transactional import Database
from penstock.transactional.group_transaction import GroupTransaction

pytestmark = pytest.mark.real_time


class Changes:
    """Doubles numbers; a negative one fails."""

    def __init__(self):
        self.made, self.committed = [], []

    async def __call__(self, _, items):
        self.made.append(list(items))
        if any(item < 0 for item in items):
            raise ZeroDivisionError
        return [item * 2 for item in items]

    def on_commit(self, items):
        self.committed.append(list(items))


async def test_who_comes_while_another_writer_has_the_turn_is_taken_along(tmp_path):
    changes = Changes()
    async with Database(f"sqlite:///{tmp_path}/a.db") as database:
        group = GroupTransaction(database, changes, on_commit=changes.on_commit)
        async with database.transaction():
            asked = []
            for number in range(5):
                asked.append(group.ask(number))
                await asyncio.sleep(0.01)
            assert not changes.made
        assert await asyncio.gather(*asked) == [0, 2, 4, 6, 8]
    assert changes.made == changes.committed == [[0, 1, 2, 3, 4]]


async def test_one_that_fails_takes_nobody_along(url):
    changes = Changes()
    async with Database(url) as database:
        group = GroupTransaction(database, changes, on_commit=changes.on_commit)
        answers = await asyncio.gather(*map(group.do, (1, -1, 3)), return_exceptions=True)
    assert [answers[0], answers[2]] == [2, 6]
    assert isinstance(answers[1], ZeroDivisionError)
    assert changes.committed == [[1], [3]]


async def test_a_transaction_that_cannot_begin_is_told_to_all_at_once(tmp_path):
    """Each for itself would wait as long again."""
    changes = Changes()
    async with Database(f"sqlite:///{tmp_path}/a.db", busy_timeout=0.05) as database:
        group = GroupTransaction(database, changes, on_commit=changes.on_commit)
        async with database.transaction():
            answers = await asyncio.gather(*map(group.do, range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnavailableError}
    assert len(set(map(id, answers))) == 1
    assert not changes.made
