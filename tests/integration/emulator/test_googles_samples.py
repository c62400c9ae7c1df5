"""What Google's samples for Python do and their tests ask of it: topics, subscriptions, policies.

Each test makes the calls of samples in their order, with the client they use. Schemas are in
test_googles_schema_samples.py. Endpoints, tables and buckets are never reached: nothing is
published where they would be.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent import futures

import pytest
from google.api_core import exceptions, retry
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1 import types
from google.cloud.pubsub_v1.subscriber import exceptions as subscriber_exceptions

from tests.support.google_clients import PROJECT, Received

HERE = f"projects/{PROJECT}"
_numbers = itertools.count(1)
ENDPOINT = f"https://{PROJECT}.appspot.invalid/push"


@pytest.fixture(scope="module")
def publisher(environment) -> Iterator[pubsub_v1.PublisherClient]:
    with pubsub_v1.PublisherClient() as client:
        yield client


@pytest.fixture(scope="module")
def subscriber(environment) -> Iterator[pubsub_v1.SubscriberClient]:
    with pubsub_v1.SubscriberClient() as client:
        yield client


@pytest.fixture
def topic(publisher) -> Iterator[str]:
    path = publisher.topic_path(PROJECT, unique())
    try:
        publisher.get_topic(request={"topic": path})
    except exceptions.NotFound:
        publisher.create_topic(request={"name": path})
    yield path
    with_absent(publisher.delete_topic, topic=path)


@pytest.fixture
def sub(subscriber) -> Iterator[str]:
    path = subscriber.subscription_path(PROJECT, unique())
    with_absent(subscriber.delete_subscription, subscription=path)
    yield path
    with_absent(subscriber.delete_subscription, subscription=path)


def unique() -> str:
    """With the dots that versions of Python bring into the samples' names."""
    return f"samples-3.11-{next(_numbers)}"


def with_absent(delete, **request: str) -> None:
    """Deleted, or not there."""
    try:
        delete(request=request)
    except exceptions.NotFound:
        return


def listen(path: str, received: Received, count: int, **options) -> None:
    """As the samples do it: a client of its own, cancelled and waited for."""
    subscriber = pubsub_v1.SubscriberClient()
    pulling = subscriber.subscribe(path, callback=received, **options)
    with subscriber:
        received.wait_for(count)
        pulling.cancel()
        pulling.result(20)


def publish(publisher, topic: str, count: int = 5, **attributes: str) -> list[str]:
    return [
        publisher.publish(topic, f"message {n}".encode(), **attributes).result(10)
        for n in range(count)
    ]


# publisher.py


def test_a_topic_is_created_listed_and_deleted(publisher):
    path = publisher.topic_path(PROJECT, "publisher-test-topic")
    with_absent(publisher.delete_topic, topic=path)
    assert publisher.create_topic(request={"name": path}).name == path
    with pytest.raises(exceptions.AlreadyExists):
        publisher.create_topic(request={"name": path}, retry=None)
    assert path in {one.name for one in publisher.list_topics(request={"project": HERE})}
    publisher.delete_topic(request={"topic": path})
    with pytest.raises(exceptions.NotFound, match="Resource not found"):
        publisher.get_topic(request={"topic": path})


KINESIS = {
    "aws_kinesis": {
        "stream_arn": "arn:aws:kinesis:us-west-2:111111111111:stream/fake",
        "consumer_arn": "arn:aws:kinesis:us-west-2:111111111111:stream/fake/consumer/c:1",
        "aws_role_arn": "arn:aws:iam::111111111111:role/fake",
        "gcp_service_account": "fake@fake.iam.gserviceaccount.com",
    }
}
STORAGE = {
    "cloud_storage": {
        "bucket": "bucket",
        "text_format": {"delimiter": ","},
        "match_glob": "**.txt",
        "minimum_object_create_time": "1970-01-01T00:00:01Z",
    }
}
EVENT_HUBS = {
    "azure_event_hubs": {
        "resource_group": "group",
        "namespace": "space",
        "event_hub": "hub",
        "client_id": "client",
        "tenant_id": "tenant",
        "subscription_id": "sub",
        "gcp_service_account": "fake@fake.iam.gserviceaccount.com",
    }
}
MSK = {
    "aws_msk": {
        "cluster_arn": "arn:aws:kafka:us-east-1:111111111111:cluster/fake/1",
        "topic": "fake-topic",
        "aws_role_arn": "arn:aws:iam::111111111111:role/fake",
        "gcp_service_account": "fake@fake.iam.gserviceaccount.com",
    }
}
CONFLUENT = {
    "confluent_cloud": {
        "bootstrap_server": "fake.us-south1.gcp.confluent.cloud:9092",
        "cluster_id": "cluster",
        "topic": "fake-topic",
        "identity_pool_id": "pool",
        "gcp_service_account": "fake@fake.iam.gserviceaccount.com",
    }
}


