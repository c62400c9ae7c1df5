"""Google's own clients over HTTP/JSON instead of gRPC: every call that is no stream."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1 import PublisherClient, SchemaServiceClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports.rest import PublisherRestTransport
from google.pubsub_v1.services.schema_service.transports.rest import SchemaServiceRestTransport
from google.pubsub_v1.services.subscriber.transports.rest import SubscriberRestTransport

from tests.support.google_clients import PROJECT

HERE = f"projects/{PROJECT}"


def over_http(transport: Any, address: str) -> Any:
    return transport(host=address, url_scheme="http", credentials=AnonymousCredentials())


@pytest.fixture
def publisher(google):
    return PublisherClient(transport=over_http(PublisherRestTransport, google.address))


@pytest.fixture
def subscriber(google):
    return SubscriberClient(transport=over_http(SubscriberRestTransport, google.address))


@pytest.fixture
def schemas(google):
    return SchemaServiceClient(transport=over_http(SchemaServiceRestTransport, google.address))


def test_topics_are_made_shown_changed_listed_and_deleted(publisher):
    topic = f"{HERE}/topics/over-http"
    assert publisher.create_topic(name=topic) == publisher.get_topic(topic=topic)
    wanted = {"topic": {"name": topic, "labels": {"a": "b"}}, "update_mask": "labels"}
    assert publisher.update_topic(request=wanted).labels == {"a": "b"}
    assert topic in {one.name for one in publisher.list_topics(project=HERE)}
    policy = {"bindings": [{"role": "roles/pubsub.viewer", "members": ["allUsers"]}]}
    publisher.set_iam_policy(request={"resource": topic, "policy": policy})
    kept = publisher.get_iam_policy(request={"resource": topic})
    assert kept.bindings[0].role == "roles/pubsub.viewer"
    asked = {"resource": topic, "permissions": ["pubsub.topics.get"]}
    assert publisher.test_iam_permissions(request=asked).permissions == ["pubsub.topics.get"]
    publisher.delete_topic(topic=topic)
    with pytest.raises(exceptions.NotFound, match="Resource not found"):
        publisher.get_topic(topic=topic)
    with pytest.raises(exceptions.BadRequest, match="name"):
        publisher.create_topic(name=f"{HERE}/topics/1")


def test_messages_go_round_and_subscriptions_come_and_go(publisher, subscriber):
    topic, sub = f"{HERE}/topics/round", f"{HERE}/subscriptions/round"
    snapshot = f"{HERE}/snapshots/round"
    publisher.create_topic(name=topic)
    made = subscriber.create_subscription(name=sub, topic=topic, ack_deadline_seconds=600)
    assert made == subscriber.get_subscription(subscription=sub)
    wanted = {"subscription": {"name": sub, "labels": {"a": "1"}}, "update_mask": "labels"}
    assert subscriber.update_subscription(request=wanted).labels == {"a": "1"}
    assert list(publisher.list_topic_subscriptions(topic=topic)) == [sub]
    assert sub in {one.name for one in subscriber.list_subscriptions(project=HERE)}
    subscriber.create_snapshot(name=snapshot, subscription=sub)
    sent = publisher.publish(topic=topic, messages=[{"data": b"\xff", "attributes": {"k": "ü"}}])
    for _ in range(2):
        [one] = subscriber.pull(subscription=sub, max_messages=5).received_messages
        assert (one.message.message_id, one.message.data) == (sent.message_ids[0], b"\xff")
        assert one.message.attributes == {"k": "ü"}
        held = {"subscription": sub, "ack_ids": [one.ack_id]}
        subscriber.modify_ack_deadline(request={**held, "ack_deadline_seconds": 300})
        subscriber.acknowledge(request=held)
        subscriber.seek(request={"subscription": sub, "snapshot": snapshot})
    wanted = {"snapshot": {"name": snapshot, "labels": {"b": "2"}}, "update_mask": "labels"}
    assert subscriber.update_snapshot(request=wanted) == subscriber.get_snapshot(snapshot=snapshot)
    assert list(publisher.list_topic_snapshots(topic=topic)) == [snapshot]
    assert snapshot in {one.name for one in subscriber.list_snapshots(project=HERE)}
    subscriber.delete_snapshot(snapshot=snapshot)
    subscriber.modify_push_config(subscription=sub, push_config={})
    publisher.detach_subscription(request={"subscription": sub})
    assert subscriber.get_subscription(subscription=sub).detached
    subscriber.delete_subscription(subscription=sub)


def test_schemas_and_their_revisions_come_and_go(schemas):
    name, text = f"{HERE}/schemas/over-http", '"string"'
    schema = {"name": name, "type_": "AVRO", "definition": text}
    first = schemas.create_schema(parent=HERE, schema=schema, schema_id="over-http")
    second = schemas.commit_schema(name=name, schema={**schema, "definition": '"long"'})
    listed = [one.revision_id for one in schemas.list_schema_revisions(name=name)]
    assert listed == [second.revision_id, first.revision_id]
    assert schemas.get_schema(name=f"{name}@{first.revision_id}").definition == text
    assert schemas.rollback_schema(name=name, revision_id=first.revision_id).definition == text
    schemas.delete_schema_revision(name=f"{name}@{second.revision_id}", revision_id="")
    assert name in {one.name for one in schemas.list_schemas(parent=HERE)}
    schemas.validate_schema(parent=HERE, schema=schema)
    message = {"parent": HERE, "name": name, "message": b'"a"', "encoding": "JSON"}
    schemas.validate_message(request=message)
    with pytest.raises(exceptions.BadRequest, match="AVRO"):
        schemas.validate_message(request={**message, "message": b"1"})
    schemas.delete_schema(name=name)
