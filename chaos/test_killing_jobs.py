"""Jobs that kill their workers, over real brokers: they are given up, and nobody else is."""

import asyncio
import signal
from contextlib import suppress

import pytest
from tests.support.processes import PENSTOCK, settings

from penstock.jobs import JobStage, MediaType, job_system, load_settings

# Each in its own way: at once, after a while, and in the second stage.
KILLERS = ("kills", "lingers", "kills-later")
INNOCENT = 40
ATTEMPTS = 3
WORKERS = ("first", "first", "second")

MODULE = """
import asyncio, os, signal
from penstock import jobs
from penstock.jobs import Done, JobStage, Stage
from penstock.jobs.tools import Tools

class Task(jobs.Job, frozen=True, kw_only=True, tag="task"):
    pass

async def work(job, tools, killers):
    source = (await tools.store.get(job.job_id)).source
    print("tried", source, flush=True)
    await asyncio.sleep(1.5 if source == "lingers" else 0.3)
    if source in killers:
        os.kill(os.getpid(), signal.SIGKILL)
    return Done()

async def first(job: Task, tools: Tools) -> Done:
    return await work(job, tools, ("kills", "lingers"))

async def second(job: Task, tools: Tools) -> Done:
    return await work(job, tools, ("kills-later",))

HALF, WHOLE = JobStage.named("Half"), JobStage.named("Whole")
limits = {"ack_deadline": 10.0, "extension_interval": 3.0, "max_attempts": ATTEMPTS}
PIPELINE = jobs.Pipeline(name="tasks", jobs=(Task,), stages=(
    Stage(name="first", consumes=JobStage.QUEUED, emits=HALF, handler=first, defaults=limits),
    Stage(name="second", consumes=HALF, emits=WHOLE, handler=second, defaults=limits),
))
"""


@pytest.fixture(params=["local+sqlite", "nats+postgresql"])
def place(request, tmp_path, monkeypatch):
    """Broker and database, in a folder with the pipeline."""
    (tmp_path / "deadly_tasks.py").write_text(f"ATTEMPTS = {ATTEMPTS}\n{MODULE}")
    monkeypatch.syspath_prepend(tmp_path)
    if request.param == "local+sqlite":
        return {"url": f"local://{tmp_path}/broker", "database": f"sqlite:///{tmp_path}/jobs.db"}
    database = request.getfixturevalue("postgres").new_database()
    return {"url": request.getfixturevalue("server").url, "database": database}


async def keep_alive(stage, place, folder, ends):
    """A worker that is started again whenever it has ended."""
    where = [word for name, value in place.items() for word in (f"--{name}", value)]
    words = ("worker", stage, "--pipeline", "deadly_tasks:PIPELINE", *where)
    with (folder / f"{stage}.log").open("ab") as log:
        while True:
            process = await asyncio.create_subprocess_exec(
                PENSTOCK, *words, cwd=folder, env=settings(), stdout=log, stderr=log
            )
            try:
                ends.append(await process.wait())
            finally:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


async def ended(store, job_ids):
    """What is kept of each job, once none is under way."""
    while True:
        kept = {name: await store.get(job_id) for name, job_id in job_ids.items()}
        if all(store.pipeline.is_end(record.job.stage) for record in kept.values()):
            return kept
        await asyncio.sleep(0.5)


async def outlive(place, folder):
    """What is kept of each job in the end, and how the workers ended meanwhile."""
    made = load_settings(environ={}, pipeline="deadly_tasks:PIPELINE", **place)
    ends: list[int] = []
    async with job_system(made) as system, system.ingesting() as api:
        job_ids = {}
        for number in range(INNOCENT):
            names = (KILLERS[number // 10],) if number % 10 == 4 and number < 30 else ()
            for name in (*names, f"task-{number}"):
                record, _ = await api.service.submit("user-1", MediaType.named("task"), name)
                job_ids[name] = record.job.job_id
        workers = [
            asyncio.ensure_future(keep_alive(stage, place, folder, ends)) for stage in WORKERS
        ]
        try:
            async with asyncio.timeout(500):
                kept = await ended(system.store, job_ids)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return kept, ends


@pytest.mark.timeout(600)
def test_jobs_that_kill_their_workers_are_given_up_and_all_others_complete(place, tmp_path):
    kept, ends = asyncio.run(outlive(place, tmp_path))
    guilty = {name: kept.pop(name) for name in KILLERS}
    assert {(one.job.stage, one.reason) for one in guilty.values()} == {
        (JobStage.FAILED, "gave-up")
    }
    assert {record.job.stage for record in kept.values()} == {JobStage.named("Whole")}
    said = "".join(log.read_text() for log in tmp_path.glob("*.log")).splitlines()
    tried = {name: said.count(f"tried {name}") for name in (*KILLERS, *kept)}
    print(f"{len(ends)} workers died")
    assert [tried[name] for name in KILLERS] == [ATTEMPTS, ATTEMPTS, 1 + ATTEMPTS]
    # Nobody dies with the same one twice.
    assert max(tried[name] for name in kept) <= 2 + len(KILLERS)
    assert set(ends) == {-signal.SIGKILL} and len(ends) <= len(KILLERS) * ATTEMPTS
