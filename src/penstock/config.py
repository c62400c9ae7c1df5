"""What is asked of a broker: topics, subscriptions, policies. Checked where they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from types import UnionType
from typing import ClassVar, Self

from penstock.errors import InvalidArgumentError
from penstock.message import check_ack_deadline

DAY = 86_400.0
LONGEST = 3650 * DAY
"""Nobody waits longer for anything."""
DUPLICATE_WINDOW = 120.0
"""Seconds a message id is remembered, unless somebody asks for another window."""
_NAME = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.:_\-]{0,62}/)?(?!goog)[A-Za-z][A-Za-z0-9\-._~+%]{2,254}"
)
# What no broker could send anywhere is nobody's name.
_ANY_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")

_WORD = r"[^\s.*>\x00-\x1f\x7f]+"
_PATTERN = re.compile(rf"(?:(?:{_WORD}|\*)\.)*(?:{_WORD}|\*|>)")


class ServerName(str):
    """The name of something that a broker has already, made by others: taken as it is, whatever
    Google would say of it. Only its own broker knows whether it is there."""


class SubscriptionName(str):
    """The name of a subscription, and the topic in which to look for it. Brokers with subscriptions
    of one name in several topics read both; to the others it is text like any other."""

    name: str
    topic: str

    def __new__(cls, name: str, topic: str) -> Self:
        made = super().__new__(cls, name)
        made.name, made.topic = name, topic
        return made

    def __reduce__(self) -> tuple[type[SubscriptionName], tuple[str, str]]:
        return SubscriptionName, (self.name, self.topic)


def is_name(name: str) -> bool:
    """Google Pub/Sub would take it."""
    return _NAME.fullmatch(name) is not None


def check_name(kind: str, name: object) -> str:
    """`name` if Google Pub/Sub would take it for a `kind`, or if it is a `ServerName`; else
    `InvalidArgumentError`.

    What belongs to another project than the broker's own is written `project/name`.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{kind} name must be text, not {type(name).__name__}")
    if isinstance(name, ServerName) and _ANY_NAME.fullmatch(name):
        return name
    if not is_name(name):
        raise InvalidArgumentError(
            f"{kind} name {name!r} is not allowed: 3 to 255 characters, a letter first, then "
            "letters, digits or any of - . _ ~ + %, and not starting with 'goog'; "
            "project/name for what is in another project"
        )
    return name


def split_name(name: str, own_project: str) -> tuple[str, str]:
    """The project a checked name belongs to, and what it is called there."""
    project, _, within = name.rpartition("/")
    return project or own_project, within


def check_patterns(what: str, patterns: object) -> None:
    """Subjects with wildcards, as NATS reads them, or `InvalidArgumentError`."""
    if not isinstance(patterns, tuple):
        raise InvalidArgumentError(f"{what} must be a tuple of subjects, not {patterns!r}")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise InvalidArgumentError(
                f"{what} cannot have {pattern!r}: a subject is tokens joined by dots, without "
                "spaces, with * for one token and > for all that follow"
            )


def check_zone(what: str, moment: datetime | None) -> None:
    """A moment without a time zone could be any hour."""
    if moment is not None and moment.tzinfo is None:
        raise InvalidArgumentError(f"{what} must have a time zone: {moment!r} has none")


