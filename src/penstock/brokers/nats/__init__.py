"""NATS JetStream: a topic is a stream, a subscription a durable pull consumer.

Nothing is imported here: readers of ranges need no event loop and no nats-py, which takes a
quarter of a second to import.
"""
