"""The envelope: the exact bytes a peer writes, both spellings, and what is refused."""

import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bridge.envelope import (
    Event,
    MalformedEventError,
    build,
    find_header,
    parse,
)
from penstock.errors import InvalidArgumentError

# As the Ruby implementation publishes it.
PEERS = (
    b'{"event_id":"0b0e5e5e-1111-4222-8333-444455556666","schema_version":1,'
    b'"event_type":"user.created","producer":"worker","resource_id":"1",'
    b'"occurred_at":"2024-01-01T00:00:00Z","trace_id":"1f2e3d4c5b6a7988",'
    b'"resource_type":"user","payload":{"id":1,"email":"user@example.com"}}'
)
OTHERS = {
    "event_id": "abc123",
    "event_type": "user.created",
    "resource_type": "user",
    "resource_id": "1",
    "payload": {"id": 1},
    "produced_at": "2024-01-01T00:00:00Z",
    "producer": "api",
    "schema_version": "1.0",
    "trace_id": "trace-uuid",
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
payloads = st.dictionaries(st.text(), json_values, max_size=4)
times = st.datetimes(
    datetime(1970, 1, 1),  # noqa: DTZ001
    datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.timezones(),
)


def user_created(payload=None, **more):
    return build(
        producer="api",
        event_type="user.created",
        payload={"id": 1} if payload is None else payload,
        **more,
    )


def test_what_is_built_has_the_bytes_a_peer_writes():
    event = build(
        producer="worker",
        event_type="user.created",
        payload={"id": 1, "email": "user@example.com"},
        event_id="0b0e5e5e-1111-4222-8333-444455556666",
        occurred_at=datetime(2024, 1, 1, tzinfo=UTC),
        trace_id="1f2e3d4c5b6a7988",
    )
    assert event.encode() == PEERS


def test_what_a_peer_writes_is_read_whole():
    event = parse(PEERS)
    assert event.event_id == "0b0e5e5e-1111-4222-8333-444455556666"
    assert (event.event_type, event.resource_type, event.resource_id) == (
        "user.created",
        "user",
        "1",
    )
    assert event.payload == {"id": 1, "email": "user@example.com"}
    assert event.occurred_at == datetime(2024, 1, 1, tzinfo=UTC)
    assert (event.producer, event.schema_version) == ("worker", 1)
    assert event.trace_id == "1f2e3d4c5b6a7988"
    assert event.encode() == PEERS


def test_the_other_spelling_is_read_too():
    event = parse(json.dumps(OTHERS).encode())
    assert event.occurred_at == datetime(2024, 1, 1, tzinfo=UTC)
    assert event.schema_version == "1.0"
    typed = {key: value for key, value in OTHERS.items() if key != "event_type"}
    assert parse(json.dumps({**typed, "type": "user.gone"}).encode()).event_type == "user.gone"


@given(payloads, times)
def test_an_event_crosses_unchanged_in_any_order(payload, when):
    event = build(
        producer="api", event_type="a.b", payload=payload, resource_id="7", occurred_at=when
    )
    assert parse(event.encode()) == event
    assert json.loads(event.encode())["payload"] == payload


@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_whatever_arrives_is_an_envelope_or_malformed_and_nothing_else(data):
    try:
        event = parse(data)
    except MalformedEventError:
        return
    assert event.event_type and isinstance(event.payload, dict)


def test_an_event_gets_an_id_a_time_and_a_trace():
    event = user_created()
    assert uuid.UUID(event.event_id).version == 4
    assert re.fullmatch(r"[0-9a-f]{16}", event.trace_id)
    assert event.occurred_at is not None and event.occurred_at.microsecond == 0
    assert event.producer == "api" and event.schema_version == 1


@pytest.mark.parametrize(
    ("payload", "resource"),
    [
        ({"id": 1, "resource_id": 2}, "1"),
        ({"resource_id": "x-2"}, "x-2"),
        ({"id": None, "resource_id": 2}, "2"),
        ({"id": 0}, "0"),
        ({"id": uuid.UUID(int=5)}, "00000000-0000-0000-0000-000000000005"),
        ({}, ""),
    ],
)
def test_the_resource_is_the_payloads_id_else_its_resource_id_else_none(payload, resource):
    assert user_created(payload).resource_id == resource


def test_the_resource_can_be_named():
    event = user_created(resource_id=9, resource_type="account")
    assert (event.resource_id, event.resource_type) == ("9", "account")
    assert user_created().resource_type == "user"
    assert parse(b'{"event_type": "user.created", "resource_id": 4}').resource_type == "user"


def test_payloads_may_be_objects_of_a_program():
    @dataclass
    class Made:
        id: int

    class Struct(msgspec.Struct):
        id: int

    assert user_created(Made(3)).payload == user_created(Struct(3)).payload == {"id": 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": [1]},
        {"payload": "text"},
        {"payload": {"x": object()}},
        {"payload": {"x": [1.5, float("nan")]}},
        {"payload": {"x": float("inf")}},
        {"event_type": ""},
        {"event_type": None},
        {"event_type": 5},
        {"resource_type": " "},
        {"resource_id": {"a": 1}},
        {"payload": {"id": True}},
        {"event_id": "a\r\nNats-Rollup: all"},
        {"event_id": "x" * 2000},
        {"occurred_at": datetime(2024, 1, 1)},  # noqa: DTZ001
        {"occurred_at": "2024-01-01"},
        {"traceparent": "00-zz"},
    ],
)
def test_what_cannot_be_an_event_is_refused_when_it_is_made(wrong):
    with pytest.raises(InvalidArgumentError):
        build(**{"producer": "api", "event_type": "user.created", "payload": {}, **wrong})


