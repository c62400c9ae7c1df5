"""Subscriptions as operators see them: made, changed, moved, detached."""

import datetime

import pytest
from google.api_core import exceptions
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import Subscription


def get(google, name: str) -> Subscription:
    return google.subscriber.get_subscription(request={"subscription": name})


def update(google, name: str, *paths: str, **fields):
    return google.subscriber.update_subscription(
        request={"subscription": {"name": name, **fields}, "update_mask": FieldMask(paths=paths)}
    )


def test_a_subscription_shows_what_was_asked_and_googles_defaults(google):
    topic, dead = google.topic(), google.topic()
    plain = get(google, google.subscription(topic))
    assert plain.topic == topic
    assert plain.ack_deadline_seconds == 10
    assert plain.message_retention_duration == datetime.timedelta(days=7)
    assert plain.expiration_policy.ttl == datetime.timedelta(days=31)
    assert plain.state.name == "ACTIVE"
    assert "dead_letter_policy" not in plain and "retry_policy" not in plain
    asked = {
        "ack_deadline_seconds": 42,
        "labels": {"team": "red"},
        "enable_message_ordering": True,
        "enable_exactly_once_delivery": True,
        "retain_acked_messages": True,
        "filter": 'attributes.stage = "Queued"',
        "message_retention_duration": datetime.timedelta(hours=2),
        "expiration_policy": {},
        "dead_letter_policy": {"dead_letter_topic": dead, "max_delivery_attempts": 7},
        "retry_policy": {"minimum_backoff": datetime.timedelta(seconds=5)},
    }
    full = get(google, google.subscription(topic, **asked))
    assert full.ack_deadline_seconds == 42
    assert full.labels == {"team": "red"}
    assert full.enable_message_ordering and full.enable_exactly_once_delivery
    assert full.retain_acked_messages
    assert full.filter == 'attributes.stage = "Queued"'
    assert full.message_retention_duration == datetime.timedelta(hours=2)
    assert "expiration_policy" in full and "ttl" not in full.expiration_policy
    assert full.dead_letter_policy.dead_letter_topic == dead
    assert full.dead_letter_policy.max_delivery_attempts == 7
    assert full.retry_policy.minimum_backoff == datetime.timedelta(seconds=5)
    assert full.retry_policy.maximum_backoff == datetime.timedelta(seconds=600)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"ack_deadline_seconds": 9}, 3, "ack_deadline_seconds"),
        ({"ack_deadline_seconds": 601}, 3, "ack_deadline_seconds"),
        ({"filter": "attributes.stage == 1"}, 3, "column"),
        ({"filter": "attributes:a AND attributes:b OR attributes:c"}, 3, "parentheses"),
        ({"filter": "attributes:" + "a" * 250}, 3, "256 bytes"),
        ({"message_retention_duration": {"seconds": 599}}, 3, "message_retention_duration"),
        ({"expiration_policy": {"ttl": {"seconds": 3600}}}, 3, "expiration_policy.ttl"),
        ({"retry_policy": {"minimum_backoff": {"seconds": 601}}}, 3, "minimum_backoff"),
        ({"dead_letter_policy": {"max_delivery_attempts": 5}}, 3, "dead_letter_topic"),
        ({"push_config": {"push_endpoint": "nowhere"}}, 3, "push_config.push_endpoint"),
    ],
)
def test_what_google_refuses_is_refused_with_the_field(google, options, code, said):
    topic = google.topic()
    error = google.refusal(google.subscription, topic, **options)
    assert error.grpc_status_code.value[0] == code
    assert said in error.message


def test_dead_letters_need_a_topic_that_exists_and_five_attempts(google):
    topic = google.topic()
    policy = {"dead_letter_topic": topic, "max_delivery_attempts": 4}
    error = google.refusal(google.subscription, topic, dead_letter_policy=policy)
    assert "max_delivery_attempts must be between 5 and 100" in error.message
    policy = {"dead_letter_topic": topic + "-missing", "max_delivery_attempts": 5}
    error = google.refusal(google.subscription, topic, dead_letter_policy=policy)
    assert isinstance(error, exceptions.NotFound)


def test_a_subscription_needs_its_topic_and_is_made_once(google):
    topic, sub = google.pair()
    error = google.refusal(google.subscription, topic + "-missing")
    assert isinstance(error, exceptions.NotFound) and "-missing" in error.message
    again = {"name": sub, "topic": topic}
    error = google.refusal(google.subscriber.create_subscription, request=again)
    assert isinstance(error, exceptions.AlreadyExists)


def test_an_update_changes_what_the_mask_names_and_keeps_the_rest(google):
    topic, dead = google.topic(), google.topic()
    sub = google.subscription(topic, labels={"a": "1"})
    google.publish(topic, "kept")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 6}
    changed = update(
        google,
        sub,
        "labels",
        "ack_deadline_seconds",
        "dead_letter_policy",
        "enable_exactly_once_delivery",
        labels={"b": "2"},
        ack_deadline_seconds=33,
        dead_letter_policy=policy,
        enable_exactly_once_delivery=True,
        retain_acked_messages=True,
    )
    assert (changed.labels, changed.ack_deadline_seconds) == ({"b": "2"}, 33)
    assert changed.dead_letter_policy.max_delivery_attempts == 6
    assert changed.enable_exactly_once_delivery
    assert not changed.retain_acked_messages
    assert changed == get(google, sub)
    part = update(
        google,
        sub,
        "dead_letter_policy.max_delivery_attempts",
        dead_letter_policy={"max_delivery_attempts": 9},
    )
    assert part.dead_letter_policy.dead_letter_topic == dead
    assert part.dead_letter_policy.max_delivery_attempts == 9
    paths = (
        f"dead_letter_policy.{field}" for field in ("dead_letter_topic", "max_delivery_attempts")
    )
    emptied = update(google, sub, *paths)
    assert "dead_letter_policy" not in emptied
    update(google, sub, "dead_letter_policy", dead_letter_policy=policy)
    cleared = update(google, sub, "dead_letter_policy", "expiration_policy")
    assert "dead_letter_policy" not in cleared
    assert [m.message.data for m in google.pull(sub)] == [b"kept"]


