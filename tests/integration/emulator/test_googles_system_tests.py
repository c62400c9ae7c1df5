"""What the system tests of Google's Python client do, call by call and assertion by assertion.

They are written anew, against the emulator and without their long waits; roles of IAM, which it
does not enforce, are left out.
"""

import datetime
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1 import types
from google.pubsub_v1 import types as gapic_types

from tests.support.google_clients import PROJECT, Received

HERE = f"projects/{PROJECT}"


@pytest.fixture
def publisher(environment) -> Iterator[pubsub_v1.PublisherClient]:
    with pubsub_v1.PublisherClient() as client:
        yield client


@pytest.fixture
def subscriber(environment) -> Iterator[pubsub_v1.SubscriberClient]:
    with pubsub_v1.SubscriberClient() as client:
        yield client


@pytest.fixture
def names(request) -> tuple[str, str]:
    unique = request.node.name.replace("[", ".").rstrip("]")[:60]
    return f"{HERE}/topics/t.{unique}", f"{HERE}/subscriptions/s.{unique}"


@pytest.fixture
def pair(publisher, subscriber, names) -> Iterator[tuple[str, str]]:
    topic, sub = names
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=sub, topic=topic)
    yield topic, sub
    subscriber.delete_subscription(subscription=sub)
    publisher.delete_topic(topic=topic)


def publish(publisher, topic: str, count: int, **attributes: str) -> None:
    """Numbered from 1, each in a batch of its own."""
    for number in range(1, count + 1):
        publisher.publish(topic, b"a message", seq_num=str(number), **attributes).result(10)


def test_five_hundred_messages_each_get_an_id(publisher, names):
    topic, _ = names
    publisher.create_topic(name=topic)
    sent = [publisher.publish(topic, b"hail in Wales", num=str(i)) for i in range(500)]
    ids = [future.result(20) for future in sent]
    assert all(isinstance(one, str) for one in ids) and len(set(ids)) == 500
    publisher.delete_topic(topic=topic)


def test_messages_that_are_too_large_together_go_in_several_requests(environment, names):
    topic, _ = names
    batches = types.BatchSettings(max_bytes=11 * 10**6, max_latency=0.5, max_messages=100)
    with pubsub_v1.PublisherClient(batch_settings=batches) as publisher:
        publisher.create_topic(name=topic)
        data = b"x" * (2 * 10**6)
        sent = [publisher.publish(topic, data, num=str(i)) for i in range(5)]
        assert all(isinstance(future.result(20), str) for future in sent)
        publisher.delete_topic(topic=topic)


def test_what_was_published_before_the_subscriber_came_reaches_it(publisher, subscriber, pair):
    topic, sub = pair
    sent = [publisher.publish(topic, b"claw", num=str(i)) for i in range(50)]
    futures.wait(sent)
    received = Received()
    pulling = subscriber.subscribe(sub, received)
    received.wait_for(50)
    pulling.cancel()
    pulling.result(10)
    assert {message.attributes["num"] for message in received.messages} == {
        str(i) for i in range(50)
    }


def test_callbacks_run_beside_each_other(publisher, subscriber, pair):
    topic, sub = pair
    together = threading.Barrier(2, timeout=20)

    def handle(message) -> None:
        together.wait()
        message.ack()

    received = Received(handle)
    publish(publisher, topic, 2)
    pulling = subscriber.subscribe(sub, received)
    received.wait_for(2)
    pulling.cancel()
    pulling.result(10)
    assert not together.broken


def test_a_subscription_is_listed_as_it_was_made(publisher, subscriber, names):
    topic, sub = names
    publisher.create_topic(name=topic)
    made = subscriber.create_subscription(
        {
            "name": sub,
            "topic": topic,
            "ack_deadline_seconds": 30,
            "retain_acked_messages": True,
            "message_retention_duration": {"seconds": 911},
            "expiration_policy": {"ttl": {"seconds": 90210}},
        }
    )
    [found] = [one for one in subscriber.list_subscriptions(project=HERE) if one.topic == topic]
    assert found == made
    assert (found.ack_deadline_seconds, found.retain_acked_messages) == (30, True)
    assert found.message_retention_duration.seconds == 911
    assert found.expiration_policy.ttl == datetime.timedelta(days=1, seconds=3810)
    subscriber.delete_subscription(subscription=sub)
    publisher.delete_topic(topic=topic)


def test_topics_and_subscriptions_are_listed_by_project_and_by_topic(publisher, subscriber):
    topics = [f"{HERE}/topics/topic-{i}.listed" for i in (1, 2)]
    subs = [f"{HERE}/subscriptions/sub-{i}.listed" for i in (1, 2, 3)]
    for topic in topics:
        publisher.create_topic(name=topic)
    for at, sub in enumerate(subs):
        subscriber.create_subscription(name=sub, topic=topics[at % 2])
    assert set(topics) <= {topic.name for topic in publisher.list_topics(project=HERE)}
    assert set(subs) <= {sub.name for sub in subscriber.list_subscriptions(project=HERE)}
    assert set(publisher.list_topic_subscriptions(topic=topics[0])) == {subs[0], subs[2]}


