"""What Google's samples for Python do with schemas, and their tests ask of it."""

import json
from collections.abc import Iterator

import grpc
import pytest
from google.api_core import exceptions
from google.cloud.pubsub import PublisherClient, SchemaServiceClient, SubscriberClient
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.types import Encoding, Schema
from google.pubsub_v1.types.schema import ListSchemaRevisionsRequest

from tests.support.google_clients import PROJECT, Received

HERE = f"projects/{PROJECT}"
FIELDS = [{"name": "name", "type": "string"}, {"name": "post_abbr", "type": "string"}]
AVRO = json.dumps({"type": "record", "name": "State", "namespace": "utilities", "fields": FIELDS})
AVRO_PLUS = json.dumps(
    {
        "type": "record",
        "name": "State",
        "namespace": "utilities",
        "fields": [*FIELDS, {"name": "population", "type": "long", "default": 0}],
    }
)
PROTO = """
syntax = "proto3";
package utilities;
message StateProto { string name = 1; string post_abbr = 2; }
"""
PROTO_PLUS = PROTO.replace("}", "int64 population = 3; }")
DEFINITIONS = {
    Schema.Type.AVRO: (AVRO, AVRO_PLUS),
    Schema.Type.PROTOCOL_BUFFER: (PROTO, PROTO_PLUS),
}
# Alaska, AK, as each of them writes it.
BINARY = {
    Schema.Type.AVRO: b"\x0cAlaska\x04AK",
    Schema.Type.PROTOCOL_BUFFER: b"\x0a\x06Alaska\x12\x02AK",
}
KINDS = pytest.mark.parametrize("kind", list(DEFINITIONS), ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def schemas(environment) -> Iterator[SchemaServiceClient]:
    # Google's client for schemas is the one that does not look at the variable.
    channel = grpc.insecure_channel(environment)
    with SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel)) as client:
        yield client


@pytest.fixture
def made(schemas, request, kind) -> Iterator[Schema]:
    name = request.node.name.replace("[", ".").rstrip("]")
    schema = Schema(
        name=schemas.schema_path(PROJECT, name), type_=kind, definition=DEFINITIONS[kind][0]
    )
    yield schemas.create_schema(request={"parent": HERE, "schema": schema, "schema_id": name})
    try:
        schemas.delete_schema(request={"name": schema.name})
    except exceptions.NotFound:
        return


def commit(schemas, schema: Schema, definition: str) -> Schema:
    wanted = Schema(name=schema.name, type_=schema.type_, definition=definition)
    return schemas.commit_schema(request={"schema": wanted, "name": schema.name})


@KINDS
def test_a_schema_is_created_once_shown_listed_and_deleted(schemas, made, kind):
    again = {"parent": HERE, "schema": made, "schema_id": made.name.rpartition("/")[2]}
    with pytest.raises(exceptions.AlreadyExists):
        schemas.create_schema(request=again)
    assert schemas.get_schema(request={"name": made.name}) == made
    assert made.name in {one.name for one in schemas.list_schemas(request={"parent": HERE})}
    schemas.delete_schema(request={"name": made.name})
    with pytest.raises(exceptions.NotFound):
        schemas.get_schema(request={"name": made.name})


@KINDS
def test_a_revision_is_committed_shown_listed_rolled_back_and_deleted(schemas, made, kind):
    first = commit(schemas, made, DEFINITIONS[kind][1])
    second = commit(schemas, made, DEFINITIONS[kind][1])
    path = schemas.schema_path(PROJECT, f"{made.name.rpartition('/')[2]}@{first.revision_id}")
    shown = schemas.get_schema(request={"name": path})
    assert shown.definition == DEFINITIONS[kind][1]
    assert made.name in str(shown)
    listed = schemas.list_schema_revisions(request=ListSchemaRevisionsRequest(name=made.name))
    ids = [one.revision_id for one in listed]
    assert ids == [second.revision_id, first.revision_id, made.revision_id]
    request = {"name": made.name, "revision_id": made.revision_id}
    back = schemas.rollback_schema(request=request)
    assert (back.definition, back.revision_id not in ids) == (DEFINITIONS[kind][0], True)
    schemas.delete_schema_revision(request={"name": path})
    with pytest.raises(exceptions.NotFound):
        schemas.get_schema(request={"name": path})
    with pytest.raises(exceptions.NotFound):
        commit(schemas, Schema(name=f"{HERE}/schemas/missing", type_=kind), made.definition)


@KINDS
def test_a_topic_is_made_with_a_schema_its_revisions_and_changed_to_others(schemas, made, kind):
    later = commit(schemas, made, DEFINITIONS[kind][1]).revision_id
    topic = f"{HERE}/topics/with-{kind.name}"
    with PublisherClient() as publisher:
        settings = {"schema": made.name, "encoding": Encoding.BINARY}
        shown = publisher.create_topic(request={"name": topic, "schema_settings": settings})
        assert made.name in str(shown) and "BINARY" in str(shown)
        wanted = {"first_revision_id": later, "last_revision_id": later}
        changed = publisher.update_topic(
            request={
                "topic": {"name": topic, "schema_settings": wanted},
                "update_mask": "schemaSettings.firstRevisionId,schemaSettings.lastRevisionId",
            }
        )
        found = changed.schema_settings
        assert (found.schema, found.encoding) == (made.name, Encoding.BINARY)
        assert (found.first_revision_id, found.last_revision_id) == (later, later)
        publisher.delete_topic(request={"topic": topic})
        unspecified = {"schema": made.name, "encoding": Encoding.ENCODING_UNSPECIFIED}
        with pytest.raises(exceptions.InvalidArgument):
            publisher.create_topic(request={"name": topic, "schema_settings": unspecified})


@KINDS
@pytest.mark.parametrize("encoding", [Encoding.BINARY, Encoding.JSON])
def test_a_record_is_published_and_received_with_its_encoding(schemas, made, kind, encoding):
    topic = f"{HERE}/topics/records-{kind.name}-{encoding.name}"
    sub = f"{HERE}/subscriptions/records-{kind.name}-{encoding.name}"
    plain = json.dumps({"name": "Alaska", "post_abbr": "AK"}).encode()
    data = BINARY[kind] if encoding == Encoding.BINARY else plain
    with PublisherClient() as publisher, SubscriberClient() as subscriber:
        settings = {"schema": made.name, "encoding": encoding}
        publisher.create_topic(request={"name": topic, "schema_settings": settings})
        subscriber.create_subscription(request={"name": sub, "topic": topic})
        found = publisher.get_topic(request={"topic": topic})
        assert found.schema_settings.encoding == encoding
        assert publisher.publish(topic, data).result(10)
        received = Received()
        pulling = subscriber.subscribe(sub, received)
        received.wait_for(1)
        pulling.cancel()
        pulling.result(10)
    [message] = received.messages
    assert message.data == data
    assert dict(message.attributes) == {
        "googclient_schemaname": made.name,
        "googclient_schemaencoding": encoding.name,
        "googclient_schemarevisionid": made.revision_id,
    }