def test_a_payload_without_bytes_is_refused_without_being_quoted():
    payload = {"text": "no character \ud800"}
    with pytest.raises(InvalidArgumentError, match=r"'user\.created' cannot be written") as refused:
        user_created(payload).encode()
    assert "no character" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "Not JSON"),
        (b"\xff\xfe", "Not JSON"),
        (b"[" * 100_000, "Not JSON"),
        (b"", "Not JSON"),
        (b"[1]", "not a list"),
        (b"null", "not null"),
        (b"{}", "needs event_type"),
        (b'{"event_type": {"a": 1}}', "event_type must be text"),
        (b'{"event_type": "a", "payload": [1]}', "payload must be an object"),
        (b'{"event_type": "a", "schema_version": true}', "schema_version"),
        (b'{"event_type": "a", "event_id": ["x"]}', "event_id must be text"),
        (b'{"event_type": "a", "event_id": "x\\u0000y"}', "control character"),
    ],
)
def test_what_is_malformed_says_why(data, why):
    with pytest.raises(MalformedEventError, match=why):
        parse(data)


def test_nothing_of_a_malformed_message_is_repeated():
    with pytest.raises(MalformedEventError) as malformed:
        parse(b'{"secret": "hunter2", ')
    assert "hunter2" not in str(malformed.value) and "secret" not in str(malformed.value)


def test_a_time_that_cannot_be_read_is_no_reason_to_refuse():
    assert parse(b'{"event_type": "a", "occurred_at": "yesterday"}').occurred_at is None
    assert parse(b'{"event_type": "a", "occurred_at": 17}').occurred_at is None


def test_times_are_written_in_utc_to_the_second():
    moment = datetime(2024, 1, 1, 3, 30, 5, 999_999, tzinfo=timezone(timedelta(hours=3)))
    event = user_created(occurred_at=moment)
    assert json.loads(event.encode())["occurred_at"] == "2024-01-01T00:30:05Z"


def test_keys_of_others_are_kept():
    event = parse(b'{"event_type": "a", "tenant": "t1"}')
    assert event.extra == {"tenant": "t1"}
    assert json.loads(event.encode())["tenant"] == "t1"


def test_a_draft_is_deduplicated_by_the_event_and_ordered_by_its_resource():
    event = user_created()
    draft = event.draft("api.sync.worker")
    assert draft.message_id == event.event_id
    assert draft.subject == "api.sync.worker"
    assert draft.ordering_key == "user/1"
    assert draft.data == event.encode() and draft.attributes == {}
    assert user_created({}).draft("s").ordering_key is None
    assert event.draft("s", ordering_key="").ordering_key is None
    assert event.draft("s", ordering_key="mine").ordering_key == "mine"


def test_trace_context_travels_beside_the_trace_id():
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    event = user_created(traceparent=parent)
    assert event.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert event.draft("s", traceparent=parent).attributes == {"traceparent": parent}
    assert user_created(traceparent=parent, trace_id="own").trace_id == "own"


def arrived(**headers):
    fields = {name: getattr(parse(PEERS), name) for name in parse(PEERS).__struct_fields__}
    return Event(**fields, headers=headers)


def test_an_arrived_event_tells_its_trace_context_in_any_case():
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert arrived(Traceparent=parent).traceparent == parent
    assert arrived(traceparent="rubbish").traceparent is None
    assert arrived().traceparent is None
    assert arrived().type == "user.created"
    assert find_header({"NATS-MSG-ID": "x"}, "nats-msg-id") == "x"


def test_an_event_never_shows_its_payload():
    assert "user@example.com" not in repr(parse(PEERS)) + repr(arrived())


def test_a_version_that_is_a_number_with_a_point_is_read_as_its_text():
    assert parse(b'{"event_type": "a.b", "schema_version": 1.0}').schema_version == "1.0"
    with pytest.raises(MalformedEventError, match="schema_version"):
        parse(b'{"event_type": "a.b", "schema_version": true}')


def test_a_payload_that_contains_itself_is_refused_in_words():
    payload: dict[str, object] = {}
    payload["self"] = payload
    with pytest.raises(InvalidArgumentError, match="cannot be written as JSON"):
        build(producer="api", event_type="a.b", payload=payload)
