"""What handlers return, as messages of other topics, under ids that a redelivery derives again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from msgspec.structs import replace

from penstock.consuming.bodies import CONTENT_TYPE, JSON, encode
from penstock.consuming.declaration import Publication, Subscriber
from penstock.message import Draft, Message
from penstock.outcomes import Reject, Retry
from penstock.rules.derived_ids import derived_id

SendAll = Callable[[Sequence[tuple[str, Draft]]], Awaitable[None]]


class Results:
    """Publishes what the handler of one subscriber returned."""

    def __init__(self, subscriber: Subscriber, send: SendAll) -> None:
        self._publications = subscriber.publications
        self._subscription = subscriber.subscription
        self._send = send

    async def publish(self, message: Message, result: Any) -> None:
        """Returns when all of it is stored; raises when some of it may not be."""
        drafts = self.drafts(message, result)
        if drafts:
            await self._send(drafts)

    async def publish_each(self, done: Sequence[tuple[Message, Any]]) -> None:
        """What a batch handler returned, one result a message."""
        drafts = [one for message, result in done for one in self.drafts(message, result)]
        if drafts:
            await self._send(drafts)

    def drafts(self, message: Message, result: Any) -> list[tuple[str, Draft]]:
        if result is None:
            return []
        values = result if isinstance(result, list) else [result]
        for value in values:
            if isinstance(value, Retry | Reject):
                raise value
        return [
            (publication.topic, self._draft(message, value, publication, f"{place}-{at}"))
            for place, publication in enumerate(self._publications)
            for at, value in enumerate(values)
        ]

    def _draft(self, message: Message, value: Any, publication: Publication, place: str) -> Draft:
        # With the time of publication: an id that a publisher used again is another message.
        published_ns = message._delivery.record.publish_time_ns
        message_id = derived_id(message.id, self._subscription, place, published_ns)
        if isinstance(value, Draft):
            return replace(
                value,
                ordering_key=value.ordering_key or message.ordering_key,
                message_id=value.message_id or message_id,
            )
        return draft_of(
            value,
            content_type=publication.content_type,
            ordering_key=message.ordering_key,
            message_id=message_id,
        )


def draft_of(
    body: Any,
    attributes: Mapping[str, str] | None = None,
    *,
    content_type: str = JSON,
    ordering_key: str | None = None,
    message_id: str | None = None,
) -> Draft:
    """A typed body as a draft. JSON is what everybody expects, so only the rest is labelled."""
    if content_type != JSON:
        attributes = {**(attributes or {}), CONTENT_TYPE: content_type}
    # Checked where it is published.
    return Draft(encode(body, content_type), attributes or {}, ordering_key, message_id)


def published_kind(returns: Any) -> Any:
    """The kind of one message, out of what a handler says it returns; NoneType: none at all."""
    if get_origin(returns) is list:
        return published_kind(get_args(returns)[0])
    if get_origin(returns) in (Union, UnionType):
        kinds = [one for one in get_args(returns) if one not in (type(None), Retry, Reject)]
        if not kinds:
            return type(None)
        return published_kind(kinds[0]) if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007
    return bytes if returns in (None, Any) else returns
