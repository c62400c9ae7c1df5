"""The emulator in front of a broker that is somebody else's."""

from dataclasses import replace

import pytest

from penstock.broker import Capabilities
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.config import TopicConfig
from penstock.emulator import Emulator
from penstock.emulator.completing.passing import PassingOn


@pytest.mark.real_time
async def test_a_broker_that_was_given_stays_open_and_is_left_as_it_was():
    broker = MemoryBroker(Clock())
    before = broker.project
    async with Emulator(broker, project="shop"):
        assert broker.project == "shop"
    assert broker.project == before
    await broker.admin.create_topic(TopicConfig(name="orders"))
    await broker.aclose()


class Durable(PassingOn):
    @property
    def capabilities(self) -> Capabilities:
        return replace(self.broker.capabilities, durable=True)


@pytest.mark.real_time
@pytest.mark.parametrize("has_folder", [True, False])
async def test_what_is_kept_in_part_only_is_said(has_folder, tmp_path, caplog):
    folder = tmp_path if has_folder else None
    async with Emulator(Durable(MemoryBroker(Clock())), folder=folder):
        pass
    assert ("unless it is given a folder" in caplog.text) == (not has_folder)
