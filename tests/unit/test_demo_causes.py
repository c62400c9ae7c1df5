"""When the demo's pipeline ends by itself, what is shown is why."""

import pytest
from examples.demo import cause_of

JAVA = """
Starting Spark…
Traceback (most recent call last):
  File "pipeline.py", line 12, in _run
    made.run()
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query terminated
org.apache.spark.SparkException: Job aborted
	at org.apache.spark.Scheduler.run(Scheduler.scala:12)
Caused by: java.io.IOException: No space left on device
	at java.base/java.io.FileOutputStream.writeBytes(Native Method)
	... 22 more
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (JAVA, "java.io.IOException: No space left on device"),
        (f"penstock: There is no setting PENSTOCK_X; correct it\n{JAVA}", "penstock: There is no"),
        ("x\nTraceback:\n  File\nValueError: no port\n", "ValueError: no port"),
        ("a b WARNING late\nlast\n", "a b WARNING late"),
        ("first\nlast\n", "last"),
        ("", "It said nothing."),
    ],
)
def test_of_a_log_the_line_that_says_why_is_shown(log, cause):
    told = cause_of(log)
    assert told.startswith(cause) and "\n" not in told
