"""Events as rows that Spark makes itself: the same as the history has."""

import asyncio
import importlib.util
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.pipelines.cli import load_pipeline_spec
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)

from penstock import Draft, PubSub
from penstock.jobs import (
    MEDIA,
    JobFailed,
    JobQueued,
    JobStage,
    MediaType,
    MetadataReady,
    TranscriptComplete,
)
from penstock.spark.jobs.analytics import REPORTS, answer, open_history
from penstock.spark.jobs.events import events_of
from penstock.spark.jobs.history import History, Told, read_history
from tests.support.nats_scenes import make
from tests.support.servers import NatsServer
from tests.support.spark_scenes import PATIENCE, run_available, stream, table

pytestmark = pytest.mark.timeout(600)
EXAMPLE = Path(__file__).parents[3] / "examples" / "job_tables"
PAGE = Path(__file__).parents[3] / "docs" / "pipeline.md"
START = datetime(2026, 3, 1, 23, 59, 50, tzinfo=UTC)


def event(kind, job, seconds, **more):
    at = START + timedelta(seconds=seconds)
    common = {"user_id": "ann", "media_type": MediaType.AUDIO, "run": 1, "at": at}
    return kind(job_id=f"job_{job:032x}", **{**common, **more})


EVENTS = [
    event(JobQueued, 1, 0, correlation_id="order-7"),
    event(JobQueued, 2, 1),
    event(MetadataReady, 1, 5, previous=JobStage.QUEUED, took=4.0, retries=2, duration=61.5),
    event(TranscriptComplete, 1, 20, previous=JobStage.METADATA_READY, took=9.5, language="en"),
    event(JobFailed, 2, 21, previous=JobStage.QUEUED, reason="malformed"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    async def publish(url):
        drafts = [MEDIA.codec.encode_event(event) for event in EVENTS]
        async with PubSub(url) as pubsub:
            broker = await pubsub.broker()
            await broker.publish("job-events", [*drafts, Draft.of(b"no event", {})])

    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        make(server.url, "job-events")
        asyncio.run(publish(server.url))
        yield server.url


@pytest.fixture
def history(spark, url, tmp_path):
    """A history of the same events, told at the same time."""
    rows = table(spark, url, "job-events").orderBy("sequence").collect()
    told = [
        Told(row.sequence, row.publish_time.astimezone(UTC), event)
        for row, event in zip(rows, EVENTS, strict=False)
    ]
    History(str(tmp_path / "history"), MEDIA).append("job-events@1", told)
    return str(tmp_path / "history")


def test_rows_of_a_stream_are_those_of_the_history(spark, url, history, tmp_path):
    folder = run_available(events_of(stream(spark, url, "job-events")), tmp_path)
    found, kept = spark.read.parquet(str(folder)), read_history(spark, history)
    assert set(found.columns) == set(kept.columns)
    columns = [name for name in kept.columns if name != "source"]
    assert found.select(columns).schema.simpleString() == kept.select(columns).schema.simpleString()
    assert found.select(columns).orderBy("sequence").collect() == (
        kept.select(columns).orderBy("sequence").collect()
    )


def test_the_windows_of_the_page_count_events_by_the_hour(spark, url):
    blocks = PAGE.read_text().split("```")[1::2]
    [block] = [block for block in blocks if "withWatermark" in block]
    names = {"spark": spark, "url": url}
    exec(block.partition("\n")[2], names)  # noqa: S102
    query = (
        names["hourly"]
        .writeStream.format("memory")
        .queryName("hourly")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE), "the query did not end"
    finally:
        query.stop()
    found = spark.table("hourly").selectExpr("hour(window.start) AS hour", "stage", "count AS jobs")
    assert {(row.hour, row.stage): row.jobs for row in found.collect()} == {
        (23, "Queued"): 2,
        (23, "MetadataReady"): 1,
        (0, "TranscriptComplete"): 1,
        (0, "Failed"): 1,
    }


class Registered(GraphElementRegistry):
    """Keeps what a pipeline declares, by name."""

    def __init__(self):
        self.outputs, self.flows = {}, {}

    def register_output(self, output):
        self.outputs[output.name] = output

    def register_flow(self, flow):
        self.flows[flow.target] = flow.func

    def register_auto_cdc_flow(self, flow):
        raise AssertionError("there is none")

    def register_sql(self, sql_text, file_path):
        raise AssertionError("there is none")


def test_the_declared_tables_say_what_the_reports_say(spark, url, history, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", url)
    spec = load_pipeline_spec(EXAMPLE / "spark-pipeline.yml")
    [library] = spec.libraries
    found = importlib.util.spec_from_file_location("tables", EXAMPLE / library.include)
    module = importlib.util.module_from_spec(found)
    declared = Registered()
    with graph_element_registration_context(declared):
        found.loader.exec_module(module)
    assert set(declared.flows) == {"job_events", "job_steps", *(f"job_{name}" for name in REPORTS)}
    # As the engine does: what streams in is kept, and the views are made of that.
    kept = run_available(declared.flows["job_events"](), tmp_path)
    spark.read.parquet(str(kept)).createOrReplaceTempView("job_events")
    declared.flows["job_steps"]().createOrReplaceTempView("job_steps")
    told = {name: declared.flows[f"job_{name}"]().collect() for name in ("stages", "failures")}
    open_history(spark, history)
    for name, rows in told.items():
        assert rows == answer(spark, name).collect()
        assert rows
