"""A row is read as the job that was kept."""

import pytest

from penstock.jobs import MEDIA
from penstock.jobs.store.records import NewJob, changed_row, first_record, jobs, new_row, record_of
from tests.support.job_samples import JOBS


@pytest.mark.parametrize("kind", JOBS)
def test_what_is_read_of_a_row_is_what_was_kept(kind):
    """With all that stages found out, and fields of its own."""
    job = JOBS[kind]
    new = NewJob(job=job, source="source")
    row = new_row(new)
    changes = changed_row(first_record(new))
    row |= {name.removeprefix("new_"): value for name, value in changes.items() if name != "id"}
    read = record_of(MEDIA, [row.get(name) for name in [one.name for one in jobs.c]])
    assert read == first_record(new)
    assert read.job == job and type(read.job) is type(job)
