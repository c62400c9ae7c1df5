"""Pipelines that users declare: run by the asyncio worker, shown on the page, beside each other."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from examples import keywords, orders

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.jobs import (
    MEDIA,
    Count,
    Done,
    JobStage,
    MediaType,
    Reject,
    Stage,
    StageEvent,
    Word,
)
from tests.support.api_scenes import served
from tests.support.example_pipelines import EXAMPLES, SAMPLES, shows
from tests.support.job_scenes import INFO, TEXT, jobs_on, until

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]
ORDER = MediaType("order")


async def ended(scene, job_id, run=1):
    """The view of a job once it has ended, in whatever pipeline."""
    is_end = scene.system.settings.pipeline.is_end

    async def is_over():
        view = await scene.ingestion.views.get(job_id)
        return view is not None and view.run == run and is_end(view.stage)

    await until(is_over, within=60)
    return await scene.ingestion.views.get(job_id)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("views", ["memory", "sql"])
async def test_the_pipeline_of_an_example_runs_and_shows_on_the_page(quick, name, views):
    example = EXAMPLES[name]
    more = {"media": {"root": str(SAMPLES)}, "api": {"views": views, "local_user": "user-1"}}
    async with jobs_on(quick, pipeline=example.pipeline, **more) as scene, served(scene) as client:
        async with scene.system.working():
            body = {"mediaType": example.media_type, "source": example.source}
            asked = await client.post("/jobs", json=body)
            assert asked.status_code == 202
            job_id = asked.json()["jobId"]
            assert (await ended(scene, job_id)).stage == example.stages[-1]
        await shows(client, example, job_id)
        events = await scene.stored(f"{example.pipeline.prefix}-events")
        assert [record.attributes["stage"] for record in events] == list(example.stages)
        wrong = await client.get(f"/jobs/{job_id}/results/laundry")
        assert wrong.status_code == 400 and example.worker in wrong.json()["detail"]
        document = (await client.get("/schema/openapi.json")).text
        assert example.stages[-1] in document and example.media_type in document


async def test_pipelines_share_a_broker_and_a_database_and_see_nothing_of_each_other(place):
    if place.url.startswith("memory:"):
        # Each system has a broker of its own then, and either relay sends what is in the outbox.
        pytest.skip("there is no broker to share")
    shared = {"api": {"views": "sql"}}
    async with (
        jobs_on(place, **shared) as media,
        jobs_on(place, pipeline=orders.PIPELINE, **shared) as shop,
        media.working(),
        shop.system.working(),
    ):
        recording = await media.submit()
        order, _ = await shop.ingestion.service.submit("user-1", ORDER, "7 books")
        assert (await media.ended(recording.job.job_id)).stage is JobStage.TRANSCRIPT_COMPLETE
        assert (await ended(shop, order.job.job_id)).stage is orders.PACKED
        assert order.job.books == 7
        assert await media.system.store.get(order.job.job_id) is None
        assert await media.ingestion.views.get(order.job.job_id) is None
        for scene, job_id in ((media, recording.job.job_id), (shop, order.job.job_id)):
            page, _ = await scene.ingestion.views.list(user_id="user-1")
            assert [view.job_id for view in page] == [job_id]
            assert await scene.ingestion.views.count() == 1
        assert await media.stored("job-processing-dead") == []
        assert await shop.stored("orders-processing-dead") == []
        with pytest.raises(InvalidArgumentError, match="a media type is order"):
            await shop.ingestion.service.submit("user-1", MediaType.AUDIO, "a.wav")
        with pytest.raises(InvalidArgumentError, match=r"Order\.of_source"):
            await shop.ingestion.service.submit("user-1", ORDER, "some books")


async def test_a_job_that_ended_before_a_stage_was_added_goes_on_when_it_is_retried(place):
    if place.url == "memory://":
        pytest.skip("nothing outlives the process")
    async with jobs_on(place) as scene, scene.working():
        record = await scene.submit()
        await scene.ended(record.job.job_id)
    async with jobs_on(place, pipeline=keywords.PIPELINE) as scene:
        async with scene.system.working("keywords"):
            view = await scene.ingestion.views.get(record.job.job_id)
            assert view.stage is JobStage.TRANSCRIPT_COMPLETE
            await scene.ingestion.service.retry(record.job.job_id, "user-1")
            view = await ended(scene, record.job.job_id)
        assert view.stage is keywords.KeywordsReady.stage
        assert await scene.system.store.result(record.job.job_id, "keywords") == ["hello", "there"]
    async with jobs_on(place) as scene:
        with pytest.raises(FailedPreconditionError, match="run this process with the pipeline"):
            await scene.system.store.get(record.job.job_id)


async def test_a_run_anew_forgets_what_the_last_one_found_out(quick):
    tries = []

    async def fails_once(order):
        tries.append(order)
        return Done(result={"parcels": 1}) if len(tries) > 1 else Reject("no_box")

    async with jobs_on(quick, pipeline=orders.PIPELINE) as scene:
        packing = replace(orders.PIPELINE.stage("packing"), handler=fails_once)
        packs = scene.system.worker(packing)
        async with scene.system.working("pricing"), packs:
            record, _ = await scene.ingestion.service.submit("user-1", ORDER, "3 books")
            view = await ended(scene, record.job.job_id)
            assert (view.stage, view.reason, view.facts) == (
                JobStage.FAILED,
                "no_box",
                {"total": 36},
            )
            await scene.ingestion.service.retry(record.job.job_id)
            view = await ended(scene, record.job.job_id, run=2)
        assert (view.stage, view.reason) == (orders.PACKED, None)
        assert await scene.system.store.result(record.job.job_id, "packing") == {"parcels": 1}
        await scene.system.store.get(record.job.job_id)


async def test_a_handler_that_wants_tools_is_not_run_without_them(quick):
    async with jobs_on(quick) as scene:
        with pytest.raises(InvalidArgumentError, match=r"working\('metadata'\)"):
            scene.system.worker(scene.system.settings.pipeline.stage("metadata"))
        with pytest.raises(InvalidArgumentError, match="it has metadata, transcription"):
            async with scene.system.working("laundry"):
                pass


async def test_tools_are_opened_once_for_all_stages_and_closed_after_them(quick):
    """By the media pipeline with handlers of our own, so that both get the same tools."""
    seen, open_now = [], []

    @asynccontextmanager
    async def tools(settings, store):
        open_now.append(store)
        yield open_now
        open_now.clear()

    async def look(_, given):
        seen.append(list(given))
        return Done(info=INFO)

    async def listen(_, given):
        seen.append(list(given))
        return Done(text=TEXT)

    first, second = MEDIA.stages
    stages = (replace(first, handler=look), replace(second, handler=listen))
    declared = replace(MEDIA, stages=stages, tools=tools)
    async with jobs_on(quick, pipeline=declared) as scene:
        async with scene.system.working():
            record = await scene.submit()
            await scene.ended(record.job.job_id)
        assert seen == [[scene.system.store]] * 2 and open_now == []


class Sorted(StageEvent, frozen=True, kw_only=True):
    size: Word = "unknown"


async def sorts(_):
    return Done()


async def test_a_fact_is_not_taken_from_something_of_another_type_that_is_called_the_same(quick):
    sorting = Stage(
        name="sorting",
        consumes=JobStage.TRANSCRIPT_COMPLETE,
        emits=Sorted.stage,
        event=Sorted,
        handler=sorts,
    )
    pipeline = MEDIA.then(sorting, name="sorted")
    async with jobs_on(quick, pipeline=pipeline, api={"views": "sql"}) as scene:
        async with scene.working(), scene.system.working("sorting"):
            record = await scene.submit()
            view = await ended(scene, record.job.job_id)
    assert (view.stage, view.size, view.facts) == (Sorted.stage, INFO.size, {"size": "unknown"})


class Weighed(StageEvent, frozen=True, kw_only=True):
    grams: Count


async def weighs(_):
    return Done(facts={"grams": 500})


async def test_a_job_whose_facts_only_its_handler_knew_is_shown_and_retried(quick):
    """The store does not keep them: the read model does."""
    weighing = Stage(
        name="weighing",
        consumes=JobStage.TRANSCRIPT_COMPLETE,
        emits=Weighed.stage,
        event=Weighed,
        handler=weighs,
    )
    sorting = Stage(name="sorting", consumes=Weighed.stage, emits=Sorted.stage, handler=sorts)
    pipeline = MEDIA.then(weighing, sorting, name="weighed")
    more = {"pipeline": pipeline, "api": {"local_user": "user-1"}}
    async with jobs_on(quick, **more) as scene, served(scene) as client:
        async with scene.working(), scene.system.working("weighing"):
            job_id = (await scene.submit()).job.job_id
            await scene.view_at(job_id, Weighed.stage)
        answer = await client.post(f"/jobs/{job_id}/retry")
        assert (answer.status_code, answer.json()["stage"]) == (202, "Weighed")
        assert (await client.get(f"/jobs/{job_id}")).json()["facts"] == {"grams": 500}
