"""Jobs and their texts as they were before tables had versions."""

import sqlalchemy as sa
from alembic import op

from penstock.transactional.migrations import lacked

revision = "jobs_1"
down_revision = None
branch_labels = ("jobs",)
depends_on = None


def upgrade() -> None:
    # Where Penstock ran before, they are there.
    op.create_table(
        "penstock_jobs",
        sa.Column("job_id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("media_type", sa.String(16), nullable=False),
        sa.Column("media_id", sa.String(36), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("video_id", sa.String(11)),
        sa.Column("stage", sa.String(24), nullable=False),
        sa.Column("previous", sa.String(24)),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("info", sa.LargeBinary),
        sa.Column("title", sa.Text),
        sa.Column("reason", sa.String(48)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("language", sa.String(48)),
        sa.Column("segments", sa.Integer, nullable=False),
        sa.Column("characters", sa.Integer, nullable=False),
        sa.Column("correlation_id", sa.String(64)),
        sa.Column("traceparent", sa.String(55)),
        sa.Column("request", sa.String(64)),
        sa.Column("retry_us", sa.BigInteger),
        sa.Column("trying", sa.Boolean, nullable=False),
        sa.Column("ready_us", sa.BigInteger),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("updated_us", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
    if not lacked("penstock_jobs", "retry_us"):
        op.create_index("penstock_jobs_to_retry", "penstock_jobs", ["retry_us"], if_not_exists=True)
    op.create_table(
        "penstock_texts",
        sa.Column("job_id", sa.String(36), primary_key=True),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
