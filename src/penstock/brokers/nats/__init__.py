"""NATS JetStream: a topic is a stream, a subscription a durable pull consumer."""

from penstock.brokers.nats.broker import NatsBroker

__all__ = ["NatsBroker"]
