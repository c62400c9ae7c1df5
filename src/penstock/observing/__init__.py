"""Telling observers what happens: clients, publishers and streams; Prometheus and OpenTelemetry."""

from penstock.observing.observer import Observer, Observers
from penstock.observing.opentelemetry import OpenTelemetryObserver
from penstock.observing.prometheus import PrometheusObserver
from penstock.observing.watching import watch

__all__ = ["Observer", "Observers", "OpenTelemetryObserver", "PrometheusObserver", "watch"]
