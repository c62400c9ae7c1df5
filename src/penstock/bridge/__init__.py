"""Two apps that tell each other what happened, and lose and repeat nothing on the way."""

from penstock.bridge.bridge import Bridge, PublishResult
from penstock.bridge.connection import ConnectionState
from penstock.bridge.consumer import Consumer
from penstock.bridge.envelope import Envelope, Event, MalformedEventError
from penstock.bridge.handlers import EventCall
from penstock.bridge.outcomes import ActionResult, Recovery, classify
from penstock.bridge.settings import BridgeSettings
from penstock.bridge.topology import Provisioned, Provisioner

__all__ = [
    "ActionResult",
    "Bridge",
    "BridgeSettings",
    "ConnectionState",
    "Consumer",
    "Envelope",
    "Event",
    "EventCall",
    "MalformedEventError",
    "Provisioned",
    "Provisioner",
    "PublishResult",
    "Recovery",
    "classify",
]
