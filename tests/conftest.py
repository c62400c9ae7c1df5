"""Async tests run in virtual time unless they ask for real time.

With several processes (`-n 2`) the tests of a file stay together, because they share servers, and
all that need Spark share one: it takes seconds to start, and two of them would fill the machine.
"""

import gc
import inspect
import os
from collections.abc import Iterator

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
        item.add_marker(
            pytest.mark.xdist_group("spark" if _on_spark(item) else item.nodeid.split("::")[0])
        )
    if hasattr(config, "workerinput"):
        # The quick ones last, so that the processes end together.
        items.sort(key=_turn)


def _on_spark(item: pytest.Item) -> bool:
    return "tests/integration/spark/" in item.nodeid or "the_demo" in item.nodeid


def _turn(item: pytest.Item) -> int:
    if _on_spark(item):
        return 0
    return 2 if item.nodeid.startswith("tests/unit/") else 1


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
