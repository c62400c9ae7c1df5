"""Topics and publishing, through Google's client."""

import datetime

import pytest
from google.api_core import exceptions
from google.protobuf.field_mask_pb2 import FieldMask


def test_a_topic_is_made_shown_listed_and_deleted(google):
    name = google.topic(labels={"team": "blue"})
    topic = google.publisher.get_topic(request={"topic": name})
    assert (topic.name, dict(topic.labels), topic.state.name) == (name, {"team": "blue"}, "ACTIVE")
    project = f"projects/{google.project}"
    assert name in [t.name for t in google.publisher.list_topics(request={"project": project})]
    google.publisher.delete_topic(request={"topic": name})
    error = google.refusal(google.publisher.get_topic, request={"topic": name})
    assert isinstance(error, exceptions.NotFound)
    assert error.message == f"Resource not found (resource={name.rpartition('/')[2]})."


def test_making_a_topic_twice_is_refused_and_changes_nothing(google):
    name = google.topic(labels={"kept": "yes"})
    error = google.refusal(
        google.publisher.create_topic, request={"name": name, "labels": {"kept": "no"}}
    )
    assert isinstance(error, exceptions.AlreadyExists)
    assert "Resource already exists in the project" in error.message
    assert google.publisher.get_topic(request={"topic": name}).labels == {"kept": "yes"}


@pytest.mark.parametrize("bad", ["goog-topic", "ab", "1abc", "a b c", "a" * 256, "ümlaut", "a/b"])
def test_a_name_outside_the_rules_is_refused_with_its_field(google, bad):
    name = f"projects/{google.project}/topics/{bad}"
    error = google.refusal(google.publisher.create_topic, request={"name": name})
    assert isinstance(error, exceptions.InvalidArgument)
    assert "Invalid [topics] name" in error.message and "in name" in error.message


def test_labels_and_retention_change_as_the_mask_says_and_the_rest_stays(google):
    name = google.topic(labels={"a": "1"}, kms_key_name="key")
    changed = google.publisher.update_topic(
        request={
            "topic": {
                "name": name,
                "labels": {"b": "2"},
                "message_retention_duration": datetime.timedelta(hours=1),
            },
            "update_mask": FieldMask(paths=["labels", "message_retention_duration"]),
        }
    )
    assert changed.labels == {"b": "2"}
    assert changed.kms_key_name == "key"
    assert changed.message_retention_duration == datetime.timedelta(hours=1)
    assert changed == google.publisher.get_topic(request={"topic": name})
    cleared = google.publisher.update_topic(
        request={"topic": {"name": name}, "update_mask": FieldMask(paths=["labels"])}
    )
    assert not cleared.labels
    assert cleared.message_retention_duration == datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ([], "must contain a non-empty paths list"),
        (["colour"], "'colour' is not a field of Topic"),
        (["name"], "'name' field of Topic is not mutable"),
    ],
)
def test_a_mask_with_what_cannot_change_is_refused(google, paths, said):
    name = google.topic()
    error = google.refusal(
        google.publisher.update_topic,
        request={"topic": {"name": name}, "update_mask": FieldMask(paths=paths)},
    )
    assert isinstance(error, exceptions.InvalidArgument)
    assert said in error.message


def test_a_retention_outside_googles_bounds_is_refused(google):
    error = google.refusal(google.topic, message_retention_duration=datetime.timedelta(minutes=9))
    assert isinstance(error, exceptions.InvalidArgument)
    assert "message_retention_duration" in error.message


def test_lists_come_in_pages(google):
    names = sorted(google.topic() for _ in range(5))
    project = f"projects/{google.project}"
    seen, token = [], ""
    while True:
        pager = google.publisher.list_topics(
            request={"project": project, "page_size": 2, "page_token": token}
        )
        page = next(iter(pager.pages))
        assert len(page.topics) <= 2
        seen += [topic.name for topic in page.topics]
        token = page.next_page_token
        if not token:
            break
    assert seen == sorted(seen)
    assert set(names) <= set(seen)
    error = google.refusal(
        google.publisher.list_topics, request={"project": project, "page_token": "no token!"}
    )
    assert "page_token" in error.message


