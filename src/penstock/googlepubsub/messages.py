"""Google's messages as plain protobuf classes.

They come from a file made by `scripts/make_descriptors.py`, in a pool of their own: Google's client
may be loaded in the same process, and has its own.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)

PACKAGE = "google.pubsub.v1"


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for known in (duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    made = files("penstock.googlepubsub").joinpath("descriptors.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(made).file:
        pool.Add(file)
    return pool


POOL = _pool()


def message(name: str) -> Any:
    """The class of a message, by its full name or, in Google Pub/Sub's package, its short one."""
    full_name = name if "." in name else f"{PACKAGE}.{name}"
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(full_name))


Topic = message("Topic")
Subscription = message("Subscription")
Snapshot = message("Snapshot")
Schema = message("Schema")
PushConfig = message("PushConfig")
PublishRequest = message("PublishRequest")
PublishResponse = message("PublishResponse")
PullResponse = message("PullResponse")
StreamingPullRequest = message("StreamingPullRequest")
StreamingPullResponse = message("StreamingPullResponse")
Empty = message("google.protobuf.Empty")
FieldMask = message("google.protobuf.FieldMask")
