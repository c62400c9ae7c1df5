"""The span in which an event is published, as W3C trace context."""

from __future__ import annotations

import sys


def current_traceparent() -> str | None:
    """Of the current span, in a program that uses OpenTelemetry; None in others."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
