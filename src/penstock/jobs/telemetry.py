"""What is told of every publish and every handled message: logs, metrics, traces.

A `JobObserver` is told; the default writes structured log records. `PrometheusJobObserver` counts.
The core's observers (`penstock.observing`) are told of messages, whatever they are about.
Trace context is carried in the payload from the request to the last event, so a job is one trace
however many processes work on it; without OpenTelemetry installed nothing is recorded and what
came in is passed on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.jobs.model.event import JobFailed, StageEvent
from penstock.jobs.model.names import JobStage, MediaType
from penstock.message import Draft

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter

_log = logging.getLogger("penstock.jobs")


class Subject(Struct, frozen=True, kw_only=True):
    """Whom a record is about. `reason`: why it failed, or is tried again."""

    job_id: str | None
    user_id: str | None
    media_type: str | None
    stage: str | None
    attempt: int = 1
    correlation_id: str | None = None
    reason: str | None = None

    def fields(self) -> dict[str, Any]:
        """As they appear in a log record."""
        named = {
            "jobId": self.job_id,
            "userId": self.user_id,
            "mediaType": self.media_type,
            "stage": self.stage,
            "attempt": self.attempt,
            "correlationId": self.correlation_id,
            "reason": self.reason,
        }
        return {name: value for name, value in named.items() if value is not None}


def subject_of(attributes: Mapping[str, str], attempt: int) -> Subject:
    """Whom a message is about, by its attributes, which need not be right."""
    return Subject(
        job_id=_short(attributes.get("jobId")),
        user_id=_short(attributes.get("userId")),
        media_type=_known_media(attributes.get("mediaType")),
        stage=_short(attributes.get("stage")),
        attempt=attempt,
        correlation_id=_short(attributes.get("correlationId")),
    )


def _short(value: str | None) -> str | None:
    """Attributes of a stranger's message must not flood a log, nor break its lines."""
    if value is None or (len(value) <= 64 and value.isascii() and value.isprintable()):
        return value
    return value[:64].encode("unicode_escape").decode()


def _known_media(value: str | None) -> str | None:
    return value if MediaType.is_known(value) else None


class JobObserver:
    """Override what you need. What a method raises is logged and changes nothing else."""

    def published(
        self, subject: Subject, topic: str, seconds: float, error: Exception | None
    ) -> None:
        """The broker answered `seconds` after it was handed over: it has it, or `error` is why
        it may not."""

    def received(self, subject: Subject, subscription: str) -> None:
        """A message came; `subject.attempt` above 1 says that it, or its job, came before."""

    def handled(self, subject: Subject, stage: str, outcome: str, seconds: float) -> None:
        """`outcome`: what became of the job: done, retry or failed; duplicate when its work was
        done before, stale when it is no longer wanted or somebody else was faster; lost when it
        was interrupted and comes again; waits when nobody could work on it here; reject when the
        message was none of a job. Of the bad ones `subject.reason` says why."""

    def ended(self, subject: Subject, stage: str) -> None:
        """The job has ended, once, with the work of this stage: complete, or failed when there is
        a `subject.reason`."""

    def dead_lettered(self, subject: Subject, topic: str, reason: str) -> None: ...


class LoggingObserver(JobObserver):
    """Writes what it is told to the log."""

    def published(
        self, subject: Subject, topic: str, seconds: float, error: Exception | None
    ) -> None:
        if not _log.isEnabledFor(level := _level_of(error)):
            return
        fields: dict[str, Any] = {"topic": topic, "seconds": round(seconds, 6)}
        if error is not None:
            fields["error"] = type(error).__name__
        self._log(level, "published" if error is None else "not published", subject, **fields)

    def received(self, subject: Subject, subscription: str) -> None:
        # What comes again was told of when it was given back; what waits comes for hours.
        self._log(logging.DEBUG, "received", subject, subscription=subscription)

    def handled(self, subject: Subject, stage: str, outcome: str, seconds: float) -> None:
        level = logging.WARNING if outcome in ("retry", "failed", "reject") else logging.INFO
        if outcome == "waits":
            # Why is said once; which jobs it is about is a line each time they come.
            level = logging.DEBUG
        self._log(level, outcome, subject, worker=stage, seconds=round(seconds, 6))

    def dead_lettered(self, subject: Subject, topic: str, reason: str) -> None:
        self._log(logging.WARNING, "dead letter", subject, topic=topic, reason=reason)

    def _log(self, level: int, what: str, subject: Subject, **more: Any) -> None:
        if _log.isEnabledFor(level):
            fields = subject.fields() | more
            told = " ".join(f"{name}={value}" for name, value in fields.items())
            _log.log(level, "%s %s", what, told, extra=fields)


def _level_of(error: Exception | None) -> int:
    """Of a publish. A relay tells of a broker that is away, once for all that waits for it."""
    is_usual = error is None or getattr(error, "retryable", False)
    return logging.DEBUG if is_usual else logging.WARNING


COMPLETE, CANCELLED = "complete", "cancelled"
"""The reasons that are counted when nothing went wrong, and when somebody stopped it."""


def reason_of(event: StageEvent) -> str | None:
    """Why a job ended as this event says; None when it is complete."""
    if isinstance(event, JobFailed):
        return event.reason
    return CANCELLED if event.stage is JobStage.CANCELLED else None


@cache
def ended_jobs(registry: CollectorRegistry) -> Counter:
    """The counter of jobs that ended: one a registry, whoever counts."""
    from prometheus_client import Counter

    return Counter(
        "penstock_jobs_ended",
        "Jobs that ended, by the stage that ended them and why",
        ["stage", "media_type", "reason"],
        registry=registry,
    )


