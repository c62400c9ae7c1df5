"""What tools ask of any gRPC server: whether it is well, and what it speaks."""

from __future__ import annotations

from typing import Any

import grpc
from google.iam.v1 import iam_policy_pb2
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from penstock.googlepubsub.calls import IAM, PUBLISHER, RPCS, SCHEMAS, SUBSCRIBER, Travel
from penstock.googlepubsub.messages import POOL

_SERVICES = (PUBLISHER, SUBSCRIBER, SCHEMAS, IAM)
_FILES = {
    PUBLISHER: "google/pubsub/v1/pubsub.proto",
    SUBSCRIBER: "google/pubsub/v1/pubsub.proto",
    SCHEMAS: "google/pubsub/v1/schema.proto",
}
# The same words under two names: newer tools ask for the second.
_REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


async def add_health(server: Any) -> Any:
    """Every service is serving from now on. Returns what can say otherwise."""
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for service in ("", *_SERVICES):
        await servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    return servicer


def add_reflection(server: Any) -> None:
    names = (*_SERVICES, health.SERVICE_NAME, *_REFLECTION)
    servicer = reflection.aio.ReflectionServicer(names, pool=_pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            for name in _REFLECTION
        )
    )


def _pool() -> descriptor_pool.DescriptorPool:
    """The messages, and the services that our table makes of them."""
    pool = descriptor_pool.DescriptorPool()
    for descriptor in (
        POOL.FindFileByName("google/protobuf/empty.proto"),
        *(POOL.FindFileByName(name) for name in dict.fromkeys(_FILES.values())),
        iam_policy_pb2.DESCRIPTOR,
        health_pb2.DESCRIPTOR,
        reflection_pb2.DESCRIPTOR,
    ):
        _add(pool, descriptor)
    return pool


def _add(pool: descriptor_pool.DescriptorPool, descriptor: Any) -> None:
    for needed in descriptor.dependencies:
        _add(pool, needed)
    try:
        pool.FindFileByName(descriptor.name)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(file)
        _add_services(file)
        pool.Add(file)


def _add_services(file: descriptor_pb2.FileDescriptorProto) -> None:
    for service, name in _FILES.items():
        if name != file.name:
            continue
        made = file.service.add(name=service.rpartition(".")[2])
        for rpc in RPCS:
            if rpc.service != service:
                continue
            made.method.add(
                name=rpc.name,
                input_type=f".{rpc.request.DESCRIPTOR.full_name}",
                output_type=f".{rpc.response.DESCRIPTOR.full_name}",
                client_streaming=rpc.travel is Travel.STREAM,
                server_streaming=rpc.travel is Travel.STREAM,
            )
            needed = rpc.response.DESCRIPTOR.file.name
            if needed != file.name and needed not in file.dependency:
                file.dependency.append(needed)