@pytest.mark.parametrize("path", ["topic", "filter", "enable_message_ordering", "name", "nonsense"])
def test_what_cannot_change_is_refused(google, path):
    _, sub = google.pair()
    error = google.refusal(update, google, sub, path)
    assert isinstance(error, exceptions.InvalidArgument)
    assert path in error.message


def test_a_topics_subscriptions_are_listed(google):
    topic = google.topic()
    subs = sorted(google.subscription(topic) for _ in range(3))
    google.subscription(google.topic())
    listed = google.publisher.list_topic_subscriptions(request={"topic": topic, "page_size": 2})
    assert list(listed) == subs
    project = f"projects/{google.project}"
    everything = google.subscriber.list_subscriptions(request={"project": project})
    assert set(subs) <= {one.name for one in everything}


def test_the_backlog_of_a_deleted_topic_is_still_pulled(google):
    topic, sub = google.pair()
    google.publish(topic, "kept")
    google.publisher.delete_topic(request={"topic": topic})
    assert get(google, sub).topic == "_deleted-topic_"
    [received] = google.pull(sub)
    google.ack(sub, received)
    assert google.pull(sub) == []
    google.publisher.create_topic(request={"name": topic})
    google.publish(topic, "another topic")
    assert google.pull(sub) == []


def test_a_detached_subscription_gets_nothing_and_says_so(google):
    topic, sub = google.pair()
    google.publish(topic, "dropped")
    google.publisher.detach_subscription(request={"subscription": sub})
    assert get(google, sub).detached
    error = google.refusal(google.pull, sub)
    assert isinstance(error, exceptions.FailedPrecondition)
    assert list(google.publisher.list_topic_subscriptions(request={"topic": topic})) == []


def test_a_deleted_subscription_is_gone_with_its_backlog(google):
    topic, sub = google.pair()
    google.publish(topic, "lost")
    google.subscriber.delete_subscription(request={"subscription": sub})
    assert isinstance(google.refusal(google.pull, sub), exceptions.NotFound)
    google.subscriber.create_subscription(request={"name": sub, "topic": topic})
    assert google.pull(sub) == []


def test_a_snapshot_is_made_shown_changed_listed_and_deleted(google):
    topic, sub = google.pair()
    name = google.path("snapshots")
    subscriber = google.subscriber
    made = subscriber.create_snapshot(
        request={"name": name, "subscription": sub, "labels": {"a": "1"}}
    )
    assert (made.name, made.topic, made.labels) == (name, topic, {"a": "1"})
    assert made == subscriber.get_snapshot(request={"snapshot": name})
    again = {"name": name, "subscription": sub}
    error = google.refusal(subscriber.create_snapshot, request=again)
    assert isinstance(error, exceptions.AlreadyExists)
    changed = subscriber.update_snapshot(
        request={
            "snapshot": {"name": name, "labels": {"b": "2"}},
            "update_mask": FieldMask(paths=["labels"]),
        }
    )
    assert changed.labels == {"b": "2"} and changed.expire_time == made.expire_time
    project = f"projects/{google.project}"
    assert name in [s.name for s in subscriber.list_snapshots(request={"project": project})]
    assert list(google.publisher.list_topic_snapshots(request={"topic": topic})) == [name]
    subscriber.delete_snapshot(request={"snapshot": name})
    error = google.refusal(subscriber.get_snapshot, request={"snapshot": name})
    assert isinstance(error, exceptions.NotFound)


def test_seeking_to_a_snapshot_brings_back_what_was_unacked_and_what_followed(google):
    topic, sub = google.pair()
    google.publish(topic, "acked", "unacked")
    first, second = google.pull(sub)
    google.ack(sub, first)
    name = google.path("snapshots")
    google.subscriber.create_snapshot(request={"name": name, "subscription": sub})
    google.ack(sub, second)
    google.publish(topic, "later")
    google.ack(sub, *google.pull(sub))
    google.subscriber.seek(request={"subscription": sub, "snapshot": name})
    assert [m.message.data for m in google.pull(sub)] == [b"unacked", b"later"]
    other = google.subscription(google.topic())
    error = google.refusal(
        google.subscriber.seek, request={"subscription": other, "snapshot": name}
    )
    assert isinstance(error, exceptions.InvalidArgument)


def test_seeking_to_a_time_replays_and_discards(google):
    topic = google.topic(message_retention_duration={"seconds": 3600})
    sub = google.subscription(topic)
    google.publish(topic, "one", "two")
    held = google.pull(sub)
    google.ack(sub, held[0])
    google.subscriber.seek(request={"subscription": sub, "time": held[0].message.publish_time})
    replayed = google.pull(sub)
    assert [m.message.data for m in replayed] == [b"one", b"two"]
    google.ack(sub, held[1])  # an ack of before: it must not take the replay
    later = replayed[1].message.publish_time + datetime.timedelta(days=1)
    google.nack(sub, *replayed)
    google.subscriber.seek(request={"subscription": sub, "time": later})
    assert google.pull(sub) == []
    error = google.refusal(google.subscriber.seek, request={"subscription": sub})
    assert "target" in error.message
