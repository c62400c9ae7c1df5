"""A received message, with its verbs: what a handler sees."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import NoReturn, Protocol, Self, runtime_checkable

from penstock.clock import NS, Clock, PreciseTime, to_ns
from penstock.errors import InvalidArgumentError
from penstock.message.checks import MAX_ACK_DEADLINE, as_bytes, check_ack_deadline
from penstock.message.values import AckResponse, Delivery, Record, Verb

# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_ACK, _NACK = Verb.ACK, Verb.NACK


@runtime_checkable
class Owner(Protocol):
    """Who answers for a message's verbs: its subscription, or what of it delivered the message."""

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None: ...

    def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> Awaitable[AckResponse]: ...

    def modify_ack_deadline(self, message: Message, seconds: float) -> None: ...


class Attributes(dict[str, str]):
    """The attributes of a message: a dict in everything but that it cannot be changed."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "The attributes of a message cannot be changed; copy them first: "
            "dict(message.attributes)"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Attributes], tuple[dict[str, str]]]:
        return Attributes, (dict(self),)


class Message:
    """A received message. Its content never changes; the first settlement wins.

    The verbs return at once and are sent in batches; `*_with_response` waits for the broker's
    answer. `async with message:` acks when the block succeeds and nacks when it raises.
    Call the verbs from the event loop's own thread, or in a handler that runs in a thread.

    Streams make messages. One that is made by hand is settled through its `subscription`, which
    must be open; for tests of handlers see `penstock.testing.make_message`.
    """

    __slots__ = ("_delivery", "_owner", "_received", "_settled")

    _delivery: Delivery
    _owner: Owner
    _received: float
    _settled: bool

    def __init__(
        self,
        id: str,
        ack_id: str,
        data: bytes,
        attributes: Mapping[str, str],
        publish_time: datetime,
        subscription: Owner,
        ordering_key: str | None = None,
        *,
        delivery_attempt: int = 1,
        subject: str = "",
    ) -> None:
        if not isinstance(publish_time, datetime) or publish_time.tzinfo is None:
            raise InvalidArgumentError(
                f"publish_time must be an aware datetime (with a time zone), not {publish_time!r}"
            )
        for name, value, kind in (
            ("id", id, str),
            ("ack_id", ack_id, str),
            ("attributes", attributes, Mapping),
            ("subscription", subscription, Owner),
            ("ordering_key", ordering_key, str | None),
            ("delivery_attempt", delivery_attempt, int),
            ("subject", subject, str),
        ):
            if not isinstance(value, kind):
                raise InvalidArgumentError(
                    f"{name} of a message cannot be a {type(value).__name__}"
                )
        if not all(isinstance(part, str) for pair in attributes.items() for part in pair):
            raise InvalidArgumentError("The attributes of a message are text, their keys too")
        record = Record(
            sequence=0,
            message_id=id,
            data=as_bytes(data),
            attributes=dict(attributes),
            ordering_key=ordering_key,
            subject=subject,
            publish_time_ns=to_ns(publish_time),
        )
        self._delivery = Delivery(record, ack_id, delivery_attempt, MAX_ACK_DEADLINE)
        self._owner = subscription
        self._received = Clock().time_ns() / NS
        self._settled = False

    @staticmethod
    def of(deliveries: Sequence[Delivery], owner: Owner, received: float) -> list[Message]:
        """The messages of deliveries: what a stream makes, past `__init__` and its checks."""
        messages = []
        new = Message.__new__
        for delivery in deliveries:
            message = new(Message)
            message._delivery = delivery
            message._owner = owner
            message._received = received
            message._settled = False
            messages.append(message)
        return messages

    @property
    def id(self) -> str:
        return self._delivery.record.message_id

    @property
    def ack_id(self) -> str:
        """Names this delivery; a redelivery has another."""
        return self._delivery.ack_id

    @property
    def data(self) -> bytes:
        return self._delivery.record.data

    @property
    def attributes(self) -> Attributes:
        """A read-only dict."""
        return Attributes(self._delivery.record.attributes)

    @property
    def publish_time(self) -> PreciseTime:
        """When the broker stored it, to the nanosecond."""
        return PreciseTime.from_ns(self._delivery.record.publish_time_ns)

    @property
    def received(self) -> float:
        """When this client received it, in seconds since the epoch."""
        return self._received

    @property
    def ordering_key(self) -> str | None:
        return self._delivery.record.ordering_key

    @property
    def subject(self) -> str:
        return self._delivery.record.subject

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery, one more after each nack or missed deadline; 0 where the broker
        does not count."""
        return self._delivery.delivery_attempt

    @property
    def length(self) -> int:
        """Bytes of `data`."""
        return len(self._delivery.record.data)

    def __len__(self) -> int:
        return len(self._delivery.record.data)

    def __bool__(self) -> bool:
        return True

    def ack(self) -> None:
        """Done: it will not come again. No effect once settled."""
        if not self._settled:
            self._owner.settle(self, _ACK, None)
            self._settled = True

    def nack(self, delay: float | None = None) -> None:
        """Bring it back, at once or as the retry policy says, or after `delay` seconds."""
        if delay is not None:
            delay = check_ack_deadline(delay)
        if not self._settled:
            self._owner.settle(self, _NACK, delay)
            self._settled = True

    def reject(self) -> None:
        """Never again: to the dead letters if the subscription has any, else dropped."""
        if not self._settled:
            self._owner.settle(self, Verb.REJECT, None)
            self._settled = True

    def modify_ack_deadline(self, seconds: float) -> None:
        """Ours for `seconds` (0 to 600) from now; 0 is a nack. No effect once settled."""
        seconds = check_ack_deadline(seconds)
        if seconds == 0:
            self.nack()
        elif not self._settled:
            self._owner.modify_ack_deadline(self, seconds)

    async def ack_with_response(self) -> AckResponse:
        """Ack and wait for the outcome.

        With exactly-once delivery, SUCCESS means it will never come again and INVALID that this
        delivery was settled before or is no longer ours. Without it the answer is SUCCESS. Once the
        subscription is closed it is FAILED_PRECONDITION. SUCCESS alone is true.
        """
        return await self._settle_with_response(_ACK)

    async def nack_with_response(self) -> AckResponse:
        """Nack and wait for the outcome; the codes are those of `ack_with_response`."""
        return await self._settle_with_response(_NACK)

    def _settle_with_response(self, verb: Verb) -> Awaitable[AckResponse]:
        first, self._settled = not self._settled, True
        return self._owner.settle_with_response(self, verb, first=first)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()

    def __repr__(self) -> str:
        return (
            f"<Message {self.id!r}, {self.length} bytes, attempt {self.delivery_attempt}"
            f"{', settled' if self._settled else ''}>"
        )
