"""The wire form: golden files, upgrades, and what is refused."""

import json
from pathlib import Path

import msgspec
import pytest

from penstock.jobs import (
    MEDIA,
    InvalidMessageError,
    JobStage,
    MediaType,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
    json_schema,
)
from tests.support.job_samples import EVENTS, JOBS

GOLDEN = Path(__file__).parent / "golden"


def golden(name):
    return (GOLDEN / name).read_bytes().rstrip(b"\n")


def attributes(draft, **changes):
    changed = {**draft.attributes, **changes}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize("kind", MediaType)
def test_req_5_2_a_job_crosses_the_boundary_unchanged(kind):
    draft = encode_job(JOBS[kind])
    assert decode_job(draft.data, draft.attributes) == JOBS[kind]


@pytest.mark.parametrize("name", EVENTS)
def test_req_5_2_an_event_crosses_the_boundary_unchanged(name):
    draft = encode_event(EVENTS[name])
    assert decode_event(draft.data, draft.attributes) == EVENTS[name]


@pytest.mark.parametrize("kind", MediaType)
def test_req_1_3_the_wire_form_of_a_job_is_the_golden_one(kind):
    version = MEDIA.job_types[kind].schema_version
    assert encode_job(JOBS[kind]).data == golden(f"{kind}.v{version}.json")


@pytest.mark.parametrize("name", EVENTS)
def test_req_1_3_the_wire_form_of_an_event_is_the_golden_one(name):
    assert encode_event(EVENTS[name]).data == golden(f"{name}.v1.json")


@pytest.mark.parametrize(
    ("kind", "version"),
    [(k, v) for k in MediaType for v in range(1, MEDIA.job_types[k].schema_version + 1)],
)
def test_every_version_that_was_ever_sent_is_read_as_today(kind, version):
    said = attributes(encode_job(JOBS[kind]), schemaVersion=str(version))
    assert decode_job(golden(f"{kind}.v{version}.json"), said) == JOBS[kind]


def test_an_event_of_a_text_that_was_cut_says_so_on_the_wire():
    cut = msgspec.structs.replace(EVENTS["TranscriptComplete"], pages=500, truncated=True)
    draft = encode_event(cut)
    assert draft.data == golden("TranscriptComplete.cut.v1.json")
    assert decode_event(draft.data, draft.attributes) == cut


def test_the_schema_is_the_golden_one():
    assert json_schema() == json.loads(golden("schema.json"))


def test_req_1_4_attributes_are_the_minimum_and_nothing_else():
    draft = encode_job(JOBS["audio"])
    assert draft.attributes == {
        "jobId": JOBS["audio"].job_id,
        "userId": "usr_42",
        "mediaType": "audio",
        "stage": "MetadataReady",
        "previousStage": "Queued",
        "schemaVersion": "2",
        "correlationId": "order-7",
    }
    bare = msgspec.structs.replace(JOBS["audio"], stage=JobStage.QUEUED, correlation_id=None)
    assert set(encode_job(bare).attributes) == {
        "jobId",
        "userId",
        "mediaType",
        "stage",
        "schemaVersion",
    }


def test_req_1_7_the_same_job_at_the_same_stage_is_the_same_message():
    assert encode_job(JOBS["audio"]) == encode_job(JOBS["audio"])
    again = msgspec.structs.replace(JOBS["audio"], run=3)
    assert encode_job(again).message_id != encode_job(JOBS["audio"]).message_id
    events = {encode_event(event).message_id for event in EVENTS.values()}
    assert len(events) == len(EVENTS)
    assert encode_job(JOBS["audio"]).message_id not in events


def test_req_2_7_messages_have_no_ordering_key():
    drafts = [*map(encode_job, JOBS.values()), *map(encode_event, EVENTS.values())]
    assert all(draft.ordering_key is None for draft in drafts)


PRIVATE = "ada@example.org"


@pytest.mark.parametrize(
    ("data", "changes", "reason"),
    [
        (b"", {}, "invalid-payload"),
        (b"{}", {}, "invalid-payload"),
        (b"not json", {}, "invalid-payload"),
        (b"[1]", {"schemaVersion": "1"}, "invalid-payload"),
        (b"x" * 70_000, {}, "too-large"),
        (None, {"mediaType": None}, "unknown-media-type"),
        (None, {"mediaType": PRIVATE}, "unknown-media-type"),
        (None, {"mediaType": "video"}, "unknown-version"),
        (None, {"schemaVersion": None}, "unknown-version"),
        (None, {"schemaVersion": "3"}, "unknown-version"),
        (None, {"schemaVersion": "0"}, "unknown-version"),
        (None, {"schemaVersion": PRIVATE}, "unknown-version"),
        (None, {"schemaVersion": "²"}, "unknown-version"),
        (None, {"jobId": "job_" + "f" * 32}, "attributes-differ"),
        (None, {"stage": "Queued"}, "attributes-differ"),
    ],
)
def test_req_1_5_what_is_no_job_is_refused_with_a_reason(data, changes, reason):
    draft = encode_job(JOBS["audio"])
    with pytest.raises(InvalidMessageError) as refused:
        decode_job(draft.data if data is None else data, attributes(draft, **changes))
    assert refused.value.reason == reason
    assert PRIVATE not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("userId", PRIVATE),
        ("stage", PRIVATE),
        ("run", 0),
        ("run", PRIVATE),
        ("createdAt", PRIVATE),
        ("info", {"duration": PRIVATE}),
        ("info", {"duration": -1, "size": 1, "container": "wav", "codec": "x"}),
        ("traceparent", PRIVATE),
        ("mediaType", PRIVATE),
    ],
)
def test_req_1_5_a_field_that_is_wrong_is_refused_without_repeating_it(field, value):
    draft = encode_job(JOBS["audio"])
    payload = json.loads(draft.data) | {field: value}
    with pytest.raises(InvalidMessageError) as refused:
        decode_job(json.dumps(payload).encode(), draft.attributes)
    assert PRIVATE not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (b"", {}),
        (b'{"event":"JobExploded"}', {}),
        (b"y" * 70_000, {}),
        (None, {"schemaVersion": "2"}),
        (None, {"jobId": "job_" + "f" * 32}),
        (None, {"stage": "Failed"}),
    ],
)
def test_req_1_5_what_is_no_event_is_refused(data, changes):
    draft = encode_event(EVENTS["JobQueued"])
    with pytest.raises(InvalidMessageError):
        decode_event(draft.data if data is None else data, attributes(draft, **changes))


def test_fields_a_newer_producer_added_are_ignored():
    draft = encode_job(JOBS["audio"])
    payload = json.loads(draft.data) | {"colour": "red"}
    assert decode_job(json.dumps(payload).encode(), draft.attributes) == JOBS["audio"]
