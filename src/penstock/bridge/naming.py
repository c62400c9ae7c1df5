"""What things of a bridge are called: subjects, streams, consumers. Pure.

api ──▶ api.sync.worker ──▶ worker        one stream holds both directions
api ◀── worker.sync.api ◀── worker
        api.sync.dlq, worker.sync.dlq     dead letters, in a stream of their own
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.config import check_name
from penstock.errors import InvalidArgumentError

DEFAULT_STREAM = "jetstream-bridge-stream"
LONGEST_SUBJECT = 255
_DLQ = "dlq"
_APP = re.compile(r"[A-Za-z0-9_-]+")
_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ENVIRONMENT = re.compile(
    r"[-_](prod|production|stage|staging|dev|development|test|qa|uat|sandbox)$"
)


def check_app(what: str, name: object) -> str:
    """`name` if it can be a token of a subject, else `InvalidArgumentError`."""
    if not isinstance(name, str) or not _APP.fullmatch(name):
        raise InvalidArgumentError(
            f"{what} cannot be {name!r}: use letters, digits, - and _ only, without dots, spaces "
            "or wildcards"
        )
    if name == _DLQ:
        raise InvalidArgumentError(
            f"{what} cannot be {name!r}: subjects that end in .{_DLQ} are for dead letters"
        )
    return name


def check_subject(subject: object) -> str:
    """`subject` if a bridge may publish on it, else `InvalidArgumentError`."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise InvalidArgumentError(
            f"Subject {subject!r} is not allowed: letters, digits, - and _ in tokens joined by "
            "dots, without spaces and without the wildcards * and >"
        )
    if len(subject) > LONGEST_SUBJECT:
        raise InvalidArgumentError(
            f"Subject {subject[:40]}… has {len(subject)} characters; at most {LONGEST_SUBJECT} "
            "are allowed, so use shorter names of apps"
        )
    return subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The names that follow from two apps and their stream, as `app_name` sees them."""

    app_name: str
    destination_app: str
    stream_name: str = DEFAULT_STREAM
    dead_letter_stream: str | None = None

    def __post_init__(self) -> None:
        check_app("app_name", self.app_name)
        check_app("destination_app", self.destination_app)
        check_name("Stream", self.stream_name)
        check_name("Stream", self.dlq_stream)
        if self.dlq_stream == self.stream_name:
            raise InvalidArgumentError(
                f"Dead letters need a stream of their own, other than {self.stream_name!r}"
            )
        for subject in (self.source_subject, self.delivery_subject, self.dlq_subject):
            check_subject(subject)

    @property
    def source_subject(self) -> str:
        """Where this app publishes."""
        return f"{self.app_name}.sync.{self.destination_app}"

    @property
    def destination_subject(self) -> str:
        """What this app receives."""
        return f"{self.destination_app}.sync.{self.app_name}"

    @property
    def dlq_subject(self) -> str:
        """Where this app's dead letters go."""
        return f"{self.app_name}.sync.{_DLQ}"

    @property
    def durable(self) -> str:
        """The consumer of this app."""
        return f"{self.app_name}-workers"

    @property
    def delivery_subject(self) -> str:
        """Where a push consumer delivers, unless told otherwise."""
        return f"{self.destination_subject}.worker"

    @property
    def dlq_stream(self) -> str:
        """Dead letters live apart: the bridge's own stream drops what was acked, and would take
        a dead letter that kept its headers for a duplicate of the message it was."""
        return self.dead_letter_stream or f"{self.stream_name}-{_DLQ}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """Of the stream, both directions."""
        return tuple(dict.fromkeys((self.source_subject, self.destination_subject)))

    @property
    def dlq_subjects(self) -> tuple[str, ...]:
        """Of the stream of dead letters, both apps'."""
        apps = (self.app_name, self.destination_app)
        return tuple(dict.fromkeys(f"{app}.sync.{_DLQ}" for app in apps))

    def advice(self) -> list[str]:
        """What is allowed and will be regretted."""
        return [
            f"{what} {name!r} ends like an environment; name the app only ({shorter!r}), so that "
            "subjects and consumers are called the same everywhere"
            for what, name in (
                ("app_name", self.app_name),
                ("destination_app", self.destination_app),
            )
            if (shorter := _ENVIRONMENT.sub("", name)) != name
        ]
