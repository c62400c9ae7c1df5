"""A stage as a source, without Spark around it."""

import subprocess
import sys

from penstock.columns import Columns
from penstock.spark.jobs import stage_source


def test_messages_come_to_a_stage_as_the_log_has_them_whatever_their_ids_are():
    columns = Columns()
    columns.ids = [b"one", b"\xff"]
    columns.data = [b"1", b"2"]
    columns.attributes = {1: {"stage": "Queued"}}
    one, other = stage_source._of_columns("jobs", columns)
    assert (one.topic, one.message_id, one.attributes, one.data) == ("jobs", "one", {}, b"1")
    assert (other.message_id, other.attributes) == ("\ufffd", {"stage": "Queued"})


def test_processes_that_plan_a_stage_load_nothing_that_works_on_jobs():
    program = (
        "import sys, penstock.spark.jobs.stage_source, penstock.spark.jobs.event_source;"
        "print([m for m in ('penstock.jobs', 'sqlalchemy') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.strip() == b"[]"
