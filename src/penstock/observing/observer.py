"""Who is told what happens: one interface for clients, publishers, streams and apps.

Nobody is told unless asked for: then every hook is a test for None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from penstock.broker import SubscriptionStatus
from penstock.callbacks import survive
from penstock.message import Delivery, Draft, Message, PublishFault, Receipt, Settlement


class Window(Protocol):
    """How much a stream has in hand; see `StreamStatistics`."""

    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class Observer:
    """Override what you need. Whatever a method raises is logged and changes nothing.

    Methods are called on the event loop, on the way of messages: they must not wait.
    """

    watches = False
    """Whether `watched` is to be called from time to time, which asks the broker."""

    def sending(self, topic: str, attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Somebody publishes a message, in this context; returns the attributes to publish."""
        return attributes

    def published(
        self,
        topic: str,
        drafts: Sequence[Draft],
        answers: Sequence[Receipt | PublishFault] | BaseException,
        seconds: float,
    ) -> None:
        """The broker answered so many drafts, in one call; or the call failed."""

    def received(self, subscription: str, deliveries: Sequence[Delivery]) -> None:
        """The broker handed these over."""

    def settled(self, subscription: str, settlements: Sequence[Settlement], seconds: float) -> None:
        """The broker was told."""

    def handling(
        self, topic: str | None, subscription: str, messages: Sequence[Message]
    ) -> AbstractContextManager[object]:
        """A handler is called inside of it; `Retry`, `Reject` and errors come through."""
        return nullcontext()

    def dead_lettered(self, topic: str, subscription: str, reason: str) -> None:
        """An app gave a message up, and stored it in this topic."""

    def watched(self, subscription: str, status: SubscriptionStatus, window: Window | None) -> None:
        """How a subscription stands, from time to time."""


class Observers(Observer):
    """Tells several, each whatever the others do, and keeps what they raise from hurting."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self.watches = any(one.watches for one in observers)

    def sending(self, topic: str, attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
        for observer in self.observers:
            try:
                attributes = observer.sending(topic, attributes)
            except BaseException as error:
                survive(error, "sending of an observer")
        return attributes

    def published(
        self,
        topic: str,
        drafts: Sequence[Draft],
        answers: Sequence[Receipt | PublishFault] | BaseException,
        seconds: float,
    ) -> None:
        self._tell("published", topic, drafts, answers, seconds)

    def received(self, subscription: str, deliveries: Sequence[Delivery]) -> None:
        self._tell("received", subscription, deliveries)

    def settled(self, subscription: str, settlements: Sequence[Settlement], seconds: float) -> None:
        self._tell("settled", subscription, settlements, seconds)

    @contextmanager
    def handling(
        self, topic: str | None, subscription: str, messages: Sequence[Message]
    ) -> Iterator[None]:
        entered = []
        for observer in self.observers:
            try:
                around = observer.handling(topic, subscription, messages)
                around.__enter__()
                entered.append(around)
            except BaseException as error:
                survive(error, "handling of an observer")
        raised: BaseException | None = None
        try:
            yield
        except BaseException as error:
            raised = error
            raise
        finally:
            for around in reversed(entered):
                _leave(around, raised)

    def dead_lettered(self, topic: str, subscription: str, reason: str) -> None:
        self._tell("dead_lettered", topic, subscription, reason)

    def watched(self, subscription: str, status: SubscriptionStatus, window: Window | None) -> None:
        self._tell("watched", subscription, status, window)

    def _tell(self, what: str, *args: Any) -> None:
        for observer in self.observers:
            try:
                getattr(observer, what)(*args)
            except BaseException as error:
                survive(error, f"{what} of an observer")


def _leave(around: AbstractContextManager[object], raised: BaseException | None) -> None:
    """What a handler raised goes on, whatever an observer makes of it."""
    try:
        if raised is None:
            around.__exit__(None, None, None)
        else:
            around.__exit__(type(raised), raised, raised.__traceback__)
    except BaseException as error:
        if error is not raised:
            survive(error, "handling of an observer")
