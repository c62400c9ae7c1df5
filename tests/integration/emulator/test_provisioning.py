"""Topics and subscriptions from a file."""

import pytest

from penstock.errors import InvalidArgumentError
from penstock.testing.emulator import EmulatorInThread
from tests.support.google_clients import Google

WANTED = """
[[schemas]]
name = "state"
type = "AVRO"
definition = '{"type": "string"}'

[[topics]]
name = "orders"
labels = {team = "blue"}
messageRetentionDuration = "600s"

[[topics]]
name = "orders-dead"

[[topics]]
name = "states"
schemaSettings = {schema = "state", encoding = "JSON"}

[[subscriptions]]
name = "billing"
topic = "orders"
ack_deadline_seconds = 30
filter = 'attributes.stage = "Queued"'
deadLetterPolicy = {deadLetterTopic = "orders-dead", maxDeliveryAttempts = 6}
"""


def test_what_a_file_asks_for_is_there_at_the_start(tmp_path):
    file = tmp_path / "topics.toml"
    file.write_text(WANTED)
    with EmulatorInThread(project="shop", config=file) as emulator:
        google = Google(emulator.address, "shop")
        topic = google.publisher.get_topic(request={"topic": "projects/shop/topics/orders"})
        assert topic.labels == {"team": "blue"}
        assert topic.message_retention_duration.total_seconds() == 600
        sub = google.subscriber.get_subscription(
            request={"subscription": "projects/shop/subscriptions/billing"}
        )
        assert (sub.ack_deadline_seconds, sub.filter) == (30, 'attributes.stage = "Queued"')
        assert sub.dead_letter_policy.dead_letter_topic == "projects/shop/topics/orders-dead"
        states = google.publisher.get_topic(request={"topic": "projects/shop/topics/states"})
        assert states.schema_settings.schema == "projects/shop/schemas/state"
        google.close()


def test_yaml_does_as_well(tmp_path):
    file = tmp_path / "topics.yaml"
    file.write_text(
        "topics:\n- name: orders\n"
        "subscriptions:\n- {name: billing, topic: orders, ackDeadlineSeconds: 30}\n"
    )
    with EmulatorInThread(project="shop", config=file) as emulator:
        google = Google(emulator.address, "shop")
        sub = google.subscriber.get_subscription(
            request={"subscription": "projects/shop/subscriptions/billing"}
        )
        assert sub.ack_deadline_seconds == 30
        google.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("just words", "cannot be read"),
        ("topics: orders", "topics must be a list"),
        ("topics: [orders]", "topics must be a list"),
    ],
)
def test_yaml_that_asks_for_nonsense_is_refused(tmp_path, text, said):
    file = tmp_path / "topics.yml"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        EmulatorInThread(config=file).__enter__()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[queues]]\nname='x'", "queues"),
        ("[[topics]]\nname='x'", "topics 'x'"),
        ("[[topics]]\nname='orders'\ncolour='red'", "colour"),
        ("[[subscriptions]]\nname='billing'\ntopic='none'", "subscriptions 'billing'"),
        (
            "[[subscriptions]]\nname='billing'\ndeadLetterPolicy={deadLetterTopic=5}",
            "deadLetterTopic",
        ),
        ("[[topics]]\nname='orders'\nschemaSettings={schema=5}", "topics 'orders'"),
        ("not toml", "cannot be read"),
    ],
)
def test_a_file_that_asks_for_nonsense_is_refused_by_name(tmp_path, text, said):
    file = tmp_path / "topics.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        EmulatorInThread(config=file).__enter__()
