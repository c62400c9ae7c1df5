"""What went wrong, as Google says it: a code, a text, and details that clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from penstock.errors import (
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

DETAILS = "grpc-status-details-bin"
_DOMAIN = "pubsub.googleapis.com"
_INVALID_ACK_IDS = (
    "Some acknowledgement ids in the request were invalid. This could be because the "
    "acknowledgement ids have expired or the acknowledgement ids were malformed."
)


class AckIdsRefusedError(InvalidArgumentError):
    """Some ack ids of a call failed. `failures` says which and why, where delivery is exactly
    once: clients take the absence of details for success."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        self.failures = failures
        super().__init__(f"{_INVALID_ACK_IDS} (field ack_ids)")


class ResourceNotFoundError(NotFoundError):
    def __init__(self, name: str) -> None:
        super().__init__(f"Resource not found (resource={name}).")


def already_exists(name: str) -> str:
    return f"Resource already exists in the project (resource={name})."


def text_of(error: PenstockError) -> str:
    match error:
        case TopicNotFoundError():
            return f"Resource not found (resource={_within(error.topic)})."
        case SubscriptionNotFoundError():
            return f"Resource not found (resource={_within(error.subscription)})."
        case SnapshotNotFoundError():
            return f"Resource not found (resource={_within(error.snapshot)})."
    return str(error)


def info_of(error: PenstockError) -> Any:
    """A `google.rpc.ErrorInfo`, when there is more to say than a text; else None."""
    if not isinstance(error, AckIdsRefusedError) or not error.failures:
        return None
    return error_details_pb2.ErrorInfo(
        reason="EXACTLY_ONCE_ACKID_FAILURE", domain=_DOMAIN, metadata=error.failures
    )


def details_of(error: PenstockError) -> bytes | None:
    """The same, as a serialized `google.rpc.Status`."""
    info = info_of(error)
    if info is None:
        return None
    status: Any = status_pb2.Status(code=error.code, message=text_of(error))
    detail = any_pb2.Any()
    detail.Pack(info)
    status.details.append(detail)
    encoded: bytes = status.SerializeToString()
    return encoded


def _within(name: str) -> str:
    return name.rpartition("/")[2]
