"""Async tests run in virtual time unless they ask for real time.

With several processes (`-n 3`) the tests of a file stay together, because they share servers, and
all that need Spark share one: it takes seconds to start, and two of them would fill the machine.
"""

import gc
import inspect
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.support.servers import PostgresServer

# The same examples each time, so that a change is judged by what it changed. `make chaos` looks for
# new ones.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Spark lives for minutes here. Java's second compiler would take half of its time, to save some
# later.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
        if is_async and not item.get_closest_marker("real_time"):
            item.add_marker("virtual_time")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """Not by xdist's marks of groups: with pytest 9.2 it passes over them."""

        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


def _group(nodeid: str) -> str:
    on_spark = nodeid.startswith("tests/integration/spark/") or "the_demo" in nodeid
    return "spark" if on_spark else nodeid.split("::")[0]


# They wait for deadlines of servers most of the time.
_WAITING = ("tests/conformance/", "/test_nats_cluster.py", "/test_durable.py")


def _turn(nodeid: str) -> int:
    """Spark, the longest group, begins, and beside it what leaves it the processors; the quick
    ones end, so that all processes end together."""
    if _group(nodeid) == "spark":
        return 0
    if any(part in nodeid for part in _WAITING):
        return 1
    return 3 if nodeid.startswith("tests/unit/") else 2


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end. Left out of what the garbage collector looks at, they do
    not make every collection, of which there is one a test, last longer than most tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; each asks it for a database of its own."""
    with PostgresServer() as server:
        yield server
