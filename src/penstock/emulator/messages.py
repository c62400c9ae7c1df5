"""Messages between Google's form and the broker's. The hot path: nothing here is done twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from penstock.clock import NS
from penstock.errors import InvalidArgumentError
from penstock.message import Delivery, Draft

MAX_MESSAGES = 1000
MAX_REQUEST_BYTES = 10_000_000
# One for all that have none: a dictionary each is a good part of a small message's memory.
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


def check_publish(request: Any) -> None:
    """The limits of one Publish call."""
    count = len(request.messages)
    if count > MAX_MESSAGES:
        raise InvalidArgumentError(_beyond("message_count", "large", count, MAX_MESSAGES))
    if count == 0:
        raise InvalidArgumentError(_beyond("message_count", "small", count, 1))
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise InvalidArgumentError(_beyond("request_size", "large", size, MAX_REQUEST_BYTES))


def drafts_of(
    messages: Sequence[Any], added: Sequence[Mapping[str, str]] | None = None
) -> list[Draft]:
    """Drafts the broker may be given; `added` are more attributes for each of them."""
    drafts: list[Draft] = []
    append, make = drafts.append, Draft.of
    try:
        for message in messages:
            attributes = message.attributes
            data = message.data
            if attributes or message.ordering_key:
                draft = make(data, dict(attributes), message.ordering_key)
            else:
                draft = Draft(data, _NO_ATTRIBUTES)
            if not data and not attributes:
                raise InvalidArgumentError(
                    "a message must contain either non-empty data or at least one attribute"
                )
            if added is not None:
                attributes = {**draft.attributes, **added[len(drafts)]}
                draft = Draft(data, attributes, draft.ordering_key)
            append(draft)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"messages[{len(drafts)}]: {error}") from None
    return drafts


def write_received(
    received: Any, deliveries: Sequence[Delivery], tag: str, *, with_attempts: bool
) -> None:
    """Append deliveries to a repeated field of received messages; `tag` begins their ack ids."""
    add = received.add
    for delivery in deliveries:
        record = delivery.record
        item = add()
        item.ack_id = tag + delivery.ack_id
        if with_attempts:
            item.delivery_attempt = delivery.delivery_attempt
        write_message(item.message, record)


def write_message(message: Any, record: Any) -> None:
    message.data = record.data
    message.message_id = record.message_id
    published = message.publish_time
    published.seconds, published.nanos = divmod(record.publish_time_ns, NS)
    if record.ordering_key is not None:
        message.ordering_key = record.ordering_key
    if record.attributes:
        message.attributes.update(record.attributes)


def _beyond(what: str, how: str, found: int, bound: int) -> str:
    end = "maximum" if how == "large" else "minimum"
    return (
        f"The value for {what} is too {how}. You passed {found} in the request, but the {end} "
        f"value is {bound}."
    )
