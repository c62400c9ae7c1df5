"""What is asked of a bridge, checked where it is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias, get_args

from penstock.bridge.naming import DEFAULT_STREAM, Names, check_subject
from penstock.config import DAY, check_duration, check_whole
from penstock.errors import InvalidArgumentError
from penstock.secret_files import with_files

ConsumerMode: TypeAlias = Literal["pull", "push"]
PREFIX = "PENSTOCK_BRIDGE_"


@dataclass(frozen=True, kw_only=True, slots=True)
class BridgeSettings:
    """Everything about a bridge.

    `app_name`, `destination_app`: who tells whom; without an environment in them. `url`: the
    broker. `database_url`: where outbox and inbox are; needed by either. `database_connections`:
    to it at most; a consumer with a handler that writes uses one for each event at a time.
    `use_outbox`: events are rows of the caller's transaction first, and published by a relay.
    `use_inbox`: what was processed is remembered, so that an event has one effect. `use_dlq`: what
    is given up is kept as a dead letter; without it, it is dropped with an error in the log.

    `max_deliver`: deliveries before a failing event is given up. `ack_wait`: seconds of silence
    after which the broker delivers again; a handler that takes longer is kept alive.
    `backoff`: seconds until an event that failed comes back, by its delivery; the last is for all
    that follow.
    `consumer_mode`: 'pull' asks for events as it can take them, 'push' is sent them on
    `delivery_subject`.

    `auto_provision`: create streams and consumers at start-up; off for users who may not, then
    `penstock bridge provision` does it. `lazy_connect`: connect when first used rather than at
    start-up. `connect_retry_attempts`, `connect_retry_delay`: of the first connection; one that is
    lost later is made again for ever.

    `dead_letter_stream`: where dead letters are kept, by default the stream's name and -dlq. An app
    has one subject for them, so an app of two bridges names one stream for both.
    `dead_letter_retention`: seconds they are kept. `replay_horizon`: seconds for which the
    inbox remembers at least; events and dead letters older than that must not be sent again.
    """

    app_name: str
    destination_app: str
    stream_name: str = DEFAULT_STREAM
    url: str = field(default="nats://127.0.0.1:4222", repr=False)
    database_url: str | None = field(default=None, repr=False)
    database_connections: int = 10
    use_outbox: bool = False
    use_inbox: bool = False
    use_dlq: bool = True
    max_deliver: int = 5
    ack_wait: float = 30.0
    backoff: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)
    consumer_mode: ConsumerMode = "pull"
    delivery_subject: str | None = None
    auto_provision: bool = True
    lazy_connect: bool = False
    connect_retry_attempts: int = 3
    connect_retry_delay: float = 2.0
    dead_letter_stream: str | None = None
    dead_letter_retention: float = 30 * DAY
    replay_horizon: float = 31 * DAY

    def __post_init__(self) -> None:
        _ = self.names
        check_whole("max_deliver", self.max_deliver, 1)
        check_whole("database_connections", self.database_connections, 1)
        check_whole("connect_retry_attempts", self.connect_retry_attempts, 1)
        check_duration("ack_wait", self.ack_wait, 1, 600)
        check_duration("connect_retry_delay", self.connect_retry_delay, 0.001, 600)
        check_duration("dead_letter_retention", self.dead_letter_retention, 1, 31 * DAY)
        check_duration("replay_horizon", self.replay_horizon, 0, 3650 * DAY)
        self._check_backoff()
        if self.consumer_mode not in get_args(ConsumerMode):
            raise InvalidArgumentError(
                f"consumer_mode is 'pull' or 'push', not {self.consumer_mode!r}"
            )
        if self.delivery_subject is not None:
            check_subject(self.delivery_subject)
        if (self.use_outbox or self.use_inbox) and not self.database_url:
            raise InvalidArgumentError(
                "A bridge with an outbox or an inbox needs a database_url, such as "
                "postgresql+psycopg://user@host/name"
            )
        if self.use_inbox and self.use_dlq and self.replay_horizon < self.dead_letter_retention:
            raise InvalidArgumentError(
                f"replay_horizon ({self.replay_horizon:g} s) is shorter than dead letters are kept "
                f"({self.dead_letter_retention:g} s): one replayed late would be processed again"
            )

    def _check_backoff(self) -> None:
        if not isinstance(self.backoff, tuple) or not self.backoff:
            raise InvalidArgumentError(
                f"backoff is a tuple of seconds with at least one, not {self.backoff!r}"
            )
        for seconds in self.backoff:
            check_duration("backoff", seconds, 0, 600)

    @property
    def names(self) -> Names:
        return Names(
            app_name=self.app_name,
            destination_app=self.destination_app,
            stream_name=self.stream_name,
            dead_letter_stream=self.dead_letter_stream,
        )

    @property
    def push_subject(self) -> str:
        return self.delivery_subject or self.names.delivery_subject

    def delay(self, deliveries: int) -> float:
        """Seconds until an event comes back that failed in its delivery of that number."""
        return self.backoff[min(max(deliveries, 1), len(self.backoff)) - 1]

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """From variables such as PENSTOCK_BRIDGE_APP_NAME, or PENSTOCK_BRIDGE_URL_FILE for what is
        in a file; what is given goes before them."""
        variables = os.environ if environment is None else environment
        said = {name: value for name, value in given.items() if value is not None}
        known = {one.name: one for one in fields(cls)}
        for variable, text in with_files(variables, PREFIX).items():
            name = variable.removeprefix(PREFIX).lower()
            if not variable.startswith(PREFIX) or name in said:
                continue
            if name not in known:
                raise InvalidArgumentError(
                    f"{variable} is no setting of a bridge; there are "
                    f"{', '.join(sorted(f'{PREFIX}{one.upper()}' for one in known))}"
                )
            said[name] = _parsed(variable, text, str(known[name].type))
        missing = {"app_name", "destination_app"} - said.keys()
        if missing:
            names = ", ".join(f"{PREFIX}{name.upper()}" for name in sorted(missing))
            raise InvalidArgumentError(f"A bridge needs to know its apps: set {names}")
        return cls(**said)


def _parsed(variable: str, text: str, kind: str) -> Any:
    """A variable's text as the kind of its setting."""
    flags = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    try:
        if kind == "bool":
            return flags[text.lower()]
        if kind in ("int", "float"):
            return int(text) if kind == "int" else float(text)
        if kind.startswith("tuple"):
            return tuple(float(part) for part in text.split(","))
    except (KeyError, ValueError):
        raise InvalidArgumentError(f"{variable} cannot be {text!r}; it is {_KINDS[kind]}") from None
    return text


_KINDS = {
    "bool": "yes or no",
    "int": "a whole number",
    "float": "a number of seconds",
    "tuple[float, ...]": "seconds, separated by commas",
}
