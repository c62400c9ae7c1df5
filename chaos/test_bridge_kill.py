"""Kill relay, consumer and writer at every labelled step, on both databases: every committed event
has one committed effect, and no other event has any."""

import asyncio
import os
import signal
from functools import partial

import pytest
from sqlalchemy import delete, insert
from tests.support.servers import NatsServer, PostgresServer

from chaos.bridge import (
    APART_STEPS,
    CONSUMER_STEPS,
    RELAY_STEPS,
    Place,
    consume,
    consume_all,
    consume_apart,
    effects,
    effects_and_orders,
    faults,
    killer,
    prepare,
    relay,
    relay_all,
    run_forked,
    write,
    write_and_die,
)
from penstock.transactional import Database

# How often each process is killed at each of its steps.
KILLS = int(os.environ.get("CHAOS_KILLS", "100"))
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def postgres():
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as server:
        url = f"sqlite:///{tmp_path}/app.db"
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres").new_database()
        place = Place(server.url, url)
        asyncio.run(prepare(place))
        yield place


def verdict(place, committed, rolled_back):
    seen, kept = asyncio.run(effects_and_orders(place))
    assert kept == set(committed), "orders are not what was committed: the trial itself is wrong"
    return faults(committed, rolled_back, seen)


def test_killed_at_any_step_every_committed_event_has_one_effect(place):
    committed, rolled_back = [], []
    for turn in range(KILLS):
        for step in RELAY_STEPS:
            ids = [f"{turn}-{step}-{n}" for n in range(2)]
            gone = [f"rolled-back-{turn}-{step}"]
            asyncio.run(write(place, ids, gone))
            committed += ids
            rolled_back += gone
            assert run_forked(partial(relay, place, killer(step))) == -signal.SIGKILL, step
        never = [f"killed-{turn}"]
        assert run_forked(partial(write_and_die, place, never)) == -signal.SIGKILL
        rolled_back += never
    asyncio.run(relay_all(place))
    for _ in range(KILLS):
        for step in CONSUMER_STEPS:
            assert run_forked(partial(consume, place, killer(step))) == -signal.SIGKILL, step
    asyncio.run(consume_all(place))
    assert verdict(place, committed, rolled_back) == []


def test_killed_in_a_handler_without_a_connection_every_event_is_handled_and_none_given_up(
    place, tmp_path
):
    """At least once, and a process that dies spends none of its events."""
    ids = [f"{n}" for n in range(12)]
    asyncio.run(write(place, ids, []))
    asyncio.run(relay_all(place))
    effects_elsewhere = tmp_path / "effects"

    def note(event_id):
        with effects_elsewhere.open("a") as file:
            file.write(f"{event_id}\n")

    for step in APART_STEPS * 2:
        killed = run_forked(partial(consume_apart, place, note, killer(step)))
        assert killed == -signal.SIGKILL, step
    assert asyncio.run(consume_apart(place, note)) == 0
    assert set(effects_elsewhere.read_text().split()) == set(ids)


@pytest.mark.parametrize(
    ("planted", "told"),
    [("loss", "lost: 1"), ("duplicate", "2 times: 2"), ("rolled back", "rolled back: no")],
)
def test_the_verdict_sees_what_is_planted_among_real_effects(place, planted, told):
    committed, rolled_back = ["1", "2", "3"], ["no"]
    asyncio.run(write(place, committed, rolled_back))
    asyncio.run(relay_all(place))
    asyncio.run(consume_all(place))
    assert verdict(place, committed, rolled_back) == []

    async def plant():
        async with Database(place.database) as database:
            async with database.transaction() as connection:
                if planted == "loss":
                    await connection.execute(delete(effects).where(effects.c.event == "1"))
                else:
                    event = "2" if planted == "duplicate" else "no"
                    await connection.execute(insert(effects), {"event": event})

    asyncio.run(plant())
    assert verdict(place, committed, rolled_back) == [told]


def test_the_verdict_names_everything_that_is_wrong():
    assert faults(["a", "b"], ["r"], ["a", "b"]) == []
    assert faults(["a", "b"], ["r"], ["b", "b", "r", "x"]) == [
        "lost: a",
        "2 times: b",
        "rolled back: r",
        "never published: x",
    ]
