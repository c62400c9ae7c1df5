"""The read model of jobs as it was before tables had versions."""

import sqlalchemy as sa
from alembic import op

revision = "views_1"
down_revision = None
branch_labels = ("views",)
depends_on = None


def upgrade() -> None:
    # Where Penstock ran before, they are there.
    op.create_table(
        "penstock_job_views",
        sa.Column("job_id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(24), nullable=False),
        sa.Column("media_type", sa.String(16), nullable=False),
        sa.Column("queued_us", sa.BigInteger, nullable=False),
        sa.Column("view", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
    for name, columns in (
        ("by_user", ["user_id", "queued_us", "job_id"]),
        ("by_time", ["queued_us", "job_id"]),
    ):
        op.create_index(
            f"penstock_job_views_{name}", "penstock_job_views", columns, if_not_exists=True
        )
    op.create_table(
        "penstock_job_views_position",
        sa.Column("topic", sa.String(255), primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
