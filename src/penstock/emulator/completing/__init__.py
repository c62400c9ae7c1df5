"""What Google promises and some brokers leave to their clients, added in front of them.

Google's clients expect deadlines to last as long as they asked, and one message of an ordering key
at a time. A broker whose capabilities say that it does both by itself is used as it is.
"""

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.emulator.completing.deadlines import KeptDeadlines
from penstock.emulator.completing.ordering import KeptOrder


def completed(broker: Broker, clock: Clock) -> Broker:
    """The broker, or one that does the rest in front of it. Closing it closes both."""
    if broker.capabilities.sets_deadlines and broker.capabilities.ordering:
        return broker
    return KeptOrder(KeptDeadlines(broker, clock), clock)
