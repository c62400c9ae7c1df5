"""What is counted of jobs, beside what is counted of messages."""

from prometheus_client import CollectorRegistry

from penstock import Draft, observing
from penstock.jobs import PrometheusObserver
from penstock.jobs.telemetry import subject_of


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
