"""Whatever happens in whatever order: each committed message once, and each key in order."""

import asyncio
from collections import defaultdict
from contextlib import suppress

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Backoff, errors
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.message import Draft, PublishFault
from tests.support.outbox_scenes import outbox_on

FAULTS = [None, None, None, errors.ResourceExhaustedError, errors.InvalidArgumentError]
KEYS = st.sampled_from([None, None, "a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(KEYS, min_size=1, max_size=6)),
    st.tuples(st.just("add for later"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("roll back"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("step"), st.lists(st.sampled_from(FAULTS), max_size=6)),
    st.tuples(st.just("crash"), st.sampled_from(["claimed", "before-mark", "marking"])),
    st.tuples(st.just("time passes"), st.none()),
)


class CrashError(Exception):
    pass


class Scripted(MemoryBroker):
    """Answers with the faults it is given, then as usual."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.script = []
        self.refused = set()

    async def publish(self, topic, drafts):
        answers = []
        for draft in drafts:
            fault = self.script.pop(0) if self.script else None
            if fault is None:
                answers += await super().publish(topic, [draft])
                continue
            if fault is errors.InvalidArgumentError:
                self.refused.add(draft.message_id)
            answers.append(PublishFault(fault("scripted")))
        return answers


def crash_at(point):
    def checkpoint(name):
        if name == point:
            raise CrashError

    return checkpoint


async def run(steps):
    broker = Scripted()
    async with outbox_on("sqlite://", broker) as scene:
        committed = defaultdict(list)
        options = {"batch": 4, "max_attempts": 1000, "retry": Backoff(initial=600, maximum=600)}
        relays = [scene.relay(**options), scene.relay(**options)]

        async def add(keys, count, after=0.0):
            drafts = [Draft.of(b"", None, key, f"{key}-{count}-{n}") for n, key in enumerate(keys)]
            return await scene.outbox.add(connection, "orders", drafts, after=after)

        for count, (what, detail) in enumerate(steps):
            match what:
                case "add" | "add for later":
                    after = 0.0 if what == "add" else 600.0
                    async with scene.database.transaction() as connection:
                        added = await add(detail, count, after)
                    for key, message_id in zip(detail, added, strict=True):
                        committed[key].append(message_id)
                case "roll back":
                    async with scene.database.transaction() as connection:
                        await add(detail, count)
                        await connection.rollback()
                case "step":
                    broker.script = list(detail)
                    await relays[count % 2].step()
                    broker.script = []
                case "crash":
                    with suppress(CrashError):
                        await scene.relay(**options, checkpoint=crash_at(detail)).step()
                case "time passes":
                    await scene.time_passes()
        await scene.time_passes()
        while await relays[0].step():
            pass

        arrived = [record.message_id for record in await scene.stored()]
        dead = {row.message_id for row in await scene.outbox.dead()}
        assert dead <= broker.refused
        assert len(set(arrived)) == len(arrived)
        expected = {
            key: [i for i in all_ids if i not in dead] for key, all_ids in committed.items()
        }
        assert set(arrived) >= {i for kept in expected.values() for i in kept}
        # One that is dead may have arrived all the same: stored by an attempt whose relay died
        # before it could say so, and refused when it was sent again.
        assert set(arrived) <= {i for all_ids in committed.values() for i in all_ids}
        for key in ("a", "b"):
            came = [i for i in arrived if i[0] == key]
            assert came == [i for i in committed[key] if i in came]
        assert await scene.outbox.pending() == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=14))
@example(
    [
        ("add", [None]),
        ("crash", "before-mark"),
        ("time passes", None),
        ("step", [errors.InvalidArgumentError]),
    ]
)
def test_each_committed_message_arrives_once_and_each_key_in_order(steps):
    asyncio.run(run(steps))
