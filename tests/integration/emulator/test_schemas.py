"""Schemas through Google's client: both kinds, revisions, and topics that ask for them."""

import io
import json
import tempfile

import fastavro
import pytest
from google.api_core import exceptions
from google.pubsub_v1.types import Encoding, Schema

AVRO = json.dumps(
    {
        "type": "record",
        "name": "State",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "post_abbr", "type": "string"},
        ],
    }
)
WIDER = AVRO.replace("]}", ', {"name": "founded", "type": ["null", "int"], "default": null}]}')
PROTO = 'syntax = "proto3"; message State { string name = 1; string post_abbr = 2; }'
KINDS = {"avro": (Schema.Type.AVRO, AVRO), "proto": (Schema.Type.PROTOCOL_BUFFER, PROTO)}
ALASKA = {"name": "Alaska", "post_abbr": "AK"}


@pytest.fixture(params=["avro", "proto"])
def kind(request):
    return request.param


def create(google, kind: str) -> Schema:
    type_, definition = KINDS[kind]
    name = google.path("schemas")
    return google.schemas.create_schema(
        request={
            "parent": f"projects/{google.project}",
            "schema": {"type_": type_, "definition": definition},
            "schema_id": name.rpartition("/")[2],
        }
    )


def encoded(kind: str, encoding: Encoding) -> bytes:
    if encoding is Encoding.JSON:
        return json.dumps(ALASKA).encode()
    if kind == "avro":
        out = io.BytesIO()
        fastavro.schemaless_writer(out, json.loads(AVRO), ALASKA)
        return out.getvalue()
    return b"\n\x06Alaska\x12\x02AK"


def with_schema(google, schema: Schema, encoding: Encoding, **settings) -> tuple[str, str]:
    topic = google.topic(schema_settings={"schema": schema.name, "encoding": encoding, **settings})
    return topic, google.subscription(topic)


def commit(google, schema: Schema, definition: str = WIDER) -> Schema:
    return google.schemas.commit_schema(
        request={
            "name": schema.name,
            "schema": {"name": schema.name, "type_": schema.type_, "definition": definition},
        }
    )


def test_a_schema_is_made_shown_listed_and_deleted(google, kind):
    made = create(google, kind)
    assert (made.type_, made.definition) == KINDS[kind]
    assert len(made.revision_id) == 8 and int(made.revision_id, 16) >= 0
    assert google.schemas.get_schema(request={"name": made.name}) == made
    assert google.schemas.get_schema(request={"name": f"{made.name}@{made.revision_id}"}) == made
    listed = google.schemas.list_schemas(request={"parent": f"projects/{google.project}"})
    assert {one.name: one.definition for one in listed}[made.name] == ""
    full = google.schemas.list_schemas(
        request={"parent": f"projects/{google.project}", "view": "FULL"}
    )
    assert {one.name: one.definition for one in full}[made.name] == made.definition
    google.schemas.delete_schema(request={"name": made.name})
    error = google.refusal(google.schemas.get_schema, request={"name": made.name})
    assert isinstance(error, exceptions.NotFound) and "Resource not found" in error.message


NOTHING_IN_IT = """
    {"type": "record", "name": "R", "fields": [
        {"name": "one", "type": {"type": "record", "name": "Empty", "fields": []}},
        {"name": "many", "type": %s}]}
"""


@pytest.mark.parametrize(
    ("type_", "definition"),
    [
        (Schema.Type.AVRO, '{"type": "record"}'),
        (Schema.Type.AVRO, "not json"),
        (Schema.Type.AVRO, ""),
        (Schema.Type.AVRO, '{"type": "array", "items": "null"}'),
        (Schema.Type.AVRO, NOTHING_IN_IT % '{"type": "array", "items": "Empty"}'),
        (Schema.Type.PROTOCOL_BUFFER, "message Broken {"),
        (Schema.Type.PROTOCOL_BUFFER, PROTO + " message Second {}"),
        (Schema.Type.PROTOCOL_BUFFER, 'syntax = "proto3"; import "other.proto"; message A {}'),
        (Schema.Type.PROTOCOL_BUFFER, "\x00"),
        (Schema.Type.TYPE_UNSPECIFIED, AVRO),
    ],
)
def test_a_definition_that_does_not_parse_is_refused(google, type_, definition):
    schema = {"type_": type_, "definition": definition}
    parent = f"projects/{google.project}"
    for call, request in (
        (google.schemas.validate_schema, {"parent": parent, "schema": schema}),
        (
            google.schemas.create_schema,
            {"parent": parent, "schema": schema, "schema_id": "broken-schema"},
        ),
    ):
        error = google.refusal(call, request=request)
        assert isinstance(error, exceptions.InvalidArgument)
        assert "schema" in error.message
        assert tempfile.gettempdir() not in error.message


