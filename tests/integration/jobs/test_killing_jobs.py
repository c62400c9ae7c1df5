"""A job that kills the process of its worker is given up alone."""

import asyncio
import signal
import sys

import pytest

from penstock.jobs import JobStage
from tests.support.job_scenes import impatient, jobs_on
from tests.support.killing_jobs import CONCURRENCY

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


async def lives(place, log, job_ids, most=10):
    """How the process ended, each time it was started, until it ended well."""
    ends = []
    while not ends or (ends[-1] != 0 and len(ends) < most):
        command = ("-m", "tests.support.killing_jobs", place.database, str(log), *job_ids)
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        ends.append(await process.wait())
    return ends


async def test_a_job_that_kills_its_worker_is_given_up_and_its_neighbours_complete(quick, tmp_path):
    sources = [f"{number}.wav" for number in range(9)]
    sources.insert(2, "killer")
    async with jobs_on(quick, stages=impatient()) as scene:
        made = {source: (await scene.submit(source)).job.job_id for source in sources}
    ends = await lives(quick, tmp_path / "log", list(made.values()))
    async with jobs_on(quick, stages=impatient()) as scene:
        kept = {source: await scene.system.store.get(job_id) for source, job_id in made.items()}
    killer = kept.pop("killer")
    assert (killer.job.stage, killer.reason) == (JobStage.FAILED, "gave-up")
    assert {record.job.stage for record in kept.values()} == {JobStage.METADATA_READY}
    # Once beside others, once alone, and then nobody dies of it any more.
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    tried = (tmp_path / "log").read_text().split()
    assert tried.count("killer") == 2
    assert sum(tried.count(source) - 1 for source in kept) <= CONCURRENCY - 1


async def test_a_suspect_whose_turn_has_not_come_is_not_counted_as_tried(quick):
    """Whoever dies meanwhile, it was not this one."""
    begun, holding = asyncio.Event(), asyncio.Event()

    async def holds(job):
        begun.set()
        await holding.wait()

    async with jobs_on(quick, stages=impatient(drain=0)) as scene:
        suspects = [await scene.submit(f"{n}.wav") for n in range(3)]
        for record in suspects:
            await scene.system.store.begin(record.job)
        async with scene.working(metadata=holds, transcription=None):
            await begun.wait()
            await asyncio.sleep(0.2)
            records = [await scene.system.store.get(one.job.job_id) for one in suspects]
            assert sorted(record.attempts for record in records) == [1, 1, 2]
            assert len(scene.calls) == 1
