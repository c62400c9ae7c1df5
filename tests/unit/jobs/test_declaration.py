"""A pipeline is one value, right when it is declared, and everything is read from it."""

import pickle

import msgspec
import pytest
from examples import keywords, orders

from penstock.errors import InvalidArgumentError
from penstock.jobs import (
    MEDIA,
    Count,
    Done,
    Job,
    JobStage,
    MediaType,
    Pipeline,
    Reject,
    Stage,
    StageEvent,
    Word,
    load_settings,
)
from penstock.jobs.pipeline.declaration import pipeline_of
from penstock.jobs.settings import settings_from_json
from tests.support.job_samples import EVENTS, JOBS, WHEN

QUEUED = JobStage.QUEUED
WEIGHED, WASHED = JobStage.named("Weighed"), JobStage.named("Washed")


class Laundry(Job, frozen=True, kw_only=True, tag="laundry"):
    pass


class Sheets(Job, frozen=True, kw_only=True, tag="laundry"):
    pass


class Weighed(StageEvent, frozen=True, kw_only=True):
    grams: Count = 0


class Washed(StageEvent, frozen=True, kw_only=True):
    run: Word = "cold"


async def does_nothing(_):
    return Done()


def stage(name="weighing", consumes=QUEUED, emits=WEIGHED, **more):
    return Stage(name=name, consumes=consumes, emits=emits, handler=does_nothing, **more)


def pipeline(*stages, **more):
    return Pipeline(**{"name": "laundry", "jobs": (Laundry,), "stages": stages, **more})


def test_what_a_pipeline_declares_is_what_its_settings_begin_with():
    washing = stage("washing", WEIGHED, WASHED, defaults={"concurrency": 3, "time_limit": 9.0})
    settings = load_settings(environ={}, pipeline=pipeline(stage(), washing))
    assert (settings.topics.processing, settings.topics.events) == (
        "laundry-processing",
        "laundry-events",
    )
    assert settings.api.views_subscription == "laundry-views"
    assert settings.stages.washing.subscription == "laundry-washing"
    assert settings.stages.washing.filter == 'attributes.stage = "Weighed"'
    assert (settings.stages.washing.concurrency, settings.stages.washing.time_limit) == (3, 9.0)
    assert settings.stages.weighing.concurrency == 4


def test_a_file_and_the_environment_change_the_settings_of_a_declared_stage(tmp_path):
    file = tmp_path / "laundry.toml"
    file.write_text("[stages.weighing]\nconcurrency = 2\n[topics]\nprocessing = 'baskets'\n")
    settings = load_settings(
        file, {"PENSTOCK_STAGES__WEIGHING__MAX_ATTEMPTS": "7"}, pipeline=pipeline(stage())
    )
    assert (settings.stages.weighing.concurrency, settings.stages.weighing.max_attempts) == (2, 7)
    assert settings.topics.processing == "baskets"
    with pytest.raises(InvalidArgumentError, match="metadata"):
        load_settings(environ={}, pipeline=pipeline(stage()), stages={"metadata": {}})
    topics = {"media": {"audio": "audio-processing"}}
    with pytest.raises(InvalidArgumentError, match="its media types are laundry"):
        load_settings(environ={}, pipeline=pipeline(stage()), topics=topics)


def test_settings_are_the_same_in_another_process():
    declared = pipeline(stage())
    settings = load_settings(environ={}, pipeline=declared, url="nats://host")
    again = settings_from_json(settings.to_json(), declared)
    assert again == settings and again.pipeline is declared