@pytest.mark.parametrize("source", [KINESIS, STORAGE, EVENT_HUBS, MSK, CONFLUENT])
def test_a_topic_shows_where_it_would_ingest_from(publisher, source):
    path = publisher.topic_path(PROJECT, "ingesting")
    if "cloud_storage" in source:
        from google.protobuf import timestamp_pb2

        moment = timestamp_pb2.Timestamp()
        moment.FromJsonString(source["cloud_storage"]["minimum_object_create_time"])
        settings = {**source["cloud_storage"], "minimum_object_create_time": moment}
        source = {"cloud_storage": settings}
    request = types.Topic(name=path, ingestion_data_source_settings=source)
    made = publisher.create_topic(request=request)
    assert made.name == path
    assert made.ingestion_data_source_settings == request.ingestion_data_source_settings
    publisher.delete_topic(request={"topic": path})


def test_a_topic_becomes_one_that_would_ingest(publisher, topic):
    changed = types.Topic(name=topic, ingestion_data_source_settings=KINESIS)
    mask = types.FieldMask(paths=["ingestion_data_source_settings"])
    done = publisher.update_topic(request={"topic": changed, "update_mask": mask})
    assert done.ingestion_data_source_settings.aws_kinesis.stream_arn.endswith("fake")


def test_transforms_are_kept_of_topics_and_subscriptions(publisher, subscriber, sub):
    code = "function redactSSN(message, metadata) { return message; }"
    transforms = [{"javascript_udf": {"code": code, "function_name": "redactSSN"}}]
    path = publisher.topic_path(PROJECT, "transforming")
    made = publisher.create_topic(request={"name": path, "message_transforms": transforms})
    assert made.message_transforms[0].javascript_udf.function_name == "redactSSN"
    request = {"name": sub, "topic": path, "message_transforms": transforms}
    kept = subscriber.create_subscription(request=request)
    assert kept.message_transforms[0].javascript_udf.code == code
    publisher.delete_topic(request={"topic": path})


def test_publishing_with_attributes_batches_flow_control_and_retries(publisher, topic):
    publish(publisher, topic, origin="python-sample", username="gcp")
    batches = types.BatchSettings(max_messages=10, max_bytes=1024, max_latency=1)
    limits = types.PublishFlowControl(
        message_limit=100,
        byte_limit=10 * 1024 * 1024,
        limit_exceeded_behavior=types.LimitExceededBehavior.BLOCK,
    )
    for client, count in (
        (pubsub_v1.PublisherClient(batches), 9),
        (
            pubsub_v1.PublisherClient(
                publisher_options=types.PublisherOptions(flow_control=limits)
            ),
            999,
        ),
    ):
        with client:
            sent = [client.publish(topic, f"number {n}".encode()) for n in range(count)]
            done, _ = futures.wait(sent, timeout=30)
            assert len({future.result() for future in done}) == count
    patience = retry.Retry(
        initial=0.250,
        maximum=90.0,
        multiplier=1.45,
        timeout=300.0,
        predicate=retry.if_exception_type(exceptions.Aborted, exceptions.Unknown),
    )
    assert publisher.publish(topic=topic, data=b"x", retry=patience).result(10)


def test_keys_are_published_in_order_and_resumed(subscriber, topic, sub):
    subscriber.create_subscription(
        request={"name": sub, "topic": topic, "enable_message_ordering": True}
    )
    ordered = types.PublisherOptions(enable_message_ordering=True)
    region = {"api_endpoint": "us-east1-pubsub.googleapis.com:443"}
    with pubsub_v1.PublisherClient(publisher_options=ordered, client_options=region) as client:
        for text, key in (("1", "key1"), ("2", "key2"), ("3", "key1"), ("4", "key2")):
            assert client.publish(topic, data=text.encode(), ordering_key=key).result(10)
        missing = f"{HERE}/topics/missing"
        with pytest.raises(exceptions.NotFound):
            client.publish(missing, b"x", ordering_key="key1", retry=None).result(10)
        paused = client.publish(missing, b"y", ordering_key="key1")
        assert isinstance(paused.exception(10), Exception)
        client.resume_publish(missing, "key1")
    received = Received()
    listen(sub, received, 4)
    by_key = {
        key: [m.data.decode() for m in received.messages if m.ordering_key == key]
        for key in ("key1", "key2")
    }
    assert by_key == {"key1": ["1", "3"], "key2": ["2", "4"]}


