"""An emulator for each file of tests, with Google's own clients."""

from collections.abc import Iterator

import pytest

from penstock.testing.emulator import EmulatorInThread
from tests.support.google_clients import PROJECT, Google

# Deadlines of ten seconds and more, which Google asks for, pass in half a second.
SPEED = 20


@pytest.fixture(scope="module")
def google() -> Iterator[Google]:
    with EmulatorInThread(project=PROJECT, speed=SPEED) as emulator:
        clients = Google(emulator.address)
        yield clients
        clients.close()


@pytest.fixture
def unhurried() -> Iterator[Google]:
    """In the wall's time, for tests where a deadline that passes would be the machine's doing."""
    with EmulatorInThread(project=PROJECT) as emulator:
        clients = Google(emulator.address)
        yield clients
        clients.close()


@pytest.fixture(scope="module")
def environment() -> Iterator[str]:
    """In the wall's time, and where every client of Google's looks for it."""
    with EmulatorInThread(project=PROJECT) as emulator, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        yield emulator.address
