"""A message as the request that carries it to an endpoint. Pure."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from penstock.clock import NS, PreciseTime
from penstock.message import Delivery, Record

# Codes that ack; every other one brings the message back.
ACKING = frozenset({102, 200, 201, 202, 204})


def request_of(
    subscription: str, push_config: Any, delivery: Delivery, *, with_attempt: bool
) -> tuple[bytes, dict[bytes, bytes]]:
    """Body and headers. Wrapped in JSON unless the subscription asks for the data as it is."""
    if not push_config.HasField("no_wrapper"):
        wrapped = _wrapped(subscription, delivery, with_attempt=with_attempt)
        return wrapped, {b"content-type": b"application/json"}
    headers: dict[bytes, bytes] = {}
    if push_config.no_wrapper.write_metadata:
        headers = _metadata(subscription, delivery.record)
    return delivery.record.data, headers


def _wrapped(subscription: str, delivery: Delivery, *, with_attempt: bool) -> bytes:
    record = delivery.record
    published = _rfc3339(record.publish_time_ns)
    # Both spellings of two fields, as Google sends them.
    message: dict[str, Any] = {
        "messageId": record.message_id,
        "message_id": record.message_id,
        "publishTime": published,
        "publish_time": published,
    }
    if record.data:
        message["data"] = base64.b64encode(record.data).decode()
    if record.attributes:
        message["attributes"] = dict(record.attributes)
    if record.ordering_key is not None:
        message["orderingKey"] = record.ordering_key
    body: dict[str, Any] = {"message": message, "subscription": subscription}
    if with_attempt:
        body["deliveryAttempt"] = delivery.delivery_attempt
    return msgspec.json.encode(body)


def _metadata(subscription: str, record: Record) -> dict[bytes, bytes]:
    """What would be in the wrapper, as headers; attributes under their own names."""
    found = {
        "x-goog-pubsub-subscription-name": subscription,
        "x-goog-pubsub-message-id": record.message_id,
        "x-goog-pubsub-publish-time": _rfc3339(record.publish_time_ns),
    }
    if record.ordering_key is not None:
        found["x-goog-pubsub-ordering-key"] = record.ordering_key
    found.update(record.attributes)
    return {
        name.encode(): value.encode() for name, value in found.items() if _is_header(name, value)
    }


def _is_header(name: str, value: str) -> bool:
    """What would break the request, or pretend to be one of its own headers, stays out."""
    own = name.lower() in ("host", "content-length", "transfer-encoding", "connection")
    token = name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    return token and not own and value.isprintable()


def _rfc3339(ns: int) -> str:
    text = PreciseTime.from_ns(ns).isoformat(timespec="nanoseconds").replace("+00:00", "Z")
    return text if ns % NS else f"{text[:19]}Z"