class PrometheusJobObserver(JobObserver):
    """Metrics of jobs and their stages. Their names are not those of the core's observer, which
    counts messages: both may be in one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY, Counter, Histogram

        registry = registry or REGISTRY
        self._sent = Histogram(
            "penstock_jobs_publish_duration_seconds",
            "From handing a message to the broker to its answer",
            ["messaging_destination_name", "outcome"],
            registry=registry,
        )
        self._processed = Histogram(
            "penstock_jobs_process_duration_seconds",
            "What handlers took",
            ["stage", "outcome"],
            registry=registry,
        )
        self._redelivered = Counter(
            "penstock_jobs_redelivered",
            "Messages that came again, and attempts beyond the first",
            ["stage"],
            registry=registry,
        )
        self._dead = Counter(
            "penstock_jobs_dead_lettered",
            "Messages sent to the dead letters",
            ["messaging_destination_name", "reason"],
            registry=registry,
        )
        self._ended = ended_jobs(registry)

    def published(
        self, subject: Subject, topic: str, seconds: float, error: Exception | None
    ) -> None:
        self._sent.labels(topic, "ok" if error is None else type(error).__name__).observe(seconds)

    def received(self, subject: Subject, subscription: str) -> None:
        if subject.attempt > 1:
            self._redelivered.labels(subject.stage or "unknown").inc()

    def handled(self, subject: Subject, stage: str, outcome: str, seconds: float) -> None:
        self._processed.labels(stage, outcome).observe(seconds)

    def ended(self, subject: Subject, stage: str) -> None:
        media_type = subject.media_type or "unknown"
        self._ended.labels(stage, media_type, subject.reason or COMPLETE).inc()

    def dead_lettered(self, subject: Subject, topic: str, reason: str) -> None:
        self._dead.labels(topic, reason).inc()


class JobObservers(JobObserver):
    """Tells several, each whatever the others do."""

    def __init__(self, *observers: JobObserver) -> None:
        self._observers = observers

    def published(
        self, subject: Subject, topic: str, seconds: float, error: Exception | None
    ) -> None:
        self._tell("published", subject, topic, seconds, error)

    def received(self, subject: Subject, subscription: str) -> None:
        self._tell("received", subject, subscription)

    def handled(self, subject: Subject, stage: str, outcome: str, seconds: float) -> None:
        self._tell("handled", subject, stage, outcome, seconds)

    def ended(self, subject: Subject, stage: str) -> None:
        self._tell("ended", subject, stage)

    def dead_lettered(self, subject: Subject, topic: str, reason: str) -> None:
        self._tell("dead_lettered", subject, topic, reason)

    def _tell(self, what: str, *args: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*args)
            except Exception:
                _log.exception("An observer failed in %s", what)


_UNSEEN = Subject(job_id=None, user_id=None, media_type=None, stage=None)


def as_relay_observer(
    observer: JobObserver,
) -> Callable[[str, Draft, float, Exception | None], None]:
    """For a `Relay`: tells `observer` of every publish. Whom a message is about is found out only
    where somebody looks at it: metrics do not, and logs only when they have a line to write."""
    ways = {getattr(one.published, "__func__", None) for one in _each(observer)}
    logs = LoggingObserver.published in ways
    ours = (JobObserver, LoggingObserver, PrometheusJobObserver)
    looks = bool(ways - {one.published for one in ours})

    def observe(topic: str, draft: Draft, seconds: float, error: Exception | None) -> None:
        seen = looks or (logs and _log.isEnabledFor(_level_of(error)))
        subject = subject_of(draft.attributes, 1) if seen else _UNSEEN
        observer.published(subject, topic, seconds, error)

    return observe


def _each(observer: JobObserver) -> Iterator[JobObserver]:
    if type(observer) is JobObservers:
        for one in observer._observers:
            yield from _each(one)
    else:
        yield observer


# Traces.


@contextmanager
def span(
    name: str, traceparent: str | None, attributes: Mapping[str, str | int] | None = None
) -> Iterator[str | None]:
    """A span under `traceparent`, or under the current one; yields what to pass on."""
    tracing = _tracing()
    if tracing is None:
        yield traceparent
        return
    trace, carrier = tracing
    parent = carrier.extract({"traceparent": traceparent}) if traceparent else None
    tracer = trace.get_tracer("penstock.jobs")
    with tracer.start_as_current_span(name, context=parent, attributes=attributes):
        injected: dict[str, str] = {}
        carrier.inject(injected)
        yield injected.get("traceparent", traceparent)


def say_outcome(outcome: str, reason: str | None) -> None:
    """Of the current span: what became of the job, and that it went wrong when there is a
    reason."""
    tracing = _tracing()
    if tracing is None:
        return
    trace, _ = tracing
    current = trace.get_current_span()
    current.set_attribute("penstock.job.outcome", outcome)
    if reason is not None:
        current.set_attribute("error.type", reason)
        current.set_status(trace.Status(trace.StatusCode.ERROR, reason))


def _tracing() -> Any:
    """OpenTelemetry's tracing and what carries its context; None where it is not installed, or
    where nobody records: then a span would only pass on what came in."""
    found = _opentelemetry()
    if found is None:
        return None
    trace, _ = found
    is_nobody = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return None if is_nobody else found


@cache
def _opentelemetry() -> Any:
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation import tracecontext
    except ImportError:
        return None
    return trace, tracecontext.TraceContextTextMapPropagator()
