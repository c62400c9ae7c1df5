"""What a broker offers decides how it is read."""

import pytest

from penstock.connect import BrokerKind, register_broker
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.spark.options import SinkOptions, SourceOptions
from penstock.spark.ranges import open_patiently
from tests.support.range_logs import FakeRangeLog


async def nobody(url, clock):
    raise AssertionError("options open nothing")


def test_a_broker_with_ranges_is_read_as_a_log_and_any_other_as_a_queue():
    register_broker("with-ranges", BrokerKind(nobody, lambda url: FakeRangeLog()))
    register_broker("without-ranges", BrokerKind(nobody))
    log = SourceOptions.of({"url": "with-ranges://", "topic": "orders"})
    queue = {"url": "without-ranges://", "subscription": "billing", "spoolLocation": "/spool"}
    assert (log.mode, SourceOptions.of(queue).mode) == ("log", "queue")
    asked = {**queue, "url": "with-ranges://", "mode": "queue"}
    assert SourceOptions.of(asked).mode == "queue"
    SinkOptions.of({"url": "with-ranges://", "topic": "orders", "fence": "true"})
    with pytest.raises(InvalidArgumentError, match="keeps no log"):
        SinkOptions.of({"url": "without-ranges://", "topic": "orders", "fence": "true"})
    with pytest.raises(UnimplementedError, match="without-ranges:// keeps no log"):
        open_patiently("without-ranges://", 1.0)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "Set option 'url'"),
        ("nowhere://", "No broker for nowhere://"),
        ("memory://", "is one process's own"),
        ("local://data", "absolute path"),
    ],
)
def test_an_address_that_sparks_processes_cannot_share_is_refused(url, says):
    with pytest.raises(InvalidArgumentError, match=says):
        SourceOptions.of({"url": url, "topic": "orders"})
    with pytest.raises(InvalidArgumentError, match=says):
        SinkOptions.of({"url": url, "topic": "orders"})
