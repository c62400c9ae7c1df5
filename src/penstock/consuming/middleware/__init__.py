"""What can be put around handlers, one a file; `app.use(…)` says in which order."""

from penstock.consuming.middleware.chain import Call, Next
from penstock.consuming.middleware.circuit_breaker import circuit_breaker
from penstock.consuming.middleware.dead_letters import dead_letters
from penstock.consuming.middleware.deduplication import Seen, SeenHere, deduplicate
from penstock.consuming.middleware.inbox import EffectsOnce, inbox, inbox_connection
from penstock.consuming.middleware.logs import logs
from penstock.consuming.middleware.observe import metrics, observe, tracing
from penstock.consuming.middleware.rate_limit import rate_limit
from penstock.consuming.middleware.retry import retry
from penstock.consuming.middleware.timeout import timeout

__all__ = [
    "Call",
    "EffectsOnce",
    "Next",
    "Seen",
    "SeenHere",
    "circuit_breaker",
    "dead_letters",
    "deduplicate",
    "inbox",
    "inbox_connection",
    "logs",
    "metrics",
    "observe",
    "rate_limit",
    "retry",
    "timeout",
    "tracing",
]
