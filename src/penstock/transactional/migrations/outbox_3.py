"""What is sent by whoever committed it is one row for each topic of a transaction."""

import sqlalchemy as sa
from alembic import op

revision = "outbox_3"
down_revision = "outbox_2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "penstock_outbox_bundles",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("messages", sa.LargeBinary, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
    )