@pytest.mark.parametrize(
    ("stages", "more", "told"),
    [
        ((), {}, "a stage"),
        ((stage(),), {"jobs": ()}, "a type of job"),
        ((stage(),), {"jobs": (Laundry, Sheets)}, "same tag"),
        ((stage(), stage("again", WEIGHED, QUEUED)), {}, "twice"),
        ((stage(consumes=WEIGHED, emits=WASHED),), {}, "cannot take jobs"),
        ((stage(), stage("late", QUEUED, WASHED)), {}, "cannot take jobs"),
        ((stage(emits=JobStage.FAILED),), {}, "cannot take jobs"),
        ((stage(), stage(consumes=WEIGHED, emits=WASHED)), {}, "names of their own"),
        ((stage("projection"),), {}, "names of their own"),
        ((stage("no-name"),), {}, "names of their own"),
        ((stage(emits=WASHED, event=Weighed),), {}, "Weighed is about Weighed"),
        ((stage(emits=WASHED, event=Washed),), {}, "give that fact another name"),
        ((stage(defaults={"concurrency": 0}),), {}, "concurrency"),
        ((stage(defaults={"colour": "red"}),), {}, "colour"),
        ((stage(),), {"name": "x y"}, "Topic"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused_when_it_is_declared(stages, more, told):
    with pytest.raises(InvalidArgumentError, match=told):
        pipeline(*stages, **more)


@pytest.mark.parametrize("name", ["no words", "lower", "", "X" * 25, "A\n", 5])
def test_a_stage_has_a_name_of_letters_and_digits(name):
    with pytest.raises(InvalidArgumentError):
        JobStage.named(name)


def test_a_name_is_one_object_and_one_that_nobody_declared_is_none():
    assert JobStage.named("Weighed") is WEIGHED is JobStage("Weighed")
    assert msgspec.json.decode(b'"Weighed"', type=JobStage) is WEIGHED
    assert pickle.loads(pickle.dumps(WEIGHED)) is WEIGHED  # noqa: S301
    with pytest.raises(ValueError, match="Ironed"):
        JobStage("Ironed")
    assert WEIGHED not in list(JobStage)


def test_a_stage_without_an_event_type_tells_that_it_was_reached_and_no_more():
    declared = pipeline(stage())
    event = declared.event_types[WEIGHED]
    assert (event.__name__, event.stage, event.facts()) == ("Weighed", WEIGHED, ())
    with_facts = pipeline(stage(event=Weighed))
    assert with_facts.event_types[WEIGHED] is Weighed
    assert list(with_facts.facts) == ["grams", "reason", "attempts"]


def test_a_longer_pipeline_keeps_the_topics_and_ends_later():
    longer = keywords.PIPELINE
    assert longer.order == (*MEDIA.order, keywords.KeywordsReady.stage)
    assert (longer.processing_topic, longer.name) == ("job-processing", "media")
    assert MEDIA.is_end(JobStage.TRANSCRIPT_COMPLETE)
    assert not longer.is_end(JobStage.TRANSCRIPT_COMPLETE)
    assert longer.may_become(JobStage.TRANSCRIPT_COMPLETE, keywords.KeywordsReady.stage)
    assert not MEDIA.may_become(JobStage.TRANSCRIPT_COMPLETE, JobStage.FAILED)
    settings = load_settings(environ={}, pipeline=longer)
    assert settings.stages.metadata.concurrency == 16
    assert settings.stages.keywords.subscription == "job-keywords"


@pytest.mark.parametrize("declared", [MEDIA, keywords.PIPELINE, orders.PIPELINE, pipeline(stage())])
def test_every_run_goes_forward_and_every_end_is_last(declared):
    ends = {JobStage.FAILED, JobStage.CANCELLED, declared.order[-1]}
    stages = {*declared.order, *ends}
    for one in stages:
        assert declared.is_end(one) is (one in ends)
        for other in declared.after(one) - {QUEUED}:
            assert declared.is_news(1, other, 1, one)
        assert all(declared.is_news(2, other, 1, one) for other in stages)


def test_a_message_of_another_pipeline_is_refused():
    job = Laundry(
        job_id="job_" + "1" * 32,
        user_id="user-1",
        media_id="med_" + "2" * 32,
        created_at=WHEN,
        stage=WEIGHED,
    )
    washing = pipeline(stage(), stage("washing", WEIGHED, WASHED))
    draft = washing.codec.encode_job(job)
    assert draft.attributes["previousStage"] == "Queued"
    assert washing.codec.decode_job(draft.data, draft.attributes) == job
    with pytest.raises(InvalidArgumentError, match="one of audio, video"):
        MEDIA.codec.decode_job(draft.data, draft.attributes)
    media = msgspec.structs.replace(JOBS["audio"], stage=WEIGHED)
    strange = MEDIA.codec.encode_job(media)
    with pytest.raises(InvalidArgumentError, match="at its stage"):
        MEDIA.codec.decode_job(strange.data, strange.attributes)
    event = msgspec.structs.replace(EVENTS["JobFailed"], previous=WEIGHED)
    strange = MEDIA.codec.encode_event(event)
    with pytest.raises(InvalidArgumentError, match="at its stage"):
        MEDIA.codec.decode_event(strange.data, strange.attributes)


def test_the_schema_of_a_pipeline_names_its_own_stages_and_media_types():
    schema = orders.PIPELINE.codec.json_schema()
    assert schema["$defs"]["JobStage"]["enum"] == [
        "Cancelled",
        "Failed",
        "Packed",
        "Priced",
        "Queued",
    ]
    assert list(schema["jobs"]) == ["order"]
    assert schema["$defs"]["MediaType"]["enum"] == ["order"]


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("examples.orders", "module:NAME"),
        ("examples.orders:NOTHING", "NOTHING"),
        ("nowhere.at.all:PIPELINE", "nowhere"),
        (":", "module:NAME"),
        ("examples.orders:main", "should be a penstock.jobs.Pipeline"),
    ],
)
def test_a_reference_that_leads_nowhere_is_an_error_that_says_so(reference, told):
    with pytest.raises(InvalidArgumentError, match=told):
        pipeline_of(reference)
    assert pipeline_of("examples.orders:PIPELINE") is orders.PIPELINE


# What a handler returns.

MEDIA_TYPE = MediaType("laundry")
LAUNDRY = Laundry(
    job_id="job_" + "1" * 32, user_id="user-1", media_id="med_" + "2" * 32, created_at=WHEN
)


@pytest.mark.parametrize(
    "outcome",
    [
        Done(facts={"colour": 1}),
        Done(facts={"grams": -1}),
        Done(facts={"grams": "zoe@example.org"}),
        Done(result=object()),
        Done(info=orders.Price(total=1)),
    ],
)
async def test_what_its_event_cannot_say_is_a_mistake_of_the_handler(outcome, caplog):
    async def handler(_):
        return outcome

    declared = pipeline(stage(event=Weighed)).stages[0]
    wrong = Stage(
        name="weighing", consumes=QUEUED, emits=WEIGHED, handler=handler, event=declared.event
    )
    assert await wrong.run(LAUNDRY) == Reject("handler-error")
    assert "zoe" not in caplog.text


async def test_a_handler_gets_the_tools_if_it_has_a_second_argument():
    async def plain(job):
        return Done(title="plain")

    async def with_tools(job, tools):
        return Done(title=tools)

    async def with_an_option(job, tools="own"):
        return Done(title=tools)

    for handler, takes, title in (
        (plain, False, "plain"),
        (with_tools, True, "hammer"),
        (with_an_option, False, "own"),
    ):
        one = Stage(name="weighing", consumes=QUEUED, emits=WEIGHED, handler=handler)
        assert one.takes_tools is takes
        assert await one.using("hammer").run(LAUNDRY) == Done(title=title)
