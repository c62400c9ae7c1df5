"""What real servers that really die leave behind."""

import gc

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration" in item.nodeid:
            # nats-py does not close the socket of a reconnect that fails in its handshake; the
            # garbage collector does, and says so.
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )
        if "spark" in item.nodeid and not item.get_closest_marker("timeout"):
            # The first query of a session compiles for half a minute where the machine is busy.
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(autouse=True)
def collected():
    """So that it is said here, and not in the middle of another test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark():
    """One Spark for all: it takes seconds to start. Two cores, and a task may fail once."""
    from penstock.spark import session

    made = session("tests", "local[2,2]")
    yield made
    made.stop()
