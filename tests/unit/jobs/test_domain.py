"""Jobs, events and the rule by which they move."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgumentError
from penstock.jobs import MEDIA, JobEvent, JobStage, MediaType, ProcessingJob, opaque_user_id
from penstock.jobs.model.job import new_job_id
from penstock.media.video_ids import video_id_of
from tests.support.job_samples import JOBS

STAGES = list(JobStage)


def test_a_job_may_only_take_the_steps_of_the_stage_machine():
    legal = {(a, b) for a in STAGES for b in STAGES if MEDIA.may_become(a, b)}
    queued, ready, complete, failed, cancelled = STAGES
    assert legal == {
        (queued, ready),
        (queued, failed),
        (queued, cancelled),
        (ready, complete),
        (ready, failed),
        (ready, cancelled),
        (failed, queued),
        (cancelled, queued),
    }


def test_an_illegal_step_says_which_ones_are_legal():
    job = msgspec.structs.replace(JOBS["audio"], stage=JobStage.QUEUED)
    with pytest.raises(InvalidArgumentError, match="Cancelled, Failed, MetadataReady"):
        MEDIA.moved(job, JobStage.TRANSCRIPT_COMPLETE)


def test_a_retry_begins_a_new_run():
    job = msgspec.structs.replace(JOBS["audio"], stage=JobStage.FAILED, run=3)
    again = MEDIA.moved(job, JobStage.QUEUED)
    assert (again.run, again.stage) == (4, JobStage.QUEUED)


moments = st.tuples(st.integers(1, 5), st.sampled_from(STAGES))


@given(moments, moments)
def test_of_two_moments_in_a_jobs_life_at_most_one_is_news_to_the_other(one, other):
    assert not (MEDIA.is_news(*one, *other) and MEDIA.is_news(*other, *one))


@given(moments)
def test_what_is_known_is_no_news(moment):
    assert not MEDIA.is_news(*moment, *moment)


def test_the_same_key_of_the_same_user_is_the_same_job():
    assert new_job_id("user-1", "key") == new_job_id("user-1", "key")
    assert new_job_id("user-1", "key") != new_job_id("user-2", "key")
    assert new_job_id("user-1", "key") != new_job_id("user-1", "other")
    assert new_job_id("user-1") != new_job_id("user-1")


def test_a_user_known_by_an_address_gets_an_opaque_id():
    opaque = opaque_user_id("ada@example.org", b"secret")
    assert opaque == opaque_user_id("ada@example.org", b"secret")
    assert opaque != opaque_user_id("ada@example.org")
    assert "ada" not in opaque


# No personal data.


def is_narrow(pattern):
    """It says what every character may be, and where the text ends."""
    anchored = pattern.startswith("^") and pattern.endswith(r"$(?!\n)")
    wide = (r"\w", r"\s", r"\S", "[^", ".*", ".+")
    return anchored and not any(one in pattern for one in wide)


def free_text(kind, path="", known=frozenset()):
    """Paths to strings that may hold anything, in a type and all it is made of."""
    info = msgspec.inspect.type_info(kind) if not isinstance(kind, msgspec.inspect.Type) else kind
    match info:
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                yield from free_text(one, path, known)
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            if cls not in known:
                for field in fields:
                    yield from free_text(field.type, f"{path}.{field.name}", known | {cls})
        case msgspec.inspect.StrType(pattern=pattern):
            if not is_narrow(pattern or ""):
                yield path
        case (
            msgspec.inspect.IntType()
            | msgspec.inspect.FloatType()
            | msgspec.inspect.BoolType()
            | msgspec.inspect.NoneType()
            | msgspec.inspect.DateTimeType()
            | msgspec.inspect.EnumType()
        ):
            return
        case _:
            yield f"{path} ({type(info).__name__})"


@pytest.mark.parametrize("kind", [ProcessingJob, JobEvent])
def test_req_2_3_no_message_has_room_for_free_text(kind):
    assert list(free_text(kind)) == []


def test_req_2_3_the_proof_would_notice_free_text():
    class Leaky(msgspec.Struct):
        title: str
        tags: list[str] = []

    assert len(list(free_text(Leaky))) == 2


@pytest.mark.parametrize(
    "user_id", ["ada@example.org", "Ada Lovelace", "https://u:p@example.org", "a" * 65, "", "a\n"]
)
@pytest.mark.parametrize("kind", MediaType)
def test_req_2_3_a_user_id_that_is_not_opaque_does_not_fit_into_a_job(kind, user_id):
    fields = msgspec.to_builtins(JOBS[kind]) | {"userId": user_id}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, MEDIA.job_types[kind])


@pytest.mark.parametrize(
    "address",
    [
        "dQw4w9WgXcQ",
        "https://www.youtube.com/watch?v=dQw4w9WgXcQ",
        "https://youtube.com/watch?list=PL1&v=dQw4w9WgXcQ&t=4",
        "https://m.youtube.com/watch?v=dQw4w9WgXcQ",
        "https://youtu.be/dQw4w9WgXcQ?t=3",
        "https://www.youtube.com/shorts/dQw4w9WgXcQ",
        "https://www.youtube.com/embed/dQw4w9WgXcQ",
    ],
)
def test_a_video_is_known_by_every_address_it_has(address):
    assert video_id_of(address) == "dQw4w9WgXcQ"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dQw4w9WgXc",
        "dQw4w9WgXcQQ",
        "https://example.org/watch?v=dQw4w9WgXcQ",
        "https://www.youtube.com.evil.example/watch?v=dQw4w9WgXcQ",
        "https://user@www.youtube.com/watch?v=dQw4w9WgXcQ",
        "ftp://youtu.be/dQw4w9WgXcQ",
        "dQw4w9WgXcQ\nx",
    ],
)
def test_what_is_not_an_address_of_a_video_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="YouTube"):
        video_id_of(text)
