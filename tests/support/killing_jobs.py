"""A worker whose process dies of one of its jobs:

    python -m tests.support.killing_jobs DATABASE LOG JOB...

What a broker would deliver again in each life is sent again at its beginning.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from penstock.jobs import MEDIA, Done, JobStage, Stage, job_system, load_settings
from tests.support.job_scenes import IMPATIENT, INFO

CONCURRENCY = 4


def note(log, source):
    with Path(log).open("a") as file:
        file.write(f"{source}\n")


async def live(database, log, job_ids):
    """Until every job has gone on, or the process is dead."""
    side_by_side = 0
    crowded = asyncio.Event()

    async def handler(job):
        nonlocal side_by_side
        kept = await system.store.get(job.job_id)
        note(log, kept.source)
        side_by_side += 1
        if side_by_side == CONCURRENCY:
            crowded.set()
        try:
            # As many as may be are under way when it happens; alone, nobody comes.
            async with asyncio.timeout(0.5):
                await crowded.wait()
        except TimeoutError:
            pass
        if kept.source == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.05)
        side_by_side -= 1
        return Done(info=INFO)

    stage = {**IMPATIENT, "concurrency": CONCURRENCY, "max_attempts": 2}
    settings = load_settings(environ={}, database=database, stages={"metadata": stage})
    async with job_system(settings) as system:
        records = [await system.store.get(job_id) for job_id in job_ids]
        for record in records:
            await system.client.publisher.publish_job(record.job)
        metadata = Stage(
            name="metadata",
            consumes=JobStage.QUEUED,
            emits=JobStage.METADATA_READY,
            handler=handler,
            event=MEDIA.stages[0].event,
        )
        async with system.worker(metadata):
            for job_id in job_ids:
                while (await system.store.get(job_id)).job.stage is JobStage.QUEUED:
                    await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2], sys.argv[3:]))
