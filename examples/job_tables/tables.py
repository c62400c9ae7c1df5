"""Events of jobs as a streaming table, and every report on them as a materialized view."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.jobs.analytics import REPORTS, report_query, steps_query
from penstock.spark.jobs.events import events_of

spark = SparkSession.active()


@dp.table(comment="A row an event, as it came")
def job_events() -> DataFrame:
    messages = spark.readStream.format("penstock").option("url", os.environ["PENSTOCK_URL"])
    return events_of(messages.option("topic", "job-events").load())


@dp.materialized_view(comment="A row a step that a job has taken, with what it cost")
def job_steps() -> DataFrame:
    return spark.sql(steps_query())


def define(name: str) -> None:
    @dp.materialized_view(name=f"job_{name}", comment=REPORTS[name].title)
    def report() -> DataFrame:
        return spark.sql(report_query(name))


for each in REPORTS:
    define(each)
