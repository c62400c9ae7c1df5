"""What is counted of jobs, beside what is counted of messages, and what is told of publishes."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from penstock import Draft, observing
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.jobs import LoggingObserver, Observer, PrometheusObserver, telemetry
from penstock.jobs.telemetry import JobObservers, as_relay_observer, subject_of

MESSAGE = Draft.of(b"x", {"jobId": "j-1", "stage": "Queued"})


def test_metrics_of_jobs_and_of_messages_share_a_registry():
    registry = CollectorRegistry()
    messages = observing.PrometheusObserver(registry)
    jobs = PrometheusObserver(registry)
    messages.published("job-processing", [Draft.of(b"x")], RuntimeError("away"), 2.0)
    jobs.published(subject_of({}, 1), "job-processing", 0.5, None)
    topic = {"messaging_destination_name": "job-processing"}
    sums = {
        "messaging_client_operation_duration_seconds_sum": {"messaging_operation_name": "send"},
        "penstock_jobs_publish_duration_seconds_sum": {"outcome": "ok"},
    }
    told = [registry.get_sample_value(name, topic | more) for name, more in sums.items()]
    assert told == [2.0, 0.5]


@pytest.fixture
def found_out(monkeypatch):
    """Attributes of messages of which it was found out whom they are about."""
    seen = []

    def finding_out(attributes, attempt):
        seen.append(dict(attributes))
        return subject_of(attributes, attempt)

    monkeypatch.setattr(telemetry, "subject_of", finding_out)
    return seen


def test_whom_a_publish_is_about_is_not_found_out_for_logs_and_metrics_that_do_not_say(
    found_out, caplog
):
    caplog.set_level(logging.INFO, "penstock.jobs")
    registry = CollectorRegistry()
    both = JobObservers(LoggingObserver(), PrometheusObserver(registry))
    for observer in (JobObservers(both), LoggingObserver(), Observer()):
        observe = as_relay_observer(observer)
        observe("job-events", MESSAGE, 0.5, None)
        observe("job-events", MESSAGE, 0.25, UnavailableError("away"))
    assert found_out == []
    assert caplog.records == []
    value = registry.get_sample_value
    for outcome, seconds in (("ok", 0.5), ("UnavailableError", 0.25)):
        sent = {"messaging_destination_name": "job-events", "outcome": outcome}
        assert value("penstock_jobs_publish_duration_seconds_count", sent) == 1
        assert value("penstock_jobs_publish_duration_seconds_sum", sent) == seconds


@pytest.mark.parametrize(
    ("level", "error", "line"),
    [
        (logging.DEBUG, None, "published jobId=j-1 stage=Queued attempt=1 topic=job-events"),
        (logging.DEBUG, UnavailableError("away"), "not published jobId=j-1"),
        (logging.INFO, InvalidArgumentError("no"), "not published jobId=j-1"),
    ],
)
def test_a_line_about_a_publish_says_whom_it_is_about(found_out, caplog, level, error, line):
    caplog.set_level(level, "penstock.jobs")
    as_relay_observer(JobObservers(LoggingObserver()))("job-events", MESSAGE, 0.5, error)
    assert found_out == [MESSAGE.attributes]
    assert caplog.records[0].getMessage().startswith(line)


@pytest.mark.parametrize("base", [Observer, LoggingObserver, JobObservers])
def test_an_observer_of_somebodys_own_is_told_of_every_publish_and_whom_it_is_about(base):
    told = []

    class Own(base):
        def published(self, subject, topic, seconds, error):
            told.append((subject.job_id, topic, seconds, error))

    as_relay_observer(JobObservers(LoggingObserver(), Own()))("job-events", MESSAGE, 0.5, None)
    as_relay_observer(Own())("job-events", MESSAGE, 0.5, None)
    assert told == [("j-1", "job-events", 0.5, None)] * 2
