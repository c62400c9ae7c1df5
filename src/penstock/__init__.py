"""Reliable messaging and job pipelines for Python, from one process to a cluster."""

from typing import TYPE_CHECKING

from penstock import errors
from penstock.broker import Capabilities, SubscriptionStatus, TopicStatus
from penstock.client import PubSub, Topic
from penstock.clock import PreciseTime
from penstock.config import DeadLetterPolicy, PushDelivery, RetryPolicy, ServerName
from penstock.connect import BrokerKind, connect, register_broker
from penstock.dead_letters import DeadLetter, DeadLetters, Selection
from penstock.errors import PenstockError
from penstock.extras import loaded_later
from penstock.message import AckResponse, Draft, Expect, Message, Receipt
from penstock.outcomes import Reject, Retry
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

if TYPE_CHECKING:
    from penstock.bridge import ActionResult, Bridge, Event
    from penstock.consuming import App, Attribute, Attributes, Router

__version__ = "0.1.0"

__all__ = [
    "AckResponse",
    "ActionResult",
    "App",
    "Attribute",
    "Attributes",
    "Backoff",
    "Bridge",
    "BrokerKind",
    "Capabilities",
    "CloseReport",
    "DeadLetter",
    "DeadLetterPolicy",
    "DeadLetters",
    "Draft",
    "Event",
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
    "Reject",
    "Retry",
    "RetryPolicy",
    "Router",
    "Selection",
    "ServerName",
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

# What stands on all the rest is loaded when first used: commands and workers start faster without.
_LATER = {
    "ActionResult": "bridge",
    "App": "consuming",
    "Attribute": "consuming",
    "Attributes": "consuming",
    "Bridge": "bridge",
    "Event": "bridge",
    "Router": "consuming",
}

if not TYPE_CHECKING:  # Or a name that is not there would pass for one that is.
    __getattr__ = loaded_later(__name__, _LATER)
