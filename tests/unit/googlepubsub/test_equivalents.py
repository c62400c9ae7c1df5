"""What gcloud and Terraform would make is what the adapter makes."""

import shlex

import pytest

from penstock.config import DeadLetterPolicy, RetryPolicy, SubscriptionConfig, TopicConfig
from penstock.googlepubsub import gcloud, terraform
from penstock.googlepubsub.messages import Subscription, Topic
from penstock.googlepubsub.names import Names
from penstock.googlepubsub.resources import write_subscription, write_topic


def topic(**options):
    made = Topic()
    write_topic(made, TopicConfig(**options), Names("shop"))
    return made


def subscription(**options):
    made = Subscription()
    config = SubscriptionConfig(name="billing", topic="orders", **options)
    write_subscription(made, config, Names("shop"))
    return made


EVERYTHING = {
    "ack_deadline": 30.0,
    "message_ordering": True,
    "enable_exactly_once_delivery": True,
    "filter": """attributes.kind = "it's $1" """.strip(),
    "dead_letter_policy": DeadLetterPolicy(topic="orders-dead", max_delivery_attempts=7),
    "retry_policy": RetryPolicy(minimum_backoff=0.5, maximum_backoff=600),
    "retain_acked_messages": True,
    "message_retention": 86_400.0,
    "expires_after": 31 * 86_400.0,
}


def test_every_option_becomes_a_flag_of_gcloud():
    command, *_ = gcloud.commands([], [subscription(**EVERYTHING)])
    assert shlex.split(command) == [
        *("gcloud", "pubsub", "subscriptions", "create", "billing", "--project=shop"),
        "--topic=projects/shop/topics/orders",
        "--ack-deadline=30",
        "--enable-message-ordering",
        "--enable-exactly-once-delivery",
        "--retain-acked-messages",
        """--message-filter=attributes.kind = "it's $1\"""",
        "--message-retention-duration=86400s",
        "--expiration-period=2678400s",
        "--dead-letter-topic=projects/shop/topics/orders-dead",
        "--max-delivery-attempts=7",
        "--min-retry-delay=0.5s",
        "--max-retry-delay=600s",
    ]


def test_what_was_not_asked_for_is_left_to_google():
    commands = gcloud.commands([topic(name="orders")], [subscription()])
    assert list(commands) == [
        "gcloud pubsub topics create orders --project=shop",
        (
            "gcloud pubsub subscriptions create billing --project=shop "
            "--topic=projects/shop/topics/orders --ack-deadline=60 "
            "--message-retention-duration=604800s --expiration-period=never"
        ),
    ]


def test_google_is_let_move_dead_letters():
    policy = DeadLetterPolicy(topic="elsewhere/orders-dead")
    *_, publishes, subscribes = gcloud.commands([], [subscription(dead_letter_policy=policy)])
    assert publishes.startswith(
        "gcloud pubsub topics add-iam-policy-binding orders-dead --project=elsewhere "
    )
    assert publishes.endswith(
        '@gcp-sa-pubsub.iam.gserviceaccount.com" --role=roles/pubsub.publisher'
    )
    assert "subscriptions add-iam-policy-binding billing --project=shop " in subscribes
    assert subscribes.endswith("--role=roles/pubsub.subscriber")


def test_terraform_makes_topics_before_those_who_name_them():
    topics = [topic(name="orders", message_retention=600.0)]
    made, sub = terraform.resources(topics, [subscription(**EVERYTHING)])
    assert made == (
        'resource "google_pubsub_topic" "orders" {\n'
        '  project                    = "shop"\n'
        '  name                       = "orders"\n'
        '  message_retention_duration = "600s"\n'
        "}"
    )
    lines = {" ".join(line.split()) for line in sub.splitlines()}
    assert lines >= {
        "topic = google_pubsub_topic.orders.id",
        'dead_letter_topic = "projects/shop/topics/orders-dead"',
        "max_delivery_attempts = 7",
        'filter = "attributes.kind = \\"it\'s $1\\""',
        'ttl = "2678400s"',
        'minimum_backoff = "0.5s"',
        "enable_exactly_once_delivery = true",
        "retain_acked_messages = true",
    }


@pytest.mark.parametrize(("name", "label"), [("a.b~c", "a_b_c"), ("plain-name", "plain-name")])
def test_a_name_that_terraform_cannot_take_gets_another_label(name, label):
    [made] = terraform.resources([topic(name=name)], [])
    assert made.startswith(f'resource "google_pubsub_topic" "{label}" {{')
    assert f'= "{name}"' in made


def test_templates_of_terraform_in_a_filter_are_text():
    [sub] = terraform.resources([], [subscription(filter='attributes.k = "${x} %{y}"')])
    assert '\\"$${x} %%{y}\\"' in sub