def test_a_detached_subscription_says_so(publisher, subscriber, topic, sub):
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    publisher.detach_subscription(request={"subscription": sub})
    assert subscriber.get_subscription(request={"subscription": sub}).detached


# subscriber.py


def test_subscriptions_are_listed_by_topic_and_project(publisher, subscriber, topic, sub):
    made = subscriber.create_subscription(request={"name": sub, "topic": topic})
    assert made.name in list(publisher.list_topic_subscriptions(request={"topic": topic}))
    listed = subscriber.list_subscriptions(request={"project": HERE})
    assert made.name in {one.name for one in listed}
    subscriber.delete_subscription(request={"subscription": sub})
    with pytest.raises(exceptions.NotFound):
        subscriber.get_subscription(request={"subscription": sub})


def test_who_subscribes_first_and_asks_later_learns_what_is_missing(subscriber, topic, sub):
    with pytest.raises(exceptions.NotFound):
        subscriber.subscribe(sub, Received()).result(timeout=20)
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    pulling = subscriber.subscribe(sub, Received())
    with pytest.raises(futures.TimeoutError):
        pulling.result(timeout=0.5)
    pulling.cancel()
    pulling.result(10)
    with pytest.raises(exceptions.InvalidArgument):
        subscriber.subscribe(subscriber.subscription_path(PROJECT, "123"), Received()).result(20)


def test_a_dead_letter_policy_is_made_changed_and_removed(publisher, subscriber, topic, sub):
    dead = publisher.topic_path(PROJECT, "subscription-test-dead-letter")
    publisher.create_topic(request={"name": dead})
    policy = types.DeadLetterPolicy(dead_letter_topic=dead, max_delivery_attempts=10)
    made = subscriber.create_subscription(
        {"name": sub, "topic": topic, "dead_letter_policy": policy}
    )
    assert made.dead_letter_policy == policy
    publish(publisher, topic)
    received = Received()
    listen(sub, received, 5)
    assert {message.delivery_attempt for message in received.messages} == {1}
    mask = types.FieldMask(paths=["dead_letter_policy"])
    wanted = types.Subscription(
        name=sub,
        topic=topic,
        dead_letter_policy=types.DeadLetterPolicy(dead_letter_topic=dead, max_delivery_attempts=20),
    )
    after = subscriber.update_subscription(request={"subscription": wanted, "update_mask": mask})
    assert (after.name, after.dead_letter_policy.dead_letter_topic) == (sub, dead)
    assert "max_delivery_attempts: 20" in str(after)
    bare = types.Subscription(name=sub, topic=topic)
    after = subscriber.update_subscription(request={"subscription": bare, "update_mask": mask})
    assert after.dead_letter_policy.dead_letter_topic == ""
    publisher.delete_topic(request={"topic": dead})


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"enable_message_ordering": True}, "enable_message_ordering: true"),
        ({"filter": 'attributes.author="unknown"'}, '"attributes.author=\\"unknown\\""'),
        ({"enable_exactly_once_delivery": True}, "enable_exactly_once_delivery: true"),
        ({"push_config": {"push_endpoint": ENDPOINT}}, ENDPOINT),
        (
            {"push_config": {"push_endpoint": ENDPOINT, "no_wrapper": {"write_metadata": True}}},
            "write_metadata: true",
        ),
        (
            {"bigquery_config": {"table": "project.dataset.table", "write_metadata": True}},
            "project.dataset.table",
        ),
        (
            {
                "cloud_storage_config": {
                    "bucket": "bucket",
                    "filename_prefix": "log_events_",
                    "filename_suffix": ".avro",
                    "avro_config": {"write_metadata": True},
                    "max_duration": {"seconds": 300},
                    "max_bytes": 2000,
                }
            },
            "log_events_",
        ),
    ],
)
def test_a_subscription_shows_what_it_was_made_with(subscriber, topic, sub, options, shown):
    made = subscriber.create_subscription(request={"name": sub, "topic": topic, **options})
    assert sub in str(made)
    assert shown in str(made)


