"""Questions about the history of jobs, as Spark SQL.

`open_history` makes two views for a session, `job_events` (a row an event) and `job_steps` (a row
a step that a job has taken, with what it cost); `REPORTS` are queries over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.config import check_zone
from penstock.errors import InvalidArgumentError
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.media import MEDIA
from penstock.spark.jobs.history import read_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Events are in the order of their topic; `late` is how far one lies behind what came before it.
_STEPS = """
SELECT
  source, sequence, job_id, run, media_type, stage, previous_stage, at, publish_time,
  date_trunc('HOUR', at) AS hour,
  took, coalesce(retries, 0) AS retries, reason,
  if(elapsed IS NULL, NULL, greatest(0, elapsed - coalesce(took, 0))) AS waited,
  greatest(0, (unix_micros(publish_time) - unix_micros(at)) / 1e6) AS told_after,
  greatest(0, (unix_micros(reached) - unix_micros(at)) / 1e6) AS late,
  stage IN ({ends}) AS ended,
  row_number() OVER (PARTITION BY job_id ORDER BY run DESC, at DESC, sequence DESC) = 1 AS is_last
FROM (
  SELECT *,
    (unix_micros(at) - unix_micros(lag(at) OVER job)) / 1e6 AS elapsed,
    max(at) OVER (PARTITION BY source ORDER BY sequence) AS reached
  FROM job_events
  WINDOW job AS (PARTITION BY job_id, run ORDER BY at, sequence)
)
"""


@dataclass(frozen=True)
class Report:
    """A question, and which column of the answer is worth a bar."""

    title: str
    sql: str
    bar: str


REPORTS: Mapping[str, Report] = {
    "stages": Report(
        "Seconds of work, and of waiting for it, by stage and media type",
        """
        SELECT stage, media_type, count(*) AS jobs,
          percentile_approx(took, 0.5) AS took_p50, percentile_approx(took, 0.95) AS took_p95,
          percentile_approx(waited, 0.5) AS waited_p50,
          percentile_approx(waited, 0.95) AS waited_p95
        FROM job_steps WHERE took IS NOT NULL
        GROUP BY stage, media_type ORDER BY stage, media_type
        """,
        "took_p50",
    ),
    "hours": Report(
        "The same by the hour",
        """
        SELECT hour, stage, media_type, count(*) AS jobs,
          percentile_approx(took, 0.5) AS took_p50, percentile_approx(took, 0.95) AS took_p95,
          percentile_approx(waited, 0.5) AS waited_p50,
          percentile_approx(waited, 0.95) AS waited_p95
        FROM job_steps WHERE took IS NOT NULL
        GROUP BY hour, stage, media_type ORDER BY hour, stage, media_type
        """,
        "waited_p50",
    ),
    "throughput": Report(
        "Jobs that reached a stage, by the hour",
        """
        SELECT hour, stage, count(*) AS jobs FROM job_steps
        GROUP BY hour, stage ORDER BY hour, stage
        """,
        "jobs",
    ),
    "failures": Report(
        "Why jobs failed, and at which stage",
        """
        SELECT reason, previous_stage AS after, media_type, count(*) AS jobs,
          count(DISTINCT job_id) AS different, max(at) AS last
        FROM job_steps WHERE stage = 'Failed'
        GROUP BY reason, previous_stage, media_type ORDER BY jobs DESC, reason
        """,
        "jobs",
    ),
    "retries": Report(
        "Work that had to be tried again",
        """
        SELECT stage, media_type, count(*) AS jobs, sum(retries) AS retries, max(retries) AS most
        FROM job_steps WHERE retries > 0
        GROUP BY stage, media_type ORDER BY retries DESC, stage
        """,
        "retries",
    ),
    "waiting": Report(
        "Jobs that have not ended, and the seconds since something happened to the oldest",
        """
        SELECT stage, media_type, count(*) AS jobs,
          round(max(unix_micros(current_timestamp()) - unix_micros(at)) / 1e6) AS oldest
        FROM job_steps WHERE is_last AND NOT ended
        GROUP BY stage, media_type ORDER BY oldest DESC
        """,
        "jobs",
    ),
    "lag": Report(
        "Seconds from what happened until its event was published, by the hour",
        """
        SELECT hour, count(*) AS events, percentile_approx(told_after, 0.5) AS p50,
          percentile_approx(told_after, 0.95) AS p95, max(told_after) AS longest
        FROM job_steps GROUP BY hour ORDER BY hour
        """,
        "p95",
    ),
    "late": Report(
        "Events that lie behind one that came before them, by more than the watermark",
        """
        SELECT hour, count(*) AS events, max(late) AS latest
        FROM job_steps WHERE late > {watermark} GROUP BY hour ORDER BY hour
        """,
        "events",
    ),
}


def check_reports(names: Iterable[str]) -> None:
    for name in names:
        if name not in REPORTS:
            raise InvalidArgumentError(
                f"There is no report {name!r}; there are {', '.join(REPORTS)}"
            )


def open_history(
    spark: SparkSession,
    location: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    pipeline: Pipeline = MEDIA,
) -> DataFrame:
    """Make the views over a history, or over what happened in it from `since` and before `until`.
    Returns `job_steps`."""
    events = read_history(spark, location)
    check_zone("since", since)
    check_zone("until", until)
    for sign, moment in ((">=", since), ("<", until)):
        if moment is not None:
            # Days are folders: those outside are not even opened.
            events = events.where(f"at {sign} timestamp'{moment.isoformat()}'").where(
                f"day {sign.rstrip('=')}= date'{moment.astimezone(UTC).date()}'"
            )
    events.createOrReplaceTempView("job_events")
    steps = spark.sql(steps_query(pipeline))
    steps.createOrReplaceTempView("job_steps")
    return steps


def steps_query(pipeline: Pipeline = MEDIA) -> str:
    """What makes `job_steps` of `job_events`, for tables of your own."""
    ends = (pipeline.order[-1], JobStage.FAILED, JobStage.CANCELLED)
    return _STEPS.format(ends=", ".join(f"'{stage.value}'" for stage in ends))


def report_query(name: str, *, watermark: float = 60.0) -> str:
    """The question of that name, over the views. `watermark`: seconds that an event may lie behind
    without being late."""
    check_reports([name])
    return REPORTS[name].sql.format(watermark=float(watermark))


def answer(spark: SparkSession, name: str, *, watermark: float = 60.0) -> DataFrame:
    """What the views say to it."""
    return spark.sql(report_query(name, watermark=watermark))
