"""What Google promises and some brokers leave to their clients, added in front of them.

Google's clients expect deadlines to last as long as they asked, and one message of an ordering key
at a time. What a broker's capabilities say that it does by itself is left to it.
"""

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.emulator.completing.deadlines import KeptDeadlines
from penstock.emulator.completing.ordering import KeptOrder


def completed(broker: Broker, clock: Clock) -> Broker:
    """The broker, or one that does the rest in front of it. Closing it closes both."""
    has = broker.capabilities
    if has.sets_deadlines and has.ordering:
        return broker
    # Who keeps the order has to know when a deadline has passed.
    kept = KeptDeadlines(broker, clock)
    return kept if has.ordering else KeptOrder(kept, clock)
