"""Jobs no longer keep when to be tried again: their messages wait in the outbox."""

import sqlalchemy as sa
from alembic import op

from penstock.errors import FailedPreconditionError
from penstock.transactional.migrations import lacked

revision = "jobs_2"
down_revision = "jobs_1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if lacked("penstock_jobs", "retry_us"):
        return
    _check_that_none_waits()
    op.drop_index("penstock_jobs_to_retry", "penstock_jobs")
    for name in ("retry_us", "ready_us"):
        op.drop_column("penstock_jobs", name)


def _check_that_none_waits() -> None:
    """When a job was to be tried again is all there is to remember it by. Written down as SQL, this
    is for whoever runs it to look at."""
    waits = "SELECT count(*) FROM penstock_jobs WHERE retry_us IS NOT NULL"
    if op.get_context().as_sql:
        op.get_context().impl.static_output(f"-- Must be 0, or jobs are never tried again: {waits}")
        return
    found = op.get_bind().execute(sa.text(waits)).scalar_one()
    if found:
        raise FailedPreconditionError(
            f"{found} jobs wait to be tried again, and this upgrade would forget them; run the "
            "workers that wrote them until none of them waits, or cancel these jobs, then upgrade"
        )
