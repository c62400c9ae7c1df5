"""Receiving through Google's client: what its own emulator gets wrong is right here."""

import threading
import time

import grpc
import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.types import FlowControl
from google.pubsub_v1.types import StreamingPullRequest

from tests.support.google_clients import Received


@pytest.fixture
def subscribed(google):
    """Open subscriptions, closed when the test is over."""
    futures = []

    def subscribe(sub, handle=None, **options):
        received = Received(handle)
        futures.append(google.subscriber.subscribe(sub, received, **options))
        received.future = futures[-1]
        return received

    yield subscribe
    for future in futures:
        future.cancel()
        future.result(10)


def test_what_is_published_arrives_once(unhurried):
    topic, sub = unhurried.pair()
    received = Received()
    future = unhurried.subscriber.subscribe(sub, received)
    sent = [unhurried.publisher.publish(topic, b"%d" % n) for n in range(1000)]
    ids = {one.result(30) for one in sent}
    received.wait_for(1000, within=50)
    future.cancel()
    future.result(30)
    assert {message.message_id for message in received.messages} == ids
    assert len(received.messages) == 1000
    assert unhurried.pull(sub) == []


def test_a_filter_lets_through_what_it_says_and_nothing_else(google):
    topic = google.topic()
    queued = google.subscription(topic, filter='attributes.stage = "Queued"')
    prefixed = google.subscription(topic, filter='NOT hasPrefix(attributes.ce-type, "a")')
    for stage in ("Queued", "Done"):
        google.publish(topic, stage, **{"stage": stage, "ce-type": stage[:1].lower()})
    google.publish(topic, "bare")
    assert [m.message.data for m in google.pull(queued)] == [b"Queued"]
    assert [m.message.data for m in google.pull(prefixed)] == [b"Queued", b"Done", b"bare"]


def test_a_retry_policy_delays_every_redelivery_the_first_included(google):
    policy = {"minimum_backoff": {"seconds": 20}, "maximum_backoff": {"seconds": 40}}
    topic, sub = google.pair(retry_policy=policy)
    google.publish(topic, "x")
    times = []
    for _ in range(3):
        [received] = google.pull_until(sub, 1)
        times.append(time.monotonic())
        google.nack(sub, received)
        assert google.pull(sub) == []
    # Twenty and forty seconds of the emulator's time.
    assert times[1] - times[0] >= 0.95
    assert times[2] - times[1] >= 1.95


def test_a_nacked_message_keeps_its_place_in_its_key(google, subscribed):
    topic, sub = google.pair(enable_message_ordering=True)
    google.publish(topic, *"01234", ordering_key="key")
    refused = set()

    def handle(message):
        if message.data in (b"1", b"3") and message.data not in refused:
            refused.add(message.data)
            message.nack()
        else:
            message.ack()

    received = subscribed(sub, handle)
    received.wait_for(7)
    assert received.texts == list("0112334")


def test_an_expired_message_keeps_its_place_in_its_key(google):
    topic, sub = google.pair(enable_message_ordering=True)
    google.publish(topic, *"012", ordering_key="key")
    google.publish(topic, "other", ordering_key="other key")
    assert {m.message.data for m in google.pull(sub)} == {b"0", b"other"}
    again = google.pull_until(sub, 2)
    assert {m.message.data for m in again} == {b"0", b"other"}
    assert {m.message.ordering_key for m in again} == {"key", "other key"}
    google.ack(sub, *again)
    assert [m.message.data for m in google.pull(sub)] == [b"1"]


def test_dead_letters_move_after_the_last_attempt_with_googles_attributes(google):
    topic, dead = google.topic(), google.topic()
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    sub = google.subscription(topic, dead_letter_policy=policy)
    graveyard = google.subscription(dead)
    google.publish(topic, "poison", kind="test")
    for attempt in range(1, 6):
        [received] = google.pull_until(sub, 1)
        assert received.delivery_attempt == attempt
        google.nack(sub, received)
    [letter] = google.pull_until(graveyard, 1)
    attributes = dict(letter.message.attributes)
    source = "CloudPubSubDeadLetterSource"
    assert attributes.pop("kind") == "test"
    assert attributes.pop(f"{source}TopicPublishTime")
    assert attributes == {
        f"{source}DeliveryCount": "5",
        f"{source}Subscription": sub.rpartition("/")[2],
        f"{source}SubscriptionProject": google.project,
    }
    assert google.pull(sub) == []


def test_a_message_comes_back_after_its_deadline_and_an_extension_holds_it(google):
    topic, sub = google.pair(ack_deadline_seconds=10)
    google.publish(topic, "x")
    [first] = google.pull(sub)
    google.extend(sub, 60, first)
    time.sleep(1)  # twenty seconds there
    assert google.pull(sub) == []
    google.extend(sub, 10, first)
    [second] = google.pull_until(sub, 1)
    assert second.message.message_id == first.message.message_id
    assert second.ack_id != first.ack_id


def test_an_empty_pull_answers_before_the_callers_deadline(google):
    _, sub = google.pair()
    request = {"subscription": sub, "max_messages": 10}
    began = time.monotonic()
    assert not google.subscriber.pull(request=request, timeout=1, retry=None).received_messages
    assert time.monotonic() - began < 1


