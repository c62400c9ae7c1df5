"""One line out of what Spark says."""

from penstock.spark.reasons import may_pass, reason_of

LOADING = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback \
(most recent call last):
  File "worker.py", line 110, in main
    schema = data_source.schema()
             ^^^^^^^^^^^^^^^^^^^^
penstock.errors.TopicNotFoundError: Topic not found: 'orders'; create it
 SQLSTATE: 38000"""
TASK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure
Traceback (most recent call last):
  File "handlers.py", line 3, in work
ValueError: no such codec

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "runner.py", line 9, in run
RuntimeError: the batch failed

\tat org.apache.spark.scheduler.Task.run(Task.scala:147)"""

STARTING = """An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
\tat org.apache.spark.SparkContext.assertNotStopped(SparkContext.scala:128)"""


def test_what_we_raised_ourselves_is_told_without_its_class():
    assert reason_of(RuntimeError(LOADING)) == "Topic not found: 'orders'; create it"


def test_what_python_code_raised_is_told_rather_than_where_spark_noticed():
    assert reason_of(RuntimeError(TASK)) == "RuntimeError: the batch failed"


def test_what_the_jvm_raised_is_told_rather_than_what_was_called():
    told = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
    assert reason_of(RuntimeError(STARTING)) == told


def test_what_has_no_traceback_is_told_by_its_first_line_and_not_for_ever():
    assert reason_of(RuntimeError("Table not found\n\tat org.apache")) == "Table not found"
    assert len(reason_of(RuntimeError("x" * 9000))) == 300
    assert reason_of(RuntimeError()) == "RuntimeError"


def test_an_error_of_ours_says_whether_to_try_again():
    away = LOADING.replace("TopicNotFoundError: Topic", "UnavailableError: No JetStream now; topic")
    assert may_pass(RuntimeError(away))
    for final in (LOADING, TASK, "Table not found", "", LOADING.replace("TopicNotFound", "New")):
        assert not may_pass(RuntimeError(final))
