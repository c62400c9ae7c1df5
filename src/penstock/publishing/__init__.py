"""From a draft to its receipt: windows, holds, retries, drain."""

from penstock.publishing.flight import Flight, FlightState, PublishOptions
from penstock.publishing.options import PublisherListener, PublishRetry
from penstock.publishing.publisher import ManagedPublisher

__all__ = [
    "Flight",
    "FlightState",
    "ManagedPublisher",
    "PublishOptions",
    "PublishRetry",
    "PublisherListener",
]
