"""Threads for functions that wait, which keep no process from ending."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from penstock.subscribing.daemon_threads import DaemonThreads

NEVER_RETURNS = """
import threading
from penstock.subscribing.daemon_threads import DaemonThreads

began = threading.Event()

def wait():
    began.set()
    threading.Event().wait()

threads = DaemonThreads(1, "waiting")
threads.submit(wait)
began.wait()
threads.shutdown(wait=False, cancel_futures=True)
print("over")
"""


def test_a_function_that_never_returns_does_not_keep_the_process():
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_RETURNS], capture_output=True, timeout=60, check=True
    )
    assert ended.stdout == b"over\n"


def test_functions_run_side_by_side_up_to_the_count_and_the_others_wait():
    threads, together, go_on = DaemonThreads(2, "two"), threading.Barrier(3), threading.Event()

    def wait() -> str:
        together.wait(30)
        go_on.wait(30)
        return threading.current_thread().name

    first = [threads.submit(wait), threads.submit(wait)]
    third = threads.submit(lambda: "third")
    together.wait(30)
    assert not third.running() and not third.done()
    go_on.set()
    assert {one.result(30) for one in first} == {"two_0", "two_1"}
    assert third.result(30) == "third"
    threads.shutdown()


def test_an_idle_thread_is_used_again():
    threads = DaemonThreads(8, "one")
    names = set()
    for _ in range(3):
        names.add(threads.submit(lambda: threading.current_thread().name).result(30))
    assert names == {"one_0"}
    threads.shutdown()


def test_what_has_not_begun_is_cancelled_at_the_end_and_nothing_more_is_taken():
    threads, began, go_on = DaemonThreads(1, "ending"), threading.Event(), threading.Event()

    def wait() -> str:
        began.set()
        go_on.wait(30)
        return "done"

    running, waiting = threads.submit(wait), threads.submit(wait)
    began.wait(30)
    threads.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    assert running.result(30) == "done"
    with pytest.raises(CancelledError):
        waiting.result(30)
    with pytest.raises(RuntimeError, match="'ending' were shut down"):
        threads.submit(wait)
    threads.shutdown()


@pytest.mark.parametrize("error", [KeyError("k"), SystemExit(3), GeneratorExit()])
def test_what_a_function_raises_is_handed_over(error):
    def fail() -> None:
        raise error

    threads = DaemonThreads(1, "failing")
    assert threads.submit(fail).exception(30) is error
    assert threads.submit(lambda: "goes on").result(30) == "goes on"
    threads.shutdown()
