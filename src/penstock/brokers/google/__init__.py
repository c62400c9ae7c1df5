"""Google Pub/Sub, or an emulator of it."""

from penstock.brokers.google.broker import GoogleBroker

__all__ = ["GoogleBroker"]
