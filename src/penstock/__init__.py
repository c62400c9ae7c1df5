"""Reliable messaging and job pipelines for Python, from one process to a cluster."""

from penstock import errors
from penstock.broker import Capabilities, SubscriptionStatus, TopicStatus
from penstock.client import PubSub, Topic
from penstock.clock import PreciseTime
from penstock.config import DeadLetterPolicy, PushDelivery, RetryPolicy
from penstock.connect import BrokerKind, connect, register_broker
from penstock.errors import PenstockError
from penstock.message import AckResponse, Draft, Expect, Message, Receipt
from penstock.publishing import (
    Flight,
    FlightState,
    ManagedPublisher,
    PublisherListener,
    PublishRetry,
)
from penstock.rules.backoff import Backoff
from penstock.rules.window import FlowControl
from penstock.subscribing import (
    CloseReport,
    LeaseExtension,
    MessageStream,
    Streaming,
    SubscriberOptions,
    Subscription,
)

__version__ = "0.1.0"

__all__ = [
    "AckResponse",
    "Backoff",
    "BrokerKind",
    "Capabilities",
    "CloseReport",
    "DeadLetterPolicy",
    "Draft",
    "Expect",
    "Flight",
    "FlightState",
    "FlowControl",
    "LeaseExtension",
    "ManagedPublisher",
    "Message",
    "MessageStream",
    "PenstockError",
    "PreciseTime",
    "PubSub",
    "PublishRetry",
    "PublisherListener",
    "PushDelivery",
    "Receipt",
    "RetryPolicy",
    "Streaming",
    "SubscriberOptions",
    "Subscription",
    "SubscriptionStatus",
    "Topic",
    "TopicStatus",
    "connect",
    "errors",
    "register_broker",
]
