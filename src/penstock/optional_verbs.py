"""Verbs that a broker may have beside those of `Broker`, and calling those that it has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from penstock.broker import Broker
from penstock.message import Delivery, Draft, PublishFault, Receipt

Take: TypeAlias = Callable[[Sequence[Delivery]], None]
"""Called with what a pull brings, or with a part of it."""


class HandsOver(Protocol):
    """What a broker may be beside: one that hands over what comes as soon as that has come, where
    a caller that waits goes on a turn of the event loop later."""

    async def pull_to(
        self, take: Take, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        """As `Broker.pull`, but that `take` may be called before, with one part after the other of
        what comes; returned is what follows them, if anything does. What was taken stays so,
        however this ends. `take` does not wait for anything, and what it raises is raised here.
        """
        ...


def pull_to(
    broker: Broker,
    take: Take,
    subscription: str,
    *,
    max_messages: int,
    max_bytes: int,
    wait: float,
) -> Awaitable[Sequence[Delivery]]:
    """The broker's own, if it `HandsOver`, else its `pull`, which hands over nothing."""
    own: Callable[..., Awaitable[Sequence[Delivery]]] | None = getattr(broker, "pull_to", None)
    if own is None:
        return broker.pull(subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait)
    return own(take, subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait)


class Leaves(Protocol):
    """What a broker may be beside: one that is sent messages before somebody pulls them."""

    async def leave(self, subscription: str) -> None:
        """Nobody pulls a subscription here any more, until somebody does again: what was sent ahead
        is given back, and nothing comes, nor what is given back from now on. Says nothing where
        the server cannot be told."""
        ...


async def leave(broker: Broker, subscription: str) -> None:
    """The broker's own, if it `Leaves`; of others nothing comes to who does not pull."""
    own: Callable[[str], Awaitable[None]] | None = getattr(broker, "leave", None)
    if own is not None:
        await own(subscription)


OnSent: TypeAlias = Callable[[Sequence[int]], None]
"""Called with the places of drafts that have left; again if they are sent again."""
_Answers: TypeAlias = Awaitable[Sequence[Receipt | PublishFault]]


class TellsSent(Protocol):
    """What a broker may be beside: one that tells when drafts leave, where a caller that waits
    knows only that they were handed over."""

    async def publish_telling(
        self, on_sent: OnSent, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        """As `Broker.publish`, but that `on_sent` is called when drafts are sent to where they are
        stored, before they are answered. It does not wait for anything. What raises without having
        called it has sent nothing, and will not.
        """
        ...


def publish_telling(
    broker: Broker, on_sent: OnSent, topic: str, drafts: Sequence[Draft]
) -> _Answers:
    """The broker's own, if it `TellsSent`, else its `publish`: they have left when it is called."""
    own: Callable[..., _Answers] | None = getattr(broker, "publish_telling", None)
    if own is None:
        on_sent(range(len(drafts)))
        return broker.publish(topic, drafts)
    return own(on_sent, topic, drafts)
