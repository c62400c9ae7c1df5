"""What is said on the wire by whom it may concern: tools, strangers, and clients gone wrong."""

import tempfile
import threading
import time

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from penstock.testing.emulator import EmulatorInThread
from tests.support.google_clients import PROJECT, Google

PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"


def raw_call(google, method: str, request: bytes) -> bytes:
    return google.channel.unary_unary(method)(request, timeout=5)


def test_its_health_can_be_asked_for(google):
    health = health_pb2_grpc.HealthStub(google.channel)
    for service in ("", PUBLISHER, SUBSCRIBER):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_it_says_which_calls_it_knows(google, version):
    method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    call = google.channel.stream_stream(
        method,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SUBSCRIBER),
    ]
    listed, described = call(iter(asked))
    names = {service.name for service in listed.list_services_response.service}
    assert {PUBLISHER, SUBSCRIBER, "google.iam.v1.IAMPolicy"} <= names
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in described.file_descriptor_response.file_descriptor_proto
    ]
    [pubsub] = [file for file in files if file.name == "google/pubsub/v1/pubsub.proto"]
    methods = {service.name: len(service.method) for service in pubsub.service}
    assert methods == {"Publisher": 9, "Subscriber": 16}
    assert {name for file in files for name in file.dependency} <= {file.name for file in files}


def test_bytes_that_are_no_message_are_an_invalid_argument(google):
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(google, f"/{PUBLISHER}/Publish", b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "google.pubsub.v1.PublishRequest" in caught.value.details()
    stream = google.channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")(iter([b"\xff"]))
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_nobody_knows_is_unimplemented(google):
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(google, f"/{PUBLISHER}/Fly", b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_client_that_never_reads_takes_no_more_than_its_buffers(unhurried):
    """Its messages wait in the broker, and others are served."""
    google = unhurried
    topic, sub = google.pair()
    other = google.subscription(topic)
    for _ in range(40):
        google.publisher.publish(topic, b"x" * 1_000_000)
    google.publish(topic, "last")
    first = b"\n%c%s(\xd8\x04" % (len(sub), sub.encode())  # subscription, 600 s
    never_read = google.channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")(_then_wait(first))
    time.sleep(0.5)
    # What gRPC and the sockets hold is some megabytes; the rest did not go to the stream.
    assert len(google.pull_until(sub, 25)) >= 25
    assert len(google.pull_until(other, 41)) == 41
    never_read.cancel()


def _then_wait(first: bytes):
    yield first
    threading.Event().wait(5)


def test_a_temporary_folder_with_a_long_name_is_no_hindrance(tmp_path, monkeypatch):
    folder = tmp_path / ("long-" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with EmulatorInThread(project=PROJECT) as emulator:
        google = Google(emulator.address)
        assert google.topic()
        google.close()
    assert not list(folder.iterdir())
