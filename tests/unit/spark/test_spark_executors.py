"""What is said while a cluster gives tasks nowhere to run, without a cluster."""

import logging
from types import SimpleNamespace

import pytest

from penstock.spark.jobs import executors
from penstock.spark.jobs.executors import Executors


class Cluster:
    """Stands for a session, its context and the JVM's. The driver keeps blocks as well."""

    _jsparkSession = object()  # noqa: N815

    def __init__(self, master="spark://127.0.0.1:7077"):
        self.master = master
        self.stages, self.executors = [7], 0
        self.sparkContext = self._jsc = self
        self.now = 100.0

    def statusTracker(self):  # noqa: N802
        return SimpleNamespace(getActiveStageIds=lambda: self.stages)

    def sc(self):
        blocks = SimpleNamespace(size=lambda: 1 + self.executors)
        return SimpleNamespace(getExecutorMemoryStatus=lambda: blocks)

    def monotonic(self):
        return self.now


@pytest.fixture
def cluster(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "penstock.spark")
    made = Cluster()
    monkeypatch.setattr(executors, "time", made)
    return made


def look_for(cluster, watched, seconds):
    for _ in range(int(seconds * 10)):
        watched.look()
        cluster.now += 0.1


def test_tasks_without_an_executor_are_told_of_once_and_so_is_the_end_of_it(cluster, caplog):
    watched = Executors(cluster)
    look_for(cluster, watched, 14)
    assert watched.lacks is None and not caplog.messages
    look_for(cluster, watched, 60)
    assert watched.lacks == "the cluster gives it no executor"
    [said] = caplog.messages
    assert "no executor for 15 s" in said and "spark.cores.max" in said
    cluster.executors = 1
    look_for(cluster, watched, 6)
    assert watched.lacks is None
    assert caplog.messages[1:] == [
        "The cluster has given this application an executor, and tasks run"
    ]


def test_a_cluster_that_has_nothing_to_do_needs_no_executors(cluster, caplog):
    cluster.stages = []
    watched = Executors(cluster)
    look_for(cluster, watched, 60)
    assert watched.lacks is None and not caplog.messages


def test_waiting_begins_anew_when_tasks_ran_in_between(cluster, caplog):
    watched = Executors(cluster)
    for executors_there in (0, 1, 0):
        cluster.executors = executors_there
        look_for(cluster, watched, 12)
    assert watched.lacks is None and not caplog.messages


@pytest.mark.parametrize("master", ["local[2]", "local", "local[*]"])
def test_a_driver_that_runs_tasks_itself_has_no_executors_to_wait_for(cluster, master):
    cluster.master = master
    watched = Executors(cluster)
    look_for(cluster, watched, 60)
    assert watched.lacks is None


def test_a_connect_session_is_not_asked():
    watched = Executors(SimpleNamespace())
    watched.look()
    assert watched.lacks is None
