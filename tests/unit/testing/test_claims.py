"""Every capability has its proof: a behaviour when it is claimed, one when it is not, and a row."""

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock import Capabilities
from penstock.brokers.google import GoogleBroker
from penstock.brokers.memory import MemoryBroker
from penstock.brokers.nats.broker import NatsBroker
from penstock.testing.conformance import BrokerConformance, Harness

ROOT = Path(__file__).parents[3]
FLAGS = [field.name for field in fields(Capabilities) if field.default is False]
BEHAVIOURS = {
    name: getattr(BrokerConformance, name)
    for name in dir(BrokerConformance)
    if name.startswith("test_")
}
# Without these nothing is refused: the client does it, and behaviours of every broker show it.
DONE_BY_THE_CLIENT = {
    "ordering": "test_messages_of_a_key_arrive_in_order_one_at_a_time",
    "sets_deadlines": "test_a_handler_may_ask_for_more_time_than_the_deadline",
}
# Nobody can ask for it, so nobody can be refused.
NOT_ASKED_FOR = {"counts_releases", "durable"}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_behaviour_proves_the_claim(flag):
    assert [name for name, test in BEHAVIOURS.items() if flag in test.needs]


@pytest.mark.parametrize("flag", sorted(set(FLAGS) - NOT_ASKED_FOR))
def test_a_behaviour_shows_what_happens_without_the_claim(flag):
    if flag in DONE_BY_THE_CLIENT:
        assert not BEHAVIOURS[DONE_BY_THE_CLIENT[flag]].needs
    else:
        assert [name for name, test in BEHAVIOURS.items() if flag == test.lacks]


def test_the_table_of_the_documentation_says_what_the_brokers_claim(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    sqlite = importlib.import_module("sqlite_broker").SqliteBroker
    page = (ROOT / "docs" / "brokers.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", page, re.MULTILINE
    )
    assert [flag for flag, *_ in rows] == FLAGS
    brokers = (MemoryBroker, NatsBroker, GoogleBroker, sqlite)
    for flag, *cells in rows:
        for broker, cell in zip(brokers, cells, strict=True):
            claimed = getattr(broker.capabilities, flag)
            assert (cell == "yes") is claimed, (broker, flag)


@pytest.mark.parametrize("arguments", [{}, {"url": "memory://", "connect": MemoryBroker}])
def test_a_harness_takes_an_address_or_a_way_to_connect(arguments):
    with pytest.raises(ValueError, match="one of the two"):
        Harness(**arguments)
