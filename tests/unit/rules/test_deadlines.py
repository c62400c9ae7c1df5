import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from penstock.rules.deadlines import Deadlines

keys = st.integers(0, 20)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 50), st.lists(keys, max_size=8)),
        st.tuples(st.just("discard"), st.just(0), st.lists(keys, min_size=1, max_size=3)),
        st.tuples(st.just("pass"), st.integers(0, 30), st.just([])),
    ),
    max_size=60,
)


@given(operations)
def test_every_key_falls_due_once_at_its_latest_deadline(steps):
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    now = 0
    for step, number, names in steps:
        if step == "add":
            deadlines.add(now + number, list(names))
            model |= dict.fromkeys(names, now + number)
        elif step == "discard":
            for name in names:
                assert deadlines.discard(name) == (model.pop(name, None) is not None)
        else:
            now += number
            due = deadlines.pop_due(now)
            assert sorted(due) == sorted(k for k, t in model.items() if t <= now)
            assert [model[k] for k in due] == sorted(model[k] for k in due)
            model = {k: t for k, t in model.items() if t > now}
        assert set(deadlines) == set(model)
        assert len(deadlines) == len(model)
        following = deadlines.next()
        if model:
            assert following is not None
            assert following <= min(model.values())


def test_memory_follows_the_live_keys_not_what_passed_through():
    deadlines: Deadlines[int] = Deadlines()
    deadlines.add(1e9, [-1])
    for n in range(100_000):
        deadlines.add(60.0 + n, [n])
        deadlines.discard(n)
    assert sum(len(names) for _, _, names in deadlines._heap) < 1000
    assert len(deadlines) == 1


def test_what_was_removed_is_let_go_of_by_later_additions():
    class Thing:
        pass

    deadlines: Deadlines[object] = Deadlines()
    thing = Thing()
    alive = weakref.ref(thing)
    deadlines.add(1, [thing])
    deadlines.discard(thing)
    del thing
    for n in range(1000):
        deadlines.add(n, [n])
        deadlines.discard(n)
    gc.collect()
    assert alive() is None
