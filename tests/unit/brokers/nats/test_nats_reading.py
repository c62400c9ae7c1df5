"""Reading ranges from a server that does what is hard to make a real one do."""

from contextlib import contextmanager

import pytest

from penstock import Draft
from penstock.brokers.nats.sync.direct import DirectReader
from penstock.brokers.nats.sync.passing_consumer import PassingConsumer
from penstock.brokers.nats.sync.ranges import NatsRangeLog
from penstock.errors import NotFoundError, TopicNotFoundError, UnavailableError
from tests.support.range_logs import read_all_ranges
from tests.unit.brokers.nats.test_nats_records import REPLY, delivered, direct, status, wire

DIRECT = {"config": {"allow_direct": True}}


class ScriptedServer:
    """A link whose server answers as told: requests by name, and reads one after the other."""

    is_open = True

    def __init__(self, *reads, **answers):
        self.reads = list(reads)
        self.answers = answers
        self.asked = []

    @contextmanager
    def use(self):
        yield self

    def request(self, subject, body=None, *, missing=None):
        self.asked.append(subject)
        answer = self.answers[subject.rpartition(".")[0].replace(".", "_").lower()]
        if isinstance(answer, Exception):
            raise missing() if missing and isinstance(answer, NotFoundError) else answer
        return answer

    def send(self, subject, header, payload):
        return REPLY

    def receive_into(self, parser):
        parser.take(self.reads.pop(0))
        return parser.status

    def control(self, line):
        raise AssertionError(line)


def messages(make, *sequences):
    return b"".join(wire(make(n, Draft(b"%d" % n, message_id=f"id-{n}"))) for n in sequences)


def sequences(batches):
    return [n for columns in batches for n in columns.sequences]


def test_a_replica_that_is_behind_is_no_end_of_the_topic():
    server = ScriptedServer(
        messages(direct, 1, 2) + status(204),
        status(404),
        stream_msg_get={"message": {"seq": 3}},
    )
    reading = DirectReader(server, "orders").read(1, 5)
    assert next(reading).sequences == [1, 2]
    with pytest.raises(UnavailableError, match="behind sequence 3"):
        next(reading)


@pytest.mark.parametrize("leader", [{"message": {"seq": 6}}, NotFoundError("no message found")])
def test_a_topic_ends_where_its_leader_says(leader):
    server = ScriptedServer(
        messages(direct, 1, 2) + status(204),
        status(404),
        stream_msg_get=leader,
        stream_info=DIRECT,
    )
    assert sequences(DirectReader(server, "orders").read(1, 5)) == [1, 2]


def test_nobody_who_answers_is_a_missing_topic_only_if_the_server_says_so():
    gone = ScriptedServer(status(503), stream_info=NotFoundError("stream not found"))
    with pytest.raises(TopicNotFoundError):
        list(DirectReader(gone, "orders").read(1, 5))
    choosing = ScriptedServer(status(503), stream_info=DIRECT)
    with pytest.raises(UnavailableError, match="answered 503"):
        list(DirectReader(choosing, "orders").read(1, 5))


def consumer(*reads, **answers):
    made = {"consumer_create": {"name": "passing"}, "consumer_delete_orders": {}}
    return ScriptedServer(*reads, **made, **answers)


def test_a_message_that_a_consumer_sent_and_that_never_came_is_noticed():
    server = consumer(messages(delivered, 1, 3) + status(404))
    with pytest.raises(UnavailableError, match="2 messages came of 3"):
        list(PassingConsumer(server, "orders").read(1, 5))
    assert server.asked[-1] == "CONSUMER.DELETE.orders.passing"


def test_a_consumer_sends_what_there_is_and_is_deleted():
    server = consumer(messages(delivered, 1, 2) + status(404), status(404))
    assert sequences(PassingConsumer(server, "orders").read(1, 5)) == [1, 2]
    assert server.asked == ["CONSUMER.CREATE.orders", "CONSUMER.DELETE.orders.passing"]


@pytest.fixture
def through_a_consumer(monkeypatch):
    """Read a range of a topic that keeps what it has, of a server that has so much of it."""
    read_all_ranges(monkeypatch, "through a consumer")

    def read(*reads, leader):
        log = NatsRangeLog(lambda: None)
        about = {"config": {"allow_direct": True, "retention": "limits"}}
        log._link = consumer(*reads, stream_info=about, stream_msg_get=leader)
        return log.read("orders", 1, 5)

    return read


def test_a_consumer_on_a_replica_that_is_behind_is_no_end_of_the_topic(through_a_consumer):
    reading = through_a_consumer(
        messages(delivered, 1, 2) + status(404), status(404), leader={"message": {"seq": 3}}
    )
    assert next(reading).sequences == [1, 2]
    with pytest.raises(UnavailableError, match="behind sequence 3"):
        next(reading)


@pytest.mark.parametrize("leader", [{"message": {"seq": 6}}, NotFoundError("no message found")])
def test_a_range_that_a_consumer_read_ends_where_the_leader_says(through_a_consumer, leader):
    reading = through_a_consumer(
        messages(delivered, 1, 2) + status(404), status(404), leader=leader
    )
    assert sequences(reading) == [1, 2]


@pytest.mark.parametrize(
    ("leader", "first"), [({"message": {"seq": 3}}, 3), (NotFoundError("no message found"), None)]
)
def test_a_moment_that_a_replica_has_not_come_to_is_asked_of_the_leader(leader, first):
    server = ScriptedServer(status(404), stream_msg_get=leader, stream_info=DIRECT)
    assert DirectReader(server, "orders").first_since(5) == first


def test_nobody_is_asked_about_a_range_that_came_whole(through_a_consumer):
    whole = messages(delivered, 1, 2, 3, 4, 5) + status(404)
    assert sequences(through_a_consumer(whole, leader=AssertionError("asked"))) == [1, 2, 3, 4, 5]