def test_a_pull_takes_no_more_than_it_asks_for(google):
    topic, sub = google.pair()
    google.publish(topic, *"abcde")
    assert len(google.pull(sub, 3)) == 3
    assert len(google.pull(sub, 3)) == 2
    error = google.refusal(google.pull, sub, 0)
    assert isinstance(error, exceptions.InvalidArgument) and "max_messages" in error.message


# Streams as Google's server sees them, without the client's own flow control on top.


class RawStream:
    def __init__(self, google, sub, deadline=600, **options):
        self._requests = [
            StreamingPullRequest(subscription=sub, stream_ack_deadline_seconds=deadline, **options)
        ]
        self._more = threading.Condition()
        self._open = True
        stub = google.subscriber.transport.streaming_pull
        self.call = stub(self._iterate())
        self.received = []
        self.responses = []
        self.error = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, **fields):
        with self._more:
            self._requests.append(StreamingPullRequest(**fields))
            self._more.notify()

    def _iterate(self):
        while True:
            with self._more:
                self._more.wait_for(lambda: self._requests or not self._open)
                if not self._requests:
                    return
                request = self._requests.pop(0)
            yield request

    def _read(self):
        try:
            for response in self.call:
                self.responses.append(response)
                self.received += response.received_messages
        except grpc.RpcError as error:
            self.error = error

    def cancel(self):
        self.call.cancel()
        self._reader.join(10)
        self._end()

    def ended(self, within=10):
        self._reader.join(within)
        self._end()
        assert self.error is not None
        return self.error

    def _end(self):
        with self._more:
            self._open = False
            self._more.notify()

    def wait_for(self, count, within=10):
        until = time.monotonic() + within
        while len(self.received) < count:
            assert time.monotonic() < until, f"only {len(self.received)} of {count} came"
            time.sleep(0.01)


@pytest.fixture
def stream(google):
    opened = []

    def open_stream(sub, **options):
        opened.append(RawStream(google, sub, **options))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.cancel()


def test_a_stream_holds_no_more_messages_than_it_allows(google, stream):
    topic, sub = google.pair()
    google.publish(topic, *"abcdefgh")
    held = stream(sub, max_outstanding_messages=3)
    held.wait_for(3)
    time.sleep(0.2)
    assert len(held.received) == 3
    google.ack(sub, held.received[0])
    held.wait_for(4)
    held.send(ack_ids=[one.ack_id for one in held.received[1:3]])
    held.wait_for(6)
    time.sleep(0.2)
    assert len(held.received) == 6


def test_a_stream_holds_no_more_bytes_than_it_allows(google, stream):
    topic, sub = google.pair()
    google.publish(topic, *["x" * 500] * 5)
    held = stream(sub, max_outstanding_bytes=1000)
    held.wait_for(2)
    time.sleep(0.2)
    assert len(held.received) == 2
    google.ack(sub, held.received[0])
    held.wait_for(3)


def test_what_expired_makes_room_on_its_stream(google, stream):
    topic, sub = google.pair()
    google.publish(topic, "first", "second")
    held = stream(sub, deadline=10, max_outstanding_messages=1)
    held.wait_for(1)
    held.wait_for(3)  # each comes again once its deadline has passed
    assert {m.message.data for m in held.received} == {b"first", b"second"}


def test_a_cancelled_stream_leaves_its_messages_to_the_next_at_once(google, stream):
    topic, sub = google.pair(ack_deadline_seconds=600)
    google.publish(topic, *"abc")
    first = stream(sub)
    first.wait_for(3)
    first.cancel()
    second = stream(sub)
    second.wait_for(3, within=3)
    assert {m.message.data for m in second.received} == {b"a", b"b", b"c"}


def test_what_a_client_extended_stays_its_own_after_its_stream(google, stream):
    topic, sub = google.pair(ack_deadline_seconds=600)
    google.publish(topic, *"ab")
    first = stream(sub)
    first.wait_for(2)
    google.extend(sub, 600, first.received[0])
    first.cancel()
    second = stream(sub)
    second.wait_for(1)
    time.sleep(0.2)
    assert [m.message.data for m in second.received] == [first.received[1].message.data]
    google.ack(sub, first.received[0])
    second.cancel()
    assert [m.message.data for m in google.pull_until(sub, 1)] == [b"b"]


def test_what_was_sent_on_a_stream_that_the_server_ended_is_still_its_clients(google, stream):
    topic, sub = google.pair(ack_deadline_seconds=600)
    google.publish(topic, "x")
    first = stream(sub)
    first.wait_for(1)
    first.send(subscription=sub)  # may be said once only
    first.ended()
    second = stream(sub)
    google.publish(topic, "y")
    second.wait_for(1)
    google.ack(sub, first.received[0])
    assert [m.message.data for m in second.received] == [b"y"]


