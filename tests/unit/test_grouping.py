"""Tests that share servers run in one process, however many there are."""

from types import SimpleNamespace

from tests.conftest import pytest_xdist_make_scheduler

TESTS = [
    "tests/acceptance/test_examples.py::test_the_demo_writes",
    "tests/integration/spark/test_spark_batch.py::test_one",
    "tests/integration/spark/test_spark_sink.py::test_two[a@b]",
    "tests/integration/jobs/test_api.py::test_three",
    "tests/integration/jobs/test_api.py::TestFour::test_four",
    "tests/acceptance/test_examples.py::test_five",
]


class Process:
    """One of xdist's, as its scheduler sees it."""

    def __init__(self):
        self.gateway = SimpleNamespace(id=id(self))
        self.shutting_down = False
        self.given = []

    def send_runtest_some(self, indices):
        self.given += [TESTS[index] for index in indices]

    def shutdown(self):
        self.shutting_down = True


def test_tests_of_a_file_and_all_of_spark_stay_together():
    config = SimpleNamespace(
        getvalue=lambda name: {"tx": ["2*popen"]}[name],
        option=SimpleNamespace(loadscopereorder=False, debug=False),
    )
    scheduler = pytest_xdist_make_scheduler(config, None)
    processes = [Process(), Process()]
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, TESTS)
    scheduler.schedule()
    assert [process.given for process in processes] == [TESTS[:3], TESTS[3:]]
