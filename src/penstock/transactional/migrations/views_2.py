"""The read model knows which log it has followed, and by which message."""

import sqlalchemy as sa
from alembic import op

revision = "views_2"
down_revision = "views_1"
branch_labels = None
depends_on = None

_TABLE = "penstock_job_views_position"


def upgrade() -> None:
    op.add_column(_TABLE, sa.Column("log", sa.String(64)))
    op.add_column(_TABLE, sa.Column("stored", sa.String(32)))