def test_a_schema_may_import_what_google_calls_well_known(google):
    definition = """
        syntax = "proto3";
        import "google/protobuf/wrappers.proto";
        import "google/protobuf/type.proto";
        message Boxed { google.protobuf.StringValue text = 1; google.protobuf.Type type = 2; }
    """
    parent = f"projects/{google.project}"
    schema = {"type_": Schema.Type.PROTOCOL_BUFFER, "definition": definition}
    message = {"parent": parent, "schema": schema, "encoding": Encoding.JSON}
    google.schemas.validate_message(request={**message, "message": b'{"text": "a"}'})
    error = google.refusal(
        google.schemas.validate_message, request={**message, "message": b'{"text": 1}'}
    )
    assert isinstance(error, exceptions.InvalidArgument)


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.BINARY])
def test_a_message_is_checked_against_a_schema_given_or_named(google, kind, encoding):
    made = create(google, kind)
    request = {"parent": f"projects/{google.project}", "encoding": encoding}
    good = {**request, "message": encoded(kind, encoding)}
    google.schemas.validate_message(request={**good, "name": made.name})
    google.schemas.validate_message(
        request={**good, "schema": {"type_": made.type_, "definition": made.definition}}
    )
    bad = {**request, "message": b"\xff\xff\xff", "name": made.name}
    error = google.refusal(google.schemas.validate_message, request=bad)
    assert isinstance(error, exceptions.InvalidArgument)
    assert "Invalid schema message" in error.message


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.BINARY])
def test_a_topic_takes_what_its_schema_describes_and_says_which(google, kind, encoding):
    schema = create(google, kind)
    topic, sub = with_schema(google, schema, encoding)
    google.publisher.publish(topic, encoded(kind, encoding), own="kept").result(10)
    refused = google.refusal(google.publisher.publish(topic, b"\xff\xff\xff").result, 10)
    assert isinstance(refused, exceptions.InvalidArgument)
    assert "failed schema validation" in refused.message
    [received] = google.pull(sub)
    assert received.message.attributes == {
        "own": "kept",
        "googclient_schemaname": schema.name,
        "googclient_schemaencoding": encoding.name,
        "googclient_schemarevisionid": schema.revision_id,
    }


def test_revisions_are_committed_rolled_back_and_deleted(google):
    first = create(google, "avro")
    second = commit(google, first)
    third = google.schemas.rollback_schema(
        request={"name": first.name, "revision_id": first.revision_id}
    )
    assert len({first.revision_id, second.revision_id, third.revision_id}) == 3
    assert (second.definition, third.definition) == (WIDER, AVRO)
    listed = google.schemas.list_schema_revisions(request={"name": first.name, "page_size": 2})
    newest_first = [third.revision_id, second.revision_id, first.revision_id]
    assert [one.revision_id for one in listed] == newest_first
    google.schemas.delete_schema_revision(request={"name": f"{first.name}@{second.revision_id}"})
    gone = {"name": f"{first.name}@{second.revision_id}"}
    assert isinstance(google.refusal(google.schemas.get_schema, request=gone), exceptions.NotFound)
    google.schemas.delete_schema_revision(request={"name": f"{first.name}@{first.revision_id}"})
    last = {"name": f"{first.name}@{third.revision_id}"}
    error = google.refusal(google.schemas.delete_schema_revision, request=last)
    assert isinstance(error, exceptions.FailedPrecondition)


def test_a_schema_keeps_its_kind_and_at_most_twenty_revisions(google):
    schema = create(google, "avro")
    request = {
        "name": schema.name,
        "schema": {"type_": Schema.Type.PROTOCOL_BUFFER, "definition": PROTO},
    }
    error = google.refusal(google.schemas.commit_schema, request=request)
    assert isinstance(error, exceptions.InvalidArgument)
    for _ in range(19):
        commit(google, schema)
    error = google.refusal(commit, google, schema)
    assert isinstance(error, exceptions.ResourceExhausted)


def test_a_topic_takes_the_revisions_between_its_first_and_last(google):
    first = create(google, "avro")
    second = commit(google, first)
    narrow, _ = with_schema(google, first, Encoding.JSON, last_revision_id=first.revision_id)
    both, sub = with_schema(google, first, Encoding.JSON, first_revision_id=first.revision_id)
    wide = json.dumps({**ALASKA, "founded": {"int": 1959}}).encode()
    assert google.refusal(google.publisher.publish(narrow, wide).result, 10).code == 400
    google.publisher.publish(both, wide).result(10)
    [received] = google.pull(sub)
    revision = received.message.attributes["googclient_schemarevisionid"]
    assert revision == second.revision_id
    error = google.refusal(
        with_schema,
        google,
        first,
        Encoding.JSON,
        first_revision_id=second.revision_id,
        last_revision_id=first.revision_id,
    )
    assert isinstance(error, exceptions.InvalidArgument)


def test_a_topic_outlives_its_schema_and_then_takes_nothing(google):
    schema = create(google, "avro")
    topic, _ = with_schema(google, schema, Encoding.JSON)
    google.schemas.delete_schema(request={"name": schema.name})
    shown = google.publisher.get_topic(request={"topic": topic})
    assert shown.schema_settings.schema == "_deleted-schema_"
    error = google.refusal(google.publisher.publish(topic, b"{}").result, 10)
    assert isinstance(error, exceptions.NotFound)


def test_a_topic_cannot_ask_for_a_schema_that_is_not_there(google):
    settings = {"schema": google.path("schemas"), "encoding": Encoding.JSON}
    error = google.refusal(google.topic, schema_settings=settings)
    assert isinstance(error, exceptions.NotFound)
    settings = {"schema": create(google, "avro").name}
    error = google.refusal(google.topic, schema_settings=settings)
    assert "schema_settings.encoding" in error.message
