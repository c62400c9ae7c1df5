"""Everything Penstock raises.

    PenstockError                     .code (gRPC number), .retryable
    ├── InvalidArgumentError      3   the caller must change something
    │   └── FilterError               a filter that does not parse, with its column
    ├── DeadlineExceededError     4   retryable
    ├── NotFoundError             5
    │   ├── TopicNotFoundError
    │   ├── SubscriptionNotFoundError
    │   └── SnapshotNotFoundError
    ├── AlreadyExistsError        6
    ├── PermissionDeniedError     7
    ├── ResourceExhaustedError    8   retryable
    │   └── FlowControlError          a broker handed over more than was asked for
    ├── FailedPreconditionError   9
    │   └── ClosedError               the client, stream or subscription is closed
    ├── UnimplementedError       12   this broker cannot do that; see its capabilities
    ├── InternalError            13   retryable
    ├── UnavailableError         14   retryable
    ├── DataLossError            15   messages that were asked for are gone
    └── UnauthenticatedError     16

Catch wide, recover narrow: `except PenstockError` is always safe, and `error.retryable` says
whether the same call may succeed later. Messages name the topic, subscription or value they are
about and what to do next; they never contain payloads.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Base of the tree. `code` is the gRPC status number of the same meaning."""

    code: ClassVar[int] = 2
    retryable: ClassVar[bool] = False


class InvalidArgumentError(PenstockError, ValueError):
    code = 3


class FilterError(InvalidArgumentError):
    """A filter that does not parse. `column` counts from 1."""

    def __init__(self, reason: str, text: str, column: int) -> None:
        self.reason = reason
        self.text = text
        self.column = column
        # In one line, so that the pointer is under its place, and of what can be printed.
        shown = "".join(" " if char.isspace() else char for char in text)
        shown = shown.encode(errors="replace").decode()
        pointer = " " * (column - 1) + "^"
        super().__init__(
            f"Filter does not parse at column {column}: {reason}\n  {shown}\n  {pointer}"
        )


class DeadlineExceededError(PenstockError, TimeoutError):
    code = 4
    retryable = True


class NotFoundError(PenstockError, LookupError):
    code = 5


class TopicNotFoundError(NotFoundError):
    def __init__(self, topic: str, hint: str = "create it with `await topic.create()`") -> None:
        self.topic = topic
        super().__init__(f"Topic not found: {topic!r}; {hint}")


class SubscriptionNotFoundError(NotFoundError):
    def __init__(
        self, subscription: str, hint: str = "create it with `await subscription.create()`"
    ) -> None:
        self.subscription = subscription
        super().__init__(f"Subscription not found: {subscription!r}; {hint}")


class SnapshotNotFoundError(NotFoundError):
    def __init__(self, snapshot: str) -> None:
        self.snapshot = snapshot
        super().__init__(f"Snapshot not found: {snapshot!r}; it was never made, or it has expired")


class AlreadyExistsError(PenstockError):
    code = 6


class PermissionDeniedError(PenstockError):
    code = 7


class ResourceExhaustedError(PenstockError):
    code = 8
    retryable = True


class FlowControlError(ResourceExhaustedError):
    """A broker handed over more messages than the window had room for."""


class FailedPreconditionError(PenstockError):
    code = 9


class ClosedError(FailedPreconditionError):
    """Using a client, stream or subscription that is closed."""


class UnimplementedError(PenstockError, NotImplementedError):
    code = 12


class InternalError(PenstockError):
    code = 13
    retryable = True


class UnavailableError(PenstockError, ConnectionError):
    code = 14
    retryable = True


class DataLossError(PenstockError):
    """Messages that were to be read are gone: expired, purged or deleted."""

    code = 15


class UnauthenticatedError(PenstockError):
    code = 16


__all__ = [
    "AlreadyExistsError",
    "ClosedError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "FilterError",
    "FlowControlError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "PenstockError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "SnapshotNotFoundError",
    "SubscriptionNotFoundError",
    "TopicNotFoundError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]