def check_duration(what: str, seconds: float, least: float, most: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(f"{what} must be seconds, not {type(seconds).__name__}")
    if not least <= seconds <= most:
        raise InvalidArgumentError(
            f"{what} must be between {least:.12g} and {most:.12g} seconds, not {seconds!r}"
        )


def check_whole(what: str, number: object, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InvalidArgumentError(
            f"{what} must be a whole number of at least {least}, not {number!r}"
        )


def check_kind(what: str, value: object, kind: type | UnionType, meant: str) -> None:
    """`meant`: what it must be, in words."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{what} must be {meant}, not {value!r}")


def check_callable(what: str, value: object, meant: str) -> None:
    if not callable(value):
        raise InvalidArgumentError(f"{what} must be {meant}, not {value!r}")


def check_replicas(number: object) -> None:
    if number is not None:
        check_whole("replicas", number, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterPolicy:
    """Where a message goes that failed `max_delivery_attempts` times (1 to 100)."""

    topic: str
    max_delivery_attempts: int = 5

    def __post_init__(self) -> None:
        check_name("Dead-letter topic", self.topic)
        check_whole("max_delivery_attempts", self.max_delivery_attempts, 1)
        if self.max_delivery_attempts > 100:
            raise InvalidArgumentError(
                "max_delivery_attempts must be a whole number from 1 to 100, "
                f"not {self.max_delivery_attempts!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long a nacked or expired message waits before it comes back.

    `minimum_backoff` seconds after the first failure, doubled with each further one, never more
    than `maximum_backoff`. Both from 0 to 600.
    """

    minimum_backoff: float = 10.0
    maximum_backoff: float = 600.0

    def __post_init__(self) -> None:
        check_duration("minimum_backoff", self.minimum_backoff, 0, 600)
        check_duration("maximum_backoff", self.maximum_backoff, self.minimum_backoff, 600)

    def delay(self, failures: int) -> float:
        """Seconds to wait after the given number of failures (1 for the first)."""
        doubled: float = self.minimum_backoff * 2.0 ** min(failures - 1, 64)
        return min(self.maximum_backoff, doubled)


@dataclass(frozen=True, kw_only=True, slots=True)
class PushDelivery:
    """Let the broker send messages to `subject` instead of waiting to be asked; subscribers with
    the same `group` share them. For brokers whose capabilities include `push`."""

    subject: str
    group: str = ""

    def __post_init__(self) -> None:
        for name, value in (("subject", self.subject), ("group", self.group)):
            if not isinstance(value, str) or not re.fullmatch(r"[^\s*>]*", value):
                raise InvalidArgumentError(f"{name} of a push delivery cannot be {value!r}")
        if not self.subject:
            raise InvalidArgumentError("A push delivery needs a subject")


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    """`message_retention`: seconds the topic's log keeps every message, acked or not (0: only
    while a subscription needs it). `duplicate_window`: seconds a message id is remembered.
    `routed_attributes`: attributes that become part of each message's subject, in this order, so
    that brokers which filter by subject can filter by them. `replicas`: copies that the broker's
    servers keep (None: as many as are of use, see the broker's own page). `subjects`: those it
    stores, * and > allowed, instead of its own name and all below it. `work_queue`: a message
    stays until it is acked and is gone then; each goes to one subscription, and a new one begins
    with what is there."""

    name: str
    message_retention: float = 0.0
    duplicate_window: float = DUPLICATE_WINDOW
    routed_attributes: tuple[str, ...] = ()
    replicas: int | None = None
    subjects: tuple[str, ...] = ()
    work_queue: bool = False

    KEPT: ClassVar = ("routed_attributes", "work_queue")
    """What a topic is made with and keeps."""

    def __post_init__(self) -> None:
        check_name("Topic", self.name)
        check_duration("message_retention", self.message_retention, 0, 31 * DAY)
        check_duration("duplicate_window", self.duplicate_window, 0, DAY)
        check_replicas(self.replicas)
        check_kind(f"work_queue of topic {self.name!r}", self.work_queue, bool, "True or False")
        if not isinstance(self.routed_attributes, tuple) or not all(
            isinstance(key, str) and key for key in self.routed_attributes
        ):
            raise InvalidArgumentError(
                f"routed_attributes of topic {self.name!r} must be a tuple of attribute keys, not "
                f"{self.routed_attributes!r}"
            )
        check_patterns(f"subjects of topic {self.name!r}", self.subjects)
        if self.subjects and self.routed_attributes:
            raise InvalidArgumentError(
                f"Topic {self.name!r} cannot have both subjects and routed_attributes"
            )

    def check_change(self, to: TopicConfig) -> None:
        for option in self.KEPT:
            if getattr(self, option) != getattr(to, option):
                raise InvalidArgumentError(
                    f"{option} of topic {self.name!r} cannot be changed; create another"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionConfig:
    """What the broker knows of a subscription.

    `message_retention`: seconds an unacked message is kept at least (default 7 days), and an acked
    one too when `retain_acked_messages` is set, for `seek`. `expires_after`: seconds without a
    subscriber after which the broker deletes it (None: never). `replicas`: copies of what it knows
    of its messages (None: as many as its topic has). `subjects`: only messages on one of these,
    * and > allowed.
    """

    name: str
    topic: str
    ack_deadline: float = 60.0
    message_ordering: bool = False
    enable_exactly_once_delivery: bool = False
    filter: str = ""
    dead_letter_policy: DeadLetterPolicy | None = None
    retry_policy: RetryPolicy | None = None
    retain_acked_messages: bool = False
    message_retention: float = 7 * DAY
    expires_after: float | None = None
    push: PushDelivery | None = None
    replicas: int | None = None
    subjects: tuple[str, ...] = ()

    KEPT: ClassVar = ("topic", "message_ordering", "push", "subjects")
    """What a subscription is made with and keeps; see `check_change` for its filter."""

    @property
    def address(self) -> SubscriptionName:
        """Which subscription it is, for brokers that may have several of its name."""
        return SubscriptionName(self.name, self.topic)

    def __post_init__(self) -> None:
        check_name("Subscription", self.name)
        check_name("Topic", self.topic)
        if check_ack_deadline(self.ack_deadline) == 0:
            raise InvalidArgumentError(
                "Ack deadline must be between 0 and 600 seconds, and above 0 for a subscription "
                f"({self.name!r})"
            )
        check_duration("message_retention", self.message_retention, 0.001, 31 * DAY)
        check_replicas(self.replicas)
        if self.expires_after is not None:
            check_duration("expires_after", self.expires_after, 1, 3650 * DAY)
        check_patterns(f"subjects of subscription {self.name!r}", self.subjects)
        for option, kind in (
            ("filter", str),
            ("dead_letter_policy", DeadLetterPolicy | None),
            ("retry_policy", RetryPolicy | None),
            ("push", PushDelivery | None),
            ("message_ordering", bool),
            ("enable_exactly_once_delivery", bool),
            ("retain_acked_messages", bool),
        ):
            value = getattr(self, option)
            if not isinstance(value, kind):
                raise InvalidArgumentError(
                    f"{option} of subscription {self.name!r} cannot be a {type(value).__name__}"
                )

    def check_change(self, to: SubscriptionConfig, *, filter_too: bool = False) -> None:
        """`filter_too`: it may be changed as well, where a broker claims `filter_updates`."""
        for option in self.KEPT if filter_too else (*self.KEPT, "filter"):
            if getattr(self, option) != getattr(to, option):
                raise InvalidArgumentError(
                    f"{option} of subscription {self.name!r} cannot be changed; delete the "
                    "subscription and create it again"
                )
