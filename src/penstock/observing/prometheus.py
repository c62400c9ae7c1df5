"""Metrics for Prometheus, by the names OpenTelemetry gives them where it has some."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from penstock.broker import SubscriptionStatus
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.message import Delivery, Draft, Message, PublishFault, Receipt, Settlement
from penstock.observing.observer import Observer, Window
from penstock.observing.outcomes import outcome_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_made: WeakKeyDictionary[Any, PrometheusObserver] = WeakKeyDictionary()

_TOPIC = "messaging_destination_name"
_SUBSCRIPTION = "messaging_destination_subscription_name"


class PrometheusObserver(Observer):
    """Counts, durations and gauges in a registry, by default prometheus-client's own.

    One for a registry: `PrometheusObserver.of(registry)`.
    """

    watches = True

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        except ImportError:
            raise InvalidArgumentError(
                "Metrics need prometheus-client: pip install 'penstock[telemetry]'"
            ) from None
        registry = registry or REGISTRY

        def make(kind: Any, name: str, told: str, *labels: str, **options: Any) -> Any:
            try:
                return kind(name, told, labels, registry=registry, **options)
            except ValueError:
                raise InvalidArgumentError(
                    f"Something else in this process has a metric {name!r}; give this observer a "
                    "registry of its own"
                ) from None

        self._sent = make(
            Counter, "messaging_client_sent_messages", "Messages published", _TOPIC, "error_type"
        )
        self._duration = make(
            Histogram,
            "messaging_client_operation_duration_seconds",
            "From handing something to the broker to its answer",
            "messaging_operation_name",
            _TOPIC,
        )
        self._consumed = make(
            Counter, "messaging_client_consumed_messages", "Messages received", _SUBSCRIPTION
        )
        self._processed = make(
            Histogram,
            "messaging_process_duration_seconds",
            "What handlers took",
            _SUBSCRIPTION,
            "outcome",
        )
        self._redelivered = make(
            Counter, "penstock_redelivered_messages", "Deliveries beyond the first", _SUBSCRIPTION
        )
        self._settled = make(
            Counter, "penstock_settled_messages", "Messages settled", _SUBSCRIPTION, "verb"
        )
        self._dead = make(
            Counter,
            "penstock_dead_letters",
            "Messages given up",
            _TOPIC,
            _SUBSCRIPTION,
            "reason",
        )
        # Of several processes: what each holds adds up, what waits in the broker is the same.
        for name, told, mode in (
            ("window_messages", "Messages in hand", "livesum"),
            ("window_bytes", "Bytes in hand", "livesum"),
            ("backlog_messages", "Messages not yet acked", "livemax"),
            ("oldest_message_seconds", "Age of the oldest of them", "livemax"),
        ):
            gauge = make(Gauge, f"penstock_{name}", told, _SUBSCRIPTION, multiprocess_mode=mode)
            setattr(self, f"_{name}", gauge)

    @staticmethod
    def of(registry: CollectorRegistry | None = None) -> PrometheusObserver:
        """The one observer of a registry: metrics have their names to themselves."""
        from prometheus_client import REGISTRY

        registry = registry or REGISTRY
        if registry not in _made:
            _made[registry] = PrometheusObserver(registry)
        return _made[registry]

    def published(
        self,
        topic: str,
        drafts: Sequence[Draft],
        answers: Sequence[Receipt | PublishFault] | BaseException,
        seconds: float,
    ) -> None:
        self._duration.labels("send", topic).observe(seconds)
        if isinstance(answers, BaseException):
            tally = Tally({type(answers).__name__: len(drafts)})
        else:
            tally = Tally(
                type(one.error).__name__ if isinstance(one, PublishFault) else "" for one in answers
            )
        for error, count in tally.items():
            self._sent.labels(topic, error).inc(count)

    def received(self, subscription: str, deliveries: Sequence[Delivery]) -> None:
        self._consumed.labels(subscription).inc(len(deliveries))
        again = sum(delivery.delivery_attempt > 1 for delivery in deliveries)
        if again:
            self._redelivered.labels(subscription).inc(again)

    def settled(self, subscription: str, settlements: Sequence[Settlement], seconds: float) -> None:
        self._duration.labels("settle", subscription).observe(seconds)
        for verb, count in Tally(one.verb.value for one in settlements).items():
            self._settled.labels(subscription, verb).inc(count)

    @contextmanager
    def handling(
        self, topic: str | None, subscription: str, messages: Sequence[Message]
    ) -> Iterator[None]:
        began, outcome = time.perf_counter(), "done"
        try:
            yield
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            seconds = time.perf_counter() - began
            self._processed.labels(subscription, outcome).observe(seconds)

    def dead_lettered(self, topic: str, subscription: str, reason: str) -> None:
        self._dead.labels(topic, subscription, reason).inc()

    def watched(self, subscription: str, status: SubscriptionStatus, window: Window | None) -> None:
        gauges: Any = self
        if window is not None:
            gauges._window_messages.labels(subscription).set(window.messages)
            gauges._window_bytes.labels(subscription).set(window.bytes)
        try:
            backlog, oldest = status.backlog, status.oldest_age
        except UnimplementedError:
            return
        gauges._backlog_messages.labels(subscription).set(backlog)
        gauges._oldest_message_seconds.labels(subscription).set(oldest)
