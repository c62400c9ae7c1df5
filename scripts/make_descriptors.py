"""Writes src/penstock/googlepubsub/descriptors.binpb: Google Pub/Sub's messages, as the installed
google-cloud-pubsub knows them.

Importing that package takes over a second and tens of megabytes, most of it for clients that a
server has no use for. What it says about messages is 30 kB.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pb2
from google.pubsub_v1.types import pubsub, schema

TARGET = Path(__file__).resolve().parent.parent / "src/penstock/googlepubsub/descriptors.binpb"
# The client's files are named after its modules; everybody else knows them by these names.
NAMES = {
    "google/pubsub_v1/types/pubsub.proto": "google/pubsub/v1/pubsub.proto",
    "google/pubsub_v1/types/schema.proto": "google/pubsub/v1/schema.proto",
}


def rename_fields(message: descriptor_pb2.DescriptorProto) -> None:
    """A field that Python has another use for is `type_` to the client, and `type` to the rest."""
    for field in message.field:
        if field.name.endswith("_"):
            field.name = field.json_name = field.name.rstrip("_")
    for nested in message.nested_type:
        rename_fields(nested)


def descriptors() -> bytes:
    files = []
    for first in (schema.Schema, pubsub.Topic):
        file = descriptor_pb2.FileDescriptorProto()
        first.pb().DESCRIPTOR.file.CopyToProto(file)
        file.name = NAMES[file.name]
        file.dependency[:] = [NAMES.get(name, name) for name in file.dependency]
        for message in file.message_type:
            rename_fields(message)
        files.append(file)
    made: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString(deterministic=True)
    return made


if __name__ == "__main__":
    TARGET.write_bytes(descriptors())
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")
