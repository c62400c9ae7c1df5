"""Traces and metrics for OpenTelemetry, by its conventions for messaging.

create orders ──attributes──▶ process billing ──▶ create invoices ──attributes──▶ …

Whoever publishes makes a span for each message, whose context travels in its attributes; a
handler's span links to it, and what is published inside is its child. Where the SDK is not set up,
nothing is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.broker import SubscriptionStatus
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.message import Delivery, Draft, Message, PublishFault, Receipt, Settlement
from penstock.observing.observer import Observer, Window
from penstock.observing.outcomes import outcome_of
from penstock.outcomes import Reject, Retry

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, TracerProvider

_SYSTEM = {"messaging.system": "penstock"}
_SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
# As many as an SDK keeps by default.
_MOST_LINKS = 128


class OpenTelemetryObserver(Observer):
    """Spans and metrics of the given providers, by default the global ones.

    `continue_traces`: a handler's span is a child of the message's, in one trace with it, instead
    of beginning a trace that links to it.
    """

    watches = True

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        continue_traces: bool = False,
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise InvalidArgumentError(
                "Tracing needs opentelemetry-api: pip install 'penstock[telemetry]'"
            ) from None
        self._continue = continue_traces
        self._tracer = trace.get_tracer(
            "penstock", tracer_provider=tracer_provider, schema_url=_SCHEMA
        )
        meter = metrics.get_meter("penstock", meter_provider=meter_provider, schema_url=_SCHEMA)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._duration = meter.create_histogram("messaging.client.operation.duration", "s")
        self._processed = meter.create_histogram("messaging.process.duration", "s")
        self._redelivered = meter.create_counter("penstock.redelivered.messages", "{message}")
        self._dead = meter.create_counter("penstock.dead_letters", "{message}")
        self._window = meter.create_gauge("penstock.window.messages", "{message}")
        self._backlog = meter.create_gauge("penstock.backlog.messages", "{message}")
        self._oldest = meter.create_gauge("penstock.oldest_message.age", "s")

    def sending(self, topic: str, attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
        from opentelemetry import propagate, trace

        said = _operation("create", "create", topic)
        span = self._tracer.start_span(
            f"create {topic}", kind=trace.SpanKind.PRODUCER, attributes=said
        )
        carried = dict(attributes or {})
        propagate.inject(carried, context=trace.set_span_in_context(span))
        span.end()
        return carried

    def published(
        self,
        topic: str,
        drafts: Sequence[Draft],
        answers: Sequence[Receipt | PublishFault] | BaseException,
        seconds: float,
    ) -> None:
        said = _operation("send", "send", topic)
        errors = _errors(drafts, answers)
        failed = isinstance(answers, BaseException)
        self._duration.record(seconds, said | (_error(errors[0]) if failed else {}))
        for error in {type(one): one for one in errors}.values():
            count = sum(type(one) is type(error) for one in errors)
            self._sent.add(count, said | _error(error))
        self._send_span(topic, drafts, next(filter(None, errors), None), seconds)

    def received(self, subscription: str, deliveries: Sequence[Delivery]) -> None:
        said = _operation("receive", "receive", None, subscription)
        self._consumed.add(len(deliveries), said)
        again = sum(delivery.delivery_attempt > 1 for delivery in deliveries)
        if again:
            self._redelivered.add(again, said)

    def settled(self, subscription: str, settlements: Sequence[Settlement], seconds: float) -> None:
        self._duration.record(seconds, _operation("settle", "settle", None, subscription))

    @contextmanager
    def handling(
        self, topic: str | None, subscription: str, messages: Sequence[Message]
    ) -> Iterator[None]:
        from opentelemetry import trace

        said = _operation("process", "process", topic, subscription)
        began, outcome = time.perf_counter(), {}
        parent = None
        links = self._links([message.attributes for message in messages])
        if self._continue and len(messages) == 1:
            parent, links = _context(messages[0].attributes), []
        with self._tracer.start_as_current_span(
            f"process {subscription}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes=said | _about(messages),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                outcome = _error(error)
                _say(span, error)
                raise
            finally:
                self._processed.record(time.perf_counter() - began, said | outcome)

    def dead_lettered(self, topic: str, subscription: str, reason: str) -> None:
        said = {"messaging.destination.name": topic, "penstock.reason": reason}
        self._dead.add(1, said | {"messaging.destination.subscription.name": subscription})

    def watched(self, subscription: str, status: SubscriptionStatus, window: Window | None) -> None:
        said = {"messaging.destination.subscription.name": subscription}
        if window is not None:
            self._window.set(window.messages, said)
        try:
            backlog, oldest = status.backlog, status.oldest_age
        except UnimplementedError:
            return
        self._backlog.set(backlog, said)
        self._oldest.set(oldest, said)

    def _send_span(
        self,
        topic: str,
        drafts: Sequence[Draft],
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """The call to the broker, told when it is over."""
        from opentelemetry import trace

        now = time.time_ns()
        span = self._tracer.start_span(
            f"send {topic}",
            kind=trace.SpanKind.CLIENT,
            attributes=_operation("send", "send", topic)
            | {"messaging.batch.message_count": len(drafts)},
            links=self._links([draft.attributes for draft in drafts[:_MOST_LINKS]]),
            start_time=now - round(seconds * 1e9),
        )
        if error is not None:
            _say(span, error)
        span.end(now)

    def _links(self, carriers: Sequence[Mapping[str, str]]) -> list[Link]:
        from opentelemetry import trace

        contexts = [
            trace.get_current_span(_context(carrier)).get_span_context()
            for carrier in carriers
            if "traceparent" in carrier
        ]
        return [trace.Link(one) for one in contexts if one.is_valid]


def _context(carrier: Mapping[str, str]) -> Any:
    from opentelemetry import context, propagate

    return propagate.extract(carrier, context=context.Context())


def _operation(
    name: str, kind: str, topic: str | None, subscription: str | None = None
) -> dict[str, Any]:
    said: dict[str, Any] = {
        **_SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        said["messaging.destination.name"] = topic
    if subscription is not None:
        said["messaging.destination.subscription.name"] = subscription
    return said


def _about(messages: Sequence[Message]) -> dict[str, Any]:
    if len(messages) != 1:
        return {"messaging.batch.message_count": len(messages)}
    message = messages[0]
    return {
        "messaging.message.id": message.id,
        "messaging.message.body.size": message.length,
        "penstock.delivery_attempt": message.delivery_attempt,
    }


def _errors(
    drafts: Sequence[Draft], answers: Sequence[Receipt | PublishFault] | BaseException
) -> list[BaseException | None]:
    """What became of each draft: an error, or None."""
    if isinstance(answers, BaseException):
        return [answers] * len(drafts)
    return [one.error if isinstance(one, PublishFault) else None for one in answers]


def _error(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error.type": outcome_of(error)}


def _say(span: Span, error: BaseException) -> None:
    """What a handler decided is no error; what it raised is. Its text may hold bodies: not that."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", outcome_of(error))
    if not isinstance(error, Retry | Reject):
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
