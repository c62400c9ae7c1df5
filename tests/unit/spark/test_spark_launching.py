"""Ctrl-C while Spark's JVM starts, without one."""

import logging
import signal
import threading

import pytest
from pyspark import SparkContext

from penstock.spark.session.launching import heeding_ctrl_c, leaving_out_ctrl_c


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_it_does_not_take_away_the_folder_that_the_jvm_writes_to(ctrl_c):
    done = []
    with pytest.raises(KeyboardInterrupt):
        with heeding_ctrl_c():
            ctrl_c()
            done.append("the JVM is there")
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_heeded_at_once_when_the_jvm_is_there(ctrl_c, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        with heeding_ctrl_c():
            monkeypatch.setattr(SparkContext, "_gateway", object())
            ctrl_c()
            pytest.fail("it was not interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_went_wrong_is_said_though_somebody_was_impatient(ctrl_c):
    with pytest.raises(OSError, match="no Java"):
        with heeding_ctrl_c():
            ctrl_c()
            raise OSError("no Java")


def test_the_handler_of_a_session_stays():
    def of_session(*_):
        pass

    with heeding_ctrl_c():
        signal.signal(signal.SIGINT, of_session)
    assert signal.getsignal(signal.SIGINT) is of_session


def test_whoever_hears_ctrl_c_otherwise_is_left_alone():
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("here"))
    with heeding_ctrl_c():
        signal.raise_signal(signal.SIGINT)
    assert heard == ["here"]


def test_other_threads_have_no_signals():
    entered = []

    def main():
        with heeding_ctrl_c():
            entered.append(True)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    assert entered


def interrupted_call(name, error):
    """As py4j makes it: it tells what it raises."""
    try:
        raise error
    except BaseException:
        logging.getLogger(name).exception("while sending command")


@pytest.mark.parametrize("within", [heeding_ctrl_c, leaving_out_ctrl_c])
@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway", None])
def test_calls_that_were_interrupted_are_not_told_of_and_others_are(caplog, name, within):
    with within():
        interrupted_call(name, KeyboardInterrupt())
        interrupted_call(name, RuntimeError("reentrant call inside <_io.BufferedReader name=6>"))
        assert not caplog.records
        interrupted_call(name, OSError("no Java"))
        assert len(caplog.records) == 1
    interrupted_call(name, KeyboardInterrupt())
    assert len(caplog.records) == 2
