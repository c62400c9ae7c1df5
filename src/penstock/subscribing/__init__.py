"""From a broker's deliveries to handlers and back: flow control, leases, ordering, closing."""

from penstock.subscribing.closing import CloseReport
from penstock.subscribing.leases import LeaseExtension
from penstock.subscribing.options import Streaming, SubscriberOptions
from penstock.subscribing.stream import MessageStream, StreamStatistics
from penstock.subscribing.subscription import Subscription

__all__ = [
    "CloseReport",
    "LeaseExtension",
    "MessageStream",
    "StreamStatistics",
    "Streaming",
    "SubscriberOptions",
    "Subscription",
]
