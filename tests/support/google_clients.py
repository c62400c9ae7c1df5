"""Google's own Python clients, pointed at an emulator."""

import itertools
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.api_core.retry import Retry
from google.cloud import pubsub_v1
from google.pubsub_v1 import SchemaServiceClient
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport

_numbers = itertools.count(1)
PROJECT = "project-one"


class Google:
    """Clients of one emulator, and names nobody else uses."""

    def __init__(self, address: str, project: str = PROJECT) -> None:
        self.address = address
        self.project = project
        # As Google's clients set it for themselves.
        self.channel = grpc.insecure_channel(
            address,
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        )
        publisher = pubsub_v1.PublisherClient
        subscriber = pubsub_v1.SubscriberClient
        self.publisher = publisher(
            transport=publisher.get_transport_class()(channel=self.channel),
            publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True),
        )
        self.subscriber = subscriber(
            transport=subscriber.get_transport_class()(channel=self.channel)
        )
        self.schemas = SchemaServiceClient(
            transport=SchemaServiceGrpcTransport(channel=self.channel)
        )

    def path(self, kind: str, base: str = "") -> str:
        return f"projects/{self.project}/{kind}/{base or kind[:3]}-{next(_numbers)}"

    def topic(self, **options: Any) -> str:
        name = self.path("topics")
        self.publisher.create_topic(request={"name": name, **options})
        return name

    def subscription(self, topic: str, **options: Any) -> str:
        name = self.path("subscriptions")
        self.subscriber.create_subscription(request={"name": name, "topic": topic, **options})
        return name

    def pair(self, **options: Any) -> tuple[str, str]:
        topic = self.topic()
        return topic, self.subscription(topic, **options)

    def publish(self, topic: str, *texts: str, **options: Any) -> list[str]:
        """One after the other, each stored before the next."""
        key = options.pop("ordering_key", "")
        return [
            self.publisher.publish(topic, text.encode(), ordering_key=key, **options).result(10)
            for text in texts
        ]

    def pull(self, subscription: str, count: int = 100, **options: Any) -> Sequence[Any]:
        """What is there now."""
        request = {
            "subscription": subscription,
            "max_messages": count,
            "return_immediately": True,
            **options,
        }
        with warnings.catch_warnings():
            # Google would rather have everybody wait; a test that looks for nothing would not.
            warnings.simplefilter("ignore", DeprecationWarning)
            return list(self.subscriber.pull(request=request, timeout=10).received_messages)

    def pull_until(self, subscription: str, count: int, within: float = 10) -> list[Any]:
        """Pull until so many have come, without acking any."""
        found: list[Any] = []
        until = time.monotonic() + within
        while len(found) < count:
            assert time.monotonic() < until, f"only {len(found)} of {count} came"
            request = {"subscription": subscription, "max_messages": 100}
            found += self.subscriber.pull(request=request, timeout=5).received_messages
        return found

    def ack(self, subscription: str, *received: Any) -> None:
        self.subscriber.acknowledge(
            request={"subscription": subscription, "ack_ids": [one.ack_id for one in received]}
        )

    def nack(self, subscription: str, *received: Any) -> None:
        self.extend(subscription, 0, *received)

    def extend(self, subscription: str, seconds: int, *received: Any) -> None:
        self.subscriber.modify_ack_deadline(
            request={
                "subscription": subscription,
                "ack_ids": [one.ack_id for one in received],
                "ack_deadline_seconds": seconds,
            },
            retry=Retry(predicate=lambda _: False),
        )

    def refusal(self, call: Callable[..., Any], *args: Any, **options: Any) -> GoogleAPICallError:
        """The error that a call ends with."""
        try:
            result = call(*args, **options)
        except GoogleAPICallError as error:
            return error
        raise AssertionError(f"not refused: {result!r}")

    def close(self) -> None:
        self.publisher.stop()
        self.subscriber.close()
        self.channel.close()


class Received:
    """A callback that keeps what it is given, acked unless `handle` says otherwise."""

    def __init__(self, handle: Callable[[Any], None] | None = None) -> None:
        self.messages: list[Any] = []
        self._handle = handle or (lambda message: message.ack())
        self._changed = threading.Condition()

    def __call__(self, message: Any) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        self._handle(message)

    @property
    def texts(self) -> list[str]:
        return [message.data.decode() for message in self.messages]

    def wait_for(self, count: int, within: float = 20) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.messages) >= count, within)
        assert came, f"only {len(self.messages)} of {count} came: {self.texts}"