def test_a_nack_on_one_stream_reaches_another(google, stream):
    topic, sub = google.pair()
    google.publish(topic, "x")
    first = stream(sub, max_outstanding_messages=1)
    first.wait_for(1)
    second = stream(sub)
    first.send(modify_deadline_ack_ids=[first.received[0].ack_id], modify_deadline_seconds=[0])
    until = time.monotonic() + 5
    while len(first.received) + len(second.received) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_every_response_says_what_the_subscription_is(google, stream):
    topic, sub = google.pair(enable_message_ordering=True, enable_exactly_once_delivery=True)
    google.publish(topic, "x", ordering_key="k")
    opened = stream(sub, protocol_version=1)
    opened.wait_for(1)
    until = time.monotonic() + 10
    while len(opened.responses) < 2:  # the second is a keepalive
        assert time.monotonic() < until
        time.sleep(0.01)
    for response in opened.responses:
        assert response.subscription_properties.exactly_once_delivery_enabled
        assert response.subscription_properties.message_ordering_enabled


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ({"subscription": "projects/p/subscriptions/sub"}, "subscription"),
        ({"max_outstanding_messages": 5}, "max_outstanding_messages"),
        ({"stream_ack_deadline_seconds": 5}, "stream_ack_deadline_seconds"),
        ({"modify_deadline_ack_ids": ["x"]}, "same length"),
        (
            {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [601]},
            "modify_deadline_seconds",
        ),
    ],
)
def test_a_later_request_that_is_wrong_ends_the_stream(google, stream, later, said):
    _, sub = google.pair()
    opened = stream(sub)
    opened.send()
    opened.send(**later)
    error = opened.ended()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in error.details()


@pytest.mark.parametrize("deadline", [0, 9, 601])
def test_a_stream_must_have_a_deadline_google_takes(google, stream, deadline):
    _, sub = google.pair()
    error = stream(sub, deadline=deadline).ended()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "stream_ack_deadline_seconds" in error.details()


def test_a_stream_on_what_is_not_there_or_is_deleted_ends_with_not_found(google, stream):
    _, sub = google.pair()
    assert stream(sub + "-missing").ended().code() is grpc.StatusCode.NOT_FOUND
    opened = stream(sub)
    opened.send()
    time.sleep(0.1)
    google.subscriber.delete_subscription(request={"subscription": sub})
    assert opened.ended().code() is grpc.StatusCode.NOT_FOUND


def test_google_s_own_flow_control_is_served(google, subscribed):
    topic, sub = google.pair()
    released = threading.Event()

    def handle(message):
        released.wait(10)
        message.ack()

    received = subscribed(sub, handle, flow_control=FlowControl(max_messages=3))
    google.publish(topic, *"abcdefgh")
    received.wait_for(3)
    time.sleep(0.3)
    assert len(received.messages) == 3
    released.set()
    received.wait_for(8)


def test_messages_unfinished_at_shutdown_come_to_the_next_subscriber(google, subscribed):
    topic, sub = google.pair(ack_deadline_seconds=600)
    google.publish(topic, *"abcdef")
    hold = threading.Event()
    first = subscribed(sub, lambda message: hold.wait(5), flow_control=FlowControl(max_messages=2))
    first.wait_for(2)
    first.future.cancel()
    hold.set()
    first.future.result(10)
    second = subscribed(sub)
    second.wait_for(4)
    assert set(second.texts) >= set("cdef")


def test_exactly_once_an_ack_id_is_good_once_and_failures_say_why(google):
    topic, sub = google.pair(enable_exactly_once_delivery=True, ack_deadline_seconds=10)
    google.publish(topic, "a", "b")
    first, second = google.pull(sub)
    google.ack(sub, first)
    stale = google.pull_until(sub, 1)  # the deadline of the second has passed
    error = google.refusal(google.ack, sub, second, stale[0])
    assert isinstance(error, exceptions.InvalidArgument)
    assert error.reason == "EXACTLY_ONCE_ACKID_FAILURE"
    assert error.domain == "pubsub.googleapis.com"
    assert error.metadata == {second.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    error = google.refusal(google.extend, sub, 20, stale[0])
    assert error.metadata == {stale[0].ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}


def test_exactly_once_the_client_is_told_whether_its_ack_counted(google, subscribed):
    topic, sub = google.pair(enable_exactly_once_delivery=True)
    answers = []

    def handle(message):
        answers.append(message.ack_with_response())

    received = subscribed(sub, handle)
    google.publish(topic, "x")
    received.wait_for(1)
    assert answers[0].result(10).name == "SUCCESS"
    assert google.pull(sub) == []


def test_without_exactly_once_an_old_ack_id_is_no_error_but_a_foreign_one_is(google):
    topic, sub = google.pair()
    other = google.subscription(topic)
    google.publish(topic, "x")
    [received] = google.pull(sub)
    google.ack(sub, received)
    google.ack(sub, received)
    for wrong in (other, sub):
        ack_ids = [received.ack_id] if wrong is other else ["made up"]
        error = google.refusal(
            google.subscriber.acknowledge, request={"subscription": wrong, "ack_ids": ack_ids}
        )
        assert isinstance(error, exceptions.InvalidArgument)
        assert "ack_ids" in error.message
    assert len(google.pull(other)) == 1
