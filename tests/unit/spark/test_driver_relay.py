"""The driver's relay goes on, whatever is raised in it."""

import threading

from penstock.jobs import load_settings
from penstock.spark.jobs import driver_relay
from penstock.spark.jobs.driver_relay import DriverRelay


def test_an_error_that_nobody_foresaw_does_not_end_it(monkeypatch, caplog):
    tries = 0
    opened = threading.Event()

    class Failing:
        def __init__(self, url):
            nonlocal tries
            tries += 1
            if tries < 3:
                raise RuntimeError("unforeseen")
            opened.set()
            raise OSError("that is enough")

    monkeypatch.setattr(driver_relay, "PubSub", Failing)
    with DriverRelay(load_settings(environ={})) as relay:
        assert opened.wait(60)
        assert relay._thread.is_alive()
    assert "unforeseen" in caplog.text