@pytest.mark.parametrize("kind", ["topic", "subscription"])
def test_bindings_are_added_to_a_policy(publisher, subscriber, pair, kind):
    client, resource = (publisher, pair[0]) if kind == "topic" else (subscriber, pair[1])
    policy = client.get_iam_policy(request={"resource": resource})
    policy.bindings.add(role="roles/pubsub.editor", members=["domain:google.com"])
    policy.bindings.add(role="roles/pubsub.viewer", members=["group:cloud-logs@google.com"])
    new = client.set_iam_policy(request={"resource": resource, "policy": policy})
    policy = client.get_iam_policy(request={"resource": resource})
    assert policy.bindings == new.bindings
    editor, viewer = sorted(policy.bindings, key=lambda binding: binding.role)
    assert (editor.role, list(editor.members)) == ("roles/pubsub.editor", ["domain:google.com"])
    assert (viewer.role, list(viewer.members)) == (
        "roles/pubsub.viewer",
        ["group:cloud-logs@google.com"],
    )


def open_sockets() -> int:
    files = Path("/proc/self/fd").iterdir()
    return sum("socket:" in str(file.readlink()) for file in files if file.is_symlink())


@pytest.mark.skipif(sys.platform != "linux", reason="counts what is open in /proc")
def test_a_client_that_is_closed_leaves_no_sockets(publisher, pair):
    topic, sub = pair
    publisher.publish(topic, b"warm").result(10)
    before = open_sockets()
    with pubsub_v1.SubscriberClient() as subscriber:
        for number in range(2):
            publisher.publish(topic, f"message {number}".encode()).result(10)
        assert len(subscriber.pull(subscription=sub, max_messages=3).received_messages) == 3
    until = time.monotonic() + 10
    # The emulator is in this process: its end of the connection goes a moment later.
    while open_sockets() > before and time.monotonic() < until:
        time.sleep(0.02)
    assert open_sockets() <= before


def test_a_pull_without_messages_is_no_deadline_exceeded(subscriber, pair):
    assert list(subscriber.pull(subscription=pair[1], max_messages=2).received_messages) == []


def test_an_error_of_the_callback_ends_the_future(publisher, subscriber, pair):
    class CallbackError(Exception):
        pass

    def fail(_) -> None:
        raise CallbackError

    topic, sub = pair
    publisher.publish(topic, b"hello!").result(10)
    with pytest.raises(CallbackError):
        subscriber.subscribe(sub, fail).result(timeout=20)


def test_no_more_messages_are_out_than_flow_control_allows(publisher, subscriber, pair):
    topic, sub = pair
    publish(publisher, topic, 50)
    lock, pending, most, seen = threading.Lock(), 0, 0, []
    done = threading.Event()

    def handle(message) -> None:
        nonlocal pending, most
        with lock:
            pending += 1
            most = max(most, pending)
            seen.append(int(message.attributes["seq_num"]))
        time.sleep(0.02)
        with lock:
            pending -= 1
        message.ack()
        if len(seen) >= 50:
            done.set()

    pulling = subscriber.subscribe(sub, handle, flow_control=types.FlowControl(max_messages=5))
    assert done.wait(30)
    pulling.cancel()
    pulling.result(10)
    assert sorted(seen) == list(range(1, 51))
    assert most <= 5


def test_a_shutdown_waits_for_callbacks_and_gives_the_rest_back(publisher, subscriber, pair):
    topic, sub = pair
    publish(publisher, topic, 10)
    processed, begun, go_on = [], threading.Semaphore(0), threading.Event()

    def slow(message) -> None:
        begun.release()
        go_on.wait(20)
        processed.append(message.attributes["seq_num"])
        message.ack()

    class Executor(futures.ThreadPoolExecutor):
        def shutdown(self, **options) -> None:  # called once what waits in it was taken out
            go_on.set()
            super().shutdown(**options)

    executor = Executor(max_workers=3)
    pulling = subscriber.subscribe(
        sub,
        callback=slow,
        flow_control=types.FlowControl(max_messages=5),
        scheduler=pubsub_v1.subscriber.scheduler.ThreadScheduler(executor=executor),
        await_callbacks_on_shutdown=True,
    )
    for _ in range(3):
        assert begun.acquire(timeout=20)
    pulling.cancel()
    pulling.result(20)
    assert len(processed) == 3
    # Before their deadline of ten seconds: they were given back.
    received = Received()
    pulling = subscriber.subscribe(sub, received, await_callbacks_on_shutdown=False)
    received.wait_for(7, within=8)
    pulling.cancel()
    pulling.result(10)
    rest = [message.attributes["seq_num"] for message in received.messages]
    assert len(rest) == 7
    assert not set(processed) & set(rest)


def test_a_snapshot_between_two_messages_brings_the_second_back(publisher, subscriber, names):
    topic, sub = names
    snapshot = f"{HERE}/snapshots/between"
    publisher.create_topic(name=topic)
    subscriber.create_subscription({"name": sub, "topic": topic, "retain_acked_messages": True})
    for number in range(2):
        publisher.publish(topic, str(number).encode()).result(10)
        [received] = subscriber.pull(subscription=sub, max_messages=10).received_messages
        subscriber.acknowledge(subscription=sub, ack_ids=[received.ack_id])
        if not number:
            subscriber.create_snapshot(name=snapshot, subscription=sub)
    subscriber.seek(gapic_types.SeekRequest(subscription=sub, snapshot=snapshot))
    [again] = subscriber.pull(subscription=sub, max_messages=10).received_messages
    assert again.message.data == b"1"
    subscriber.delete_snapshot(snapshot=snapshot)
