"""What only some jobs have is one column, and what stages found out is a table."""

import sqlalchemy as sa
from alembic import op

from penstock.transactional.migrations import had, lacked

revision = "jobs_3"
down_revision = "jobs_2"
branch_labels = None
depends_on = None

_TABLE = "penstock_jobs"


def upgrade() -> None:
    # Rows without fields are read all the same: a video's id follows from its source.
    if not had(_TABLE, "fields"):
        op.add_column(_TABLE, sa.Column("fields", sa.LargeBinary))
    if not lacked(_TABLE, "video_id"):
        op.drop_column(_TABLE, "video_id")
    op.create_table(
        "penstock_results",
        sa.Column("job_id", sa.String(36), primary_key=True),
        sa.Column("stage", sa.String(48), primary_key=True),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("result", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
