"""Messages and a database's own writes in one transaction. Needs `penstock[sql]`."""

from penstock.extras import extra

with extra("sql", "penstock.transactional"):
    from penstock.transactional.database import Database, database_time, insert_into
    from penstock.transactional.inbox import Arrival, Inbox, InboxStatus, Taken
    from penstock.transactional.outbox import DeadRow, Outbox, OutboxStatus
    from penstock.transactional.relay import Relay, RelayStatistics

__all__ = [
    "Arrival",
    "Database",
    "DeadRow",
    "Inbox",
    "InboxStatus",
    "Outbox",
    "OutboxStatus",
    "Relay",
    "RelayStatistics",
    "Taken",
    "database_time",
    "insert_into",
]
