"""The name of the database itself."""

import sqlalchemy as sa
from alembic import op

revision = "identity_1"
down_revision = None
branch_labels = ("identity",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "penstock_database",
        sa.Column("row", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("identity", sa.String(36), nullable=False),
    )
