"""The outbox as it was before tables had versions."""

import sqlalchemy as sa
from alembic import op

revision = "outbox_1"
down_revision = None
branch_labels = ("outbox",)
depends_on = None

_PENDING = "state = 'pending'"
_KEYED = f"{_PENDING} AND ordering_key IS NOT NULL"
_INDEXES = {
    "keyless": (["id"], f"{_PENDING} AND ordering_key IS NULL"),
    "keyed": (["id"], _KEYED),
    "claimed": (["lease_until"], f"{_KEYED} AND lease_until > 0"),
    "delayed": (["next_attempt_at"], f"{_KEYED} AND next_attempt_at > 0"),
    "claims": (["claimed_by", "fence"], _PENDING),
    "published": (["published_at"], "state = 'published'"),
    "dead": (["id"], "state = 'dead'"),
}


def upgrade() -> None:
    # Where Penstock ran before, it is there.
    op.create_table(
        "penstock_outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("ordering_key", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("attributes", sa.JSON, nullable=False),
        sa.Column("ttl", sa.Double),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", sa.Double, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("published_at", sa.Double),
        sa.Column("sequence", sa.BigInteger),
        sa.UniqueConstraint("topic", "message_id", name="penstock_outbox_message"),
        if_not_exists=True,
    )
    for name, (columns, only) in _INDEXES.items():
        op.create_index(
            f"penstock_outbox_{name}",
            "penstock_outbox",
            columns,
            sqlite_where=sa.text(only),
            postgresql_where=sa.text(only),
            if_not_exists=True,
        )
