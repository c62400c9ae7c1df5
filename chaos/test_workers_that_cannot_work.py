"""Workers that are set up wrongly, as processes: each says why in a line, none of them fails a job,
and once the cause is repaired all jobs complete."""

import asyncio
import shutil

import pytest
from tests.support.media_samples import FOLDER
from tests.support.processes import Running, command

from penstock.cli.exit_codes import NOT_ALL, NOT_ALLOWED, NOT_THERE, UNAVAILABLE
from penstock.jobs import JobStage, MediaType, job_system, load_settings

MEDIA = {"weather.wav": "audio", "note.pdf": "document", "river.mp4": "video"}
WHOSE = "is it the one of these jobs"
LOADS_NOT = "do not load"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["sqlite", "postgresql"])
def databases(request, tmp_path):
    """The right one, another, and addresses that lead nowhere with what each ends with."""
    if request.param == "sqlite":
        (tmp_path / "notes.db").write_text("not a database")
        wrong = {"no/where.db": UNAVAILABLE, "notes.db": NOT_ALL}
        right, other, *rest = (f"sqlite:///{tmp_path}/{name}" for name in ("a.db", "b.db", *wrong))
        return right, other, dict(zip(rest, wrong.values(), strict=True))
    postgres = request.getfixturevalue("postgres")
    right, other = postgres.new_database(), postgres.new_database()
    host = f"127.0.0.1:{postgres.port}"
    wrong = {
        f"postgresql://penstock:guess@{host}/jobs": NOT_ALLOWED,
        postgres.url("nowhere"): NOT_THERE,
        "postgresql://penstock@127.0.0.1:9/jobs": UNAVAILABLE,
    }
    return right, other, wrong


async def submit(settings):
    async with job_system(settings) as system, system.ingesting() as api:
        return [
            (await api.service.submit("user-1", MediaType(kind), name))[0].job.job_id
            for name, kind in MEDIA.items()
        ]


async def stages_of(settings, job_ids):
    """Where the jobs are, and how many dead letters there are."""
    async with job_system(settings) as system:
        records = [await system.store.get(job_id) for job_id in job_ids]
        broker = await system.pubsub.broker()
        dead = await broker.log.extent(f"{settings.topics.processing}-dead")
        return {record.job.stage for record in records}, dead.last


def test_what_is_wrong_with_a_worker_fails_no_job(databases, tmp_path):
    database, other, nowhere = databases
    media = tmp_path / "media"
    shutil.copytree(FOLDER, media)
    settings = load_settings(environ={}, url=f"local://{tmp_path}/broker", database=database)
    job_ids = asyncio.run(submit(settings))

    def words(stage, database=database, media=media):
        where = ("--url", settings.url, "--database", database)
        return ("worker", stage, *where, *(("--media", str(media)) if media else ()))

    def ends(code, *said_by, **environment):
        ended = command(*said_by, **environment)
        wrong = [line for line in ended.err.splitlines() if line.startswith("penstock:")]
        assert (ended.code, len(wrong)) == (code, 1), ended.said
        assert "Traceback" not in ended.said

    def waits(telling, *said_by):
        with Running(tmp_path, *said_by) as worker:
            worker.wait_for(lambda said: telling in said)
            assert worker.end() == 0
            assert worker.said.count("ERROR") <= len(MEDIA) and "Traceback" not in worker.said

    ends(NOT_ALL, *words("metadata", media=None))
    ends(NOT_ALL, *words("metadata", media=tmp_path / "nowhere"))
    ends(NOT_ALL, *words("transcription"), PENSTOCK_MEDIA__MODEL=str(tmp_path / "no-weights"))
    for address, code in nowhere.items():
        ends(code, *words("metadata", database=address))
    waits(WHOSE, *words("metadata", database=other))
    assert asyncio.run(stages_of(settings, job_ids)) == ({JobStage.QUEUED}, 0)

    weights = tmp_path / "weights"
    weights.mkdir()
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (weights / name).write_text("{}")
    (tmp_path / "weights.toml").write_text(f'[media]\nmodel = "{weights}"\n')
    with Running(tmp_path, *words("metadata")) as first:
        first.wait_for(lambda said: said.count("INFO done") == len(MEDIA))
    waits(LOADS_NOT, *words("transcription"), "--config", str(tmp_path / "weights.toml"))
    stages, dead = asyncio.run(stages_of(settings, job_ids))
    assert JobStage.FAILED not in stages and dead == 0

    with Running(tmp_path, *words("transcription")) as second:
        second.wait_for(lambda said: said.count("INFO done") >= len(MEDIA) - 1, within=240)
        complete = {JobStage.TRANSCRIPT_COMPLETE}, 0
        while asyncio.run(stages_of(settings, job_ids)) != complete:
            assert "failed" not in second.said
    assert asyncio.run(stages_of(settings, job_ids)) == complete
