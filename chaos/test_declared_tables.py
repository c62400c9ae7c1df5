"""The example of a Declarative Pipeline, run by Spark's own command."""

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset
import pytest
from tests.support.nats_scenes import make
from tests.support.servers import NatsServer

from penstock import PubSub
from penstock.jobs import MEDIA, JobFailed, JobQueued, JobStage, MediaType
from penstock.spark.session.starting import environment

EXAMPLE = Path(__file__).parents[1] / "examples" / "job_tables"
JOBS = 5
pytestmark = pytest.mark.timeout(900)


async def publish(url):
    common = {"user_id": "ann", "media_type": MediaType.AUDIO, "run": 1, "at": datetime.now(UTC)}
    ids = [f"job_{number:032x}" for number in range(JOBS)]
    failed = {**common, "previous": JobStage.QUEUED, "reason": "malformed"}
    events = [JobQueued(job_id=one, **common) for one in ids]
    events += [JobFailed(job_id=one, **failed) for one in ids]
    async with PubSub(url) as pubsub:
        broker = await pubsub.broker()
        await broker.publish("job-events", [MEDIA.codec.encode_event(one) for one in events])


def rows(folder, table):
    files = [str(path) for path in (folder / "spark-warehouse" / table).glob("*.parquet")]
    return pyarrow.dataset.dataset(files).to_table().to_pylist()


def test_the_declared_tables_are_made_by_the_command(tmp_path):
    spec = (EXAMPLE / "spark-pipeline.yml").read_text()
    here = spec.replace("file:///var/lib/penstock/job_tables", f"file://{tmp_path}/storage")
    assert here != spec
    (tmp_path / "spark-pipeline.yml").write_text(here)
    (tmp_path / "tables.py").write_text((EXAMPLE / "tables.py").read_text())
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as server:
        make(server.url, "job-events")
        asyncio.run(publish(server.url))
        given = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
        # A Python process that is slow to start, on a busy machine, is waited for.
        patient = ("--conf", "spark.python.authenticate.socketTimeout=120s")
        ran = subprocess.run(
            [Path(sys.executable).parent / "spark-pipelines", "run", *patient],
            env={**environment("local[2]", given), "PENSTOCK_URL": server.url},
            capture_output=True,
            text=True,
            timeout=850,
            cwd=tmp_path,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert len(rows(tmp_path, "job_events")) == 2 * JOBS
    [failure] = rows(tmp_path, "job_failures")
    assert (failure["reason"], failure["jobs"]) == ("malformed", JOBS)
    assert rows(tmp_path, "job_waiting") == []
