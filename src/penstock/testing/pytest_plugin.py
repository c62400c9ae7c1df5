"""pytest plugin: `async def` tests marked `virtual_time` or `real_time` just run.

    @pytest.mark.virtual_time      # an hour of deadlines in no time
    async def test_…(): …

Tests without these marks are left to whatever else runs async tests, unless the settings say
`penstock_virtual_time = true`: then they run in virtual time.

The fixture `pubsub_emulator` gives a test a Google Pub/Sub of its own, in a thread; its address is
in PUBSUB_EMULATOR_HOST, where every client of Google's looks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.emulator import EmulatorInThread


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "penstock_virtual_time", "run async tests in virtual time", type="bool", default=False
    )


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in (
        ("virtual_time", "run this async test on a loop with virtual time"),
        ("real_time", "run this async test on a plain event loop"),
    ):
        config.addinivalue_line("markers", f"{mark}: {meaning}")


@pytest.fixture
def pubsub_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorInThread]:
    """A fresh emulator; needs penstock[emulator]."""
    from penstock.testing.emulator import EmulatorInThread

    with EmulatorInThread() as emulator:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        yield emulator


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    run = _runner(pyfuncitem)
    if run is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _runner(item: pytest.Item) -> Callable[[Coroutine[Any, Any, Any]], Any] | None:
    from penstock.testing.clock import run_real, run_virtual

    if item.get_closest_marker("real_time"):
        return run_real
    virtual = item.get_closest_marker("virtual_time") or item.config.getini("penstock_virtual_time")
    return run_virtual if virtual else None