def test_an_endpoint_is_changed_by_a_request_that_names_its_topic_short(subscriber, topic, sub):
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    wanted = types.Subscription(
        name=sub, topic=topic.rpartition("/")[2], push_config={"push_endpoint": f"{ENDPOINT}2"}
    )
    after = subscriber.update_subscription(
        request={"subscription": wanted, "update_mask": {"paths": {"push_config"}}}
    )
    assert after.push_config.push_endpoint == f"{ENDPOINT}2"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"flow_control": types.FlowControl(max_messages=10)},
        {"await_callbacks_on_shutdown": True},
    ],
)
def test_messages_are_received(publisher, subscriber, topic, sub, options):
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    ids = publish(publisher, topic, origin="python-sample")
    received = Received()
    listen(sub, received, 5, **options)
    assert sorted(message.message_id for message in received.messages) == sorted(ids)
    assert {message.attributes["origin"] for message in received.messages} == {"python-sample"}


def test_callbacks_of_a_stream_that_was_cancelled_are_waited_for(publisher, subscriber, topic, sub):
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    publish(publisher, topic, 3)
    happened, begun, go_on = [], threading.Semaphore(0), threading.Event()

    def handle(message) -> None:
        happened.append("received")
        begun.release()
        go_on.wait(20)
        message.ack()
        happened.append("done")

    pulling = subscriber.subscribe(sub, callback=handle, await_callbacks_on_shutdown=True)
    for _ in range(3):
        assert begun.acquire(timeout=20)
    pulling.cancel()
    happened.append("canceled")
    go_on.set()
    pulling.result(20)
    happened.append("shut down")
    assert happened == [*["received"] * 3, "canceled", *["done"] * 3, "shut down"]


def test_an_ack_is_confirmed_where_delivery_is_exactly_once(publisher, subscriber, topic, sub):
    subscriber.create_subscription(
        request={"name": sub, "topic": topic, "enable_exactly_once_delivery": True}
    )
    ids = publish(publisher, topic)
    confirmed, failed, done = set(), [], threading.Event()

    def handle(message) -> None:
        try:
            message.ack_with_response().result(timeout=20)
            confirmed.add(message.message_id)
        except subscriber_exceptions.AcknowledgeError as error:
            failed.append(error.error_code)
        if len(confirmed) + len(failed) == len(ids):
            done.set()

    pulling = subscriber.subscribe(sub, callback=handle)
    assert done.wait(30)
    pulling.cancel()
    pulling.result(10)
    assert confirmed == set(ids)


def test_messages_are_pulled_extended_and_acked(publisher, subscriber, topic, sub):
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    publish(publisher, topic, 3)
    with pubsub_v1.SubscriberClient() as client:
        response = client.pull(
            request={"subscription": sub, "max_messages": 3}, retry=retry.Retry(timeout=300)
        )
        ack_ids = [one.ack_id for one in response.received_messages]
        assert len(ack_ids) == 3
        client.modify_ack_deadline(
            request={"subscription": sub, "ack_ids": ack_ids, "ack_deadline_seconds": 15}
        )
        client.acknowledge(request={"subscription": sub, "ack_ids": ack_ids})


# iam.py


@pytest.mark.parametrize(
    ("kind", "permissions"),
    [
        ("topic", ["pubsub.topics.publish", "pubsub.topics.update"]),
        ("subscription", ["pubsub.subscriptions.consume", "pubsub.subscriptions.update"]),
    ],
)
def test_a_policy_is_read_changed_and_tested(publisher, subscriber, topic, sub, kind, permissions):
    subscriber.create_subscription(request={"name": sub, "topic": topic})
    client, resource = (publisher, topic) if kind == "topic" else (subscriber, sub)
    policy = client.get_iam_policy(request={"resource": resource})
    assert (list(policy.bindings), policy.version) == ([], 0)
    policy.bindings.add(role="roles/pubsub.viewer", members=["domain:google.com"])
    policy.bindings.add(role="roles/editor", members=["group:cloud-logs@google.com"])
    client.set_iam_policy(request={"resource": resource, "policy": policy})
    policy = client.get_iam_policy(request={"resource": resource})
    assert "roles/pubsub.viewer" in str(policy) and "domain:google.com" in str(policy)
    request = {"resource": resource, "permissions": permissions}
    assert list(client.test_iam_permissions(request=request).permissions) == permissions