def test_every_project_has_topics_of_its_own(google):
    ours = google.topic()
    theirs = ours.replace(google.project, "project-two")
    google.publisher.create_topic(request={"name": theirs})
    listed = google.publisher.list_topics(request={"project": "projects/project-two"})
    assert [topic.name for topic in listed] == [theirs]
    across = google.subscription(theirs)
    google.publish(theirs, "hello")
    assert [m.message.data for m in google.pull(across)] == [b"hello"]


def test_a_message_arrives_as_it_was_published(google):
    topic, sub = google.pair()
    attributes = {"stage": "Queued", "ö": "ä", "googclient_traceparent": "00-1"}
    [message_id] = google.publish(topic, "hello", **attributes)
    [received] = google.pull(sub)
    message = received.message
    assert (message.message_id, message.data, message.attributes) == (
        message_id,
        b"hello",
        attributes,
    )
    assert message.publish_time.year >= 2025
    assert received.delivery_attempt == 0


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "message_count is too small"),
        ([{"data": b"x"}] * 1001, "message_count is too large. You passed 1001"),
        ([{"data": b"x"}, {}], "messages[1]: a message must contain"),
        ([{"data": b"x", "attributes": {"goog-x": "1"}}], "messages[0]: Attribute key 'goog-x'"),
        ([{"data": b"x", "attributes": {"k" * 257: "1"}}], "Attribute key is 257 bytes"),
        ([{"data": b"x", "attributes": {"k": "v" * 1025}}], "is 1025 bytes long"),
        ([{"data": b"x", "attributes": {f"k{n}": "" for n in range(101)}}], "at most 100"),
        ([{"data": b"x", "ordering_key": "k" * 1025}], "Ordering key is 1025 bytes"),
        ([{"data": b"x" * 10_000_001}], "request_size is too large"),
    ],
)
def test_a_publish_beyond_the_limits_is_refused_and_stores_nothing(google, messages, said):
    topic, sub = google.pair()
    error = google.refusal(_publish(google), request={"topic": topic, "messages": messages})
    assert isinstance(error, exceptions.InvalidArgument)
    assert said in error.message
    assert google.pull(sub) == []


def _publish(google):
    """The generated method, below the client's batching."""
    from google.pubsub_v1 import PublisherClient

    return PublisherClient(transport=google.publisher.transport).publish


def test_a_message_of_nearly_ten_megabytes_passes(google):
    topic, sub = google.pair()
    _publish(google)(request={"topic": topic, "messages": [{"data": b"x" * 9_999_000}]})
    [received] = google.pull(sub)
    assert len(received.message.data) == 9_999_000


def test_policies_are_kept_and_every_permission_is_granted(google):
    topic, sub = google.pair()
    for client, resource in ((google.publisher, topic), (google.subscriber, sub)):
        policy = client.get_iam_policy(request={"resource": resource})
        assert (list(policy.bindings), policy.version) == ([], 0)
        policy.bindings.add(role="roles/pubsub.viewer", members=["group:all@example.com"])
        assert client.set_iam_policy(request={"resource": resource, "policy": policy}) == policy
        assert client.get_iam_policy(request={"resource": resource}) == policy
        asked = ["pubsub.topics.publish", "pubsub.topics.update"]
        tested = client.test_iam_permissions(request={"resource": resource, "permissions": asked})
        assert list(tested.permissions) == asked
    missing = google.refusal(
        google.publisher.get_iam_policy, request={"resource": topic + "-missing"}
    )
    assert isinstance(missing, exceptions.NotFound)
    nowhere = {"resource": topic + "-missing", "permissions": ["pubsub.topics.get"]}
    assert not google.publisher.test_iam_permissions(request=nowhere).permissions
    google.publisher.delete_topic(request={"topic": topic})
    google.publisher.create_topic(request={"name": topic})
    assert not google.publisher.get_iam_policy(request={"resource": topic}).bindings
