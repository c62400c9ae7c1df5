"""Rows that wait for their time are found by indexes of their own."""

import sqlalchemy as sa
from alembic import op

revision = "outbox_2"
down_revision = "outbox_1"
branch_labels = None
depends_on = None

_KEYLESS = "state = 'pending' AND ordering_key IS NULL"
_KEYED = "state = 'pending' AND ordering_key IS NOT NULL"
_AT_ONCE, _DELAYED = "next_attempt_at = 0", "next_attempt_at > 0"
_KEY = ["topic", "ordering_key", "id"]
_INDEXES = {
    "keyless": (["id"], f"{_KEYLESS} AND {_AT_ONCE}"),
    "keyless_delayed": (["next_attempt_at"], f"{_KEYLESS} AND {_DELAYED}"),
    "keyed": (["id"], f"{_KEYED} AND {_AT_ONCE}"),
    "keyed_delayed": (["next_attempt_at"], f"{_KEYED} AND {_DELAYED}"),
    "keys": (_KEY, f"{_KEYED} AND {_AT_ONCE}"),
    "delayed_keys": (_KEY, f"{_KEYED} AND {_DELAYED}"),
}


def upgrade() -> None:
    for name in ("keyless", "keyed", "delayed"):
        op.drop_index(f"penstock_outbox_{name}", "penstock_outbox")
    for name, (columns, only) in _INDEXES.items():
        op.create_index(
            f"penstock_outbox_{name}",
            "penstock_outbox",
            columns,
            sqlite_where=sa.text(only),
            postgresql_where=sa.text(only),
        )
