"""What Google answered, as an error of ours."""

from __future__ import annotations

from typing import Any

from google.rpc import error_details_pb2, status_pb2

from penstock import errors
from penstock.errors import NotFoundError, PenstockError, PermissionDeniedError
from penstock.googlepubsub.calls import Rpc

_DETAILS = "grpc-status-details-bin"
_ACK_IDS = "EXACTLY_ONCE_ACKID_FAILURE"
# Codes without a class of ours, and the one that means the same to whoever has to act.
_ALSO = {1: errors.UnavailableError, 2: errors.InternalError, 10: errors.UnavailableError}
_CLASSES: dict[int, type[PenstockError]] = {
    kind.code: kind
    for kind in (
        errors.InvalidArgumentError,
        errors.DeadlineExceededError,
        errors.NotFoundError,
        errors.AlreadyExistsError,
        errors.PermissionDeniedError,
        errors.ResourceExhaustedError,
        errors.FailedPreconditionError,
        errors.UnimplementedError,
        errors.InternalError,
        errors.UnavailableError,
        errors.DataLossError,
        errors.UnauthenticatedError,
    )
} | _ALSO
_ROLES = {
    "Publish": "roles/pubsub.publisher",
    "Pull": "roles/pubsub.subscriber",
    "StreamingPull": "roles/pubsub.subscriber",
    "Acknowledge": "roles/pubsub.subscriber",
    "ModifyAckDeadline": "roles/pubsub.subscriber",
    "Seek": "roles/pubsub.subscriber",
}


def fault_of(error: Any, rpc: Rpc, resource: str) -> PenstockError:
    """The error of a call that was about `resource`."""
    code, said = error.code().value[0], error.details() or ""
    kind = _CLASSES.get(code, errors.InternalError)
    if kind is NotFoundError:
        return _not_found(resource, said)
    text = f"{rpc.name} of {resource}: {said}"
    if kind is PermissionDeniedError:
        text = f"{text} (needs {_role(rpc)} on {resource} or its project)"
    return kind(text)


def ack_id_failures(error: Any) -> dict[str, str]:
    """Why each ack id failed, where Google says so: with exactly-once delivery."""
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS:
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.reason == _ACK_IDS:
                return dict(info.metadata)
    return {}


def _role(rpc: Rpc) -> str:
    if rpc.name in _ROLES:
        return _ROLES[rpc.name]
    return "roles/pubsub.viewer" if rpc.name.startswith(("Get", "List")) else "roles/pubsub.editor"


def _not_found(resource: str, said: str) -> NotFoundError:
    *_, kind, name = ["", *resource.split("/")]
    # Google names what is missing, which need not be what the call was about; emulators do not.
    names_another = "resource=" in said or "project" in said.lower()
    if f"resource={name})" in said or not names_another:
        match kind:
            case "topics":
                return errors.TopicNotFoundError(name)
            case "subscriptions":
                return errors.SubscriptionNotFoundError(name)
            case "snapshots":
                return errors.SnapshotNotFoundError(name)
    return NotFoundError(f"{resource}: {said}")
