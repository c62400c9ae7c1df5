"""The inbox."""

import sqlalchemy as sa
from alembic import op

revision = "inbox_1"
down_revision = None
branch_labels = ("inbox",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "penstock_inbox",
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("processing_attempts", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("resource_type", sa.Text),
        sa.Column("resource_id", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("headers", sa.JSON),
        sa.Column("stream", sa.Text),
        sa.Column("stream_seq", sa.BigInteger),
        sa.Column("deliveries", sa.Integer),
        sa.Column("error_message", sa.Text),
        sa.Column("received_at", sa.Double),
        sa.Column("processed_at", sa.Double),
        sa.Column("failed_at", sa.Double),
    )
    only = sa.text("status != 'processed'")
    op.create_index(
        "penstock_inbox_status",
        "penstock_inbox",
        ["status"],
        sqlite_where=only,
        postgresql_where=only,
    )
    op.create_index("penstock_inbox_created", "penstock_inbox", ["created_at"])
    op.create_index("penstock_inbox_sequence", "penstock_inbox", ["stream", "stream_seq"])
