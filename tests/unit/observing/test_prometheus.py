"""Metrics as Prometheus reads them."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from penstock import App, PubSub, Reject, RetryPolicy
from penstock.consuming.middleware import metrics
from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.observing import PrometheusObserver
from penstock.testing import TestApp, VirtualClock
from tests.support.shop import Invoice, Order

SUB = {"messaging_destination_subscription_name": "billing"}


async def test_everything_an_app_does_is_counted():
    registry = CollectorRegistry()
    app = App(retry=RetryPolicy(minimum_backoff=1, maximum_backoff=1))
    app.use(metrics(registry))
    tries = []

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    async def bill(order: Order) -> Invoice:
        tries.append(order)
        if order.id == 1 and len(tries) == 1:
            raise ValueError
        if order.id == 2:
            raise Reject("closed")
        return Invoice(order.id)

    async with TestApp(app) as shop:
        for n in (1, 2, 3):
            await shop.publish("orders", Order(n))
        got = registry.get_sample_value
        topic = {"messaging_destination_name": "orders", "error_type": ""}
        assert got("messaging_client_sent_messages_total", topic) == 3
        assert got("messaging_client_consumed_messages_total", SUB) == 4
        assert got("penstock_redelivered_messages_total", SUB) == 1
        for outcome, count in (("done", 2), ("ValueError", 1), ("reject", 1)):
            labels = {**SUB, "outcome": outcome}
            assert got("messaging_process_duration_seconds_count", labels) == count
        assert got("penstock_settled_messages_total", {**SUB, "verb": "ack"}) == 3
        assert got("penstock_settled_messages_total", {**SUB, "verb": "nack"}) == 1
        dead = {**SUB, "messaging_destination_name": "orders-dead", "reason": "closed"}
        assert got("penstock_dead_letters_total", dead) == 1
        send = {"messaging_operation_name": "send", "messaging_destination_name": "orders"}
        assert got("messaging_client_operation_duration_seconds_count", send) == 3
        assert got("penstock_window_messages", SUB) == 0
        assert got("penstock_backlog_messages", SUB) == 0
        assert got("penstock_oldest_message_seconds", SUB) == 0


async def test_what_could_not_be_published_is_counted_by_its_error():
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    async with PubSub(clock=VirtualClock(), observer=observer) as pubsub:
        with pytest.raises(NotFoundError):
            await pubsub.topic("nowhere").publish_message(b"")
    labels = {"messaging_destination_name": "nowhere", "error_type": "TopicNotFoundError"}
    assert registry.get_sample_value("messaging_client_sent_messages_total", labels) == 1


def test_there_is_one_observer_for_a_registry():
    registry = CollectorRegistry()
    assert PrometheusObserver.of(registry) is PrometheusObserver.of(registry)
    assert PrometheusObserver.of(CollectorRegistry()) is not PrometheusObserver.of(registry)


def test_a_registry_that_has_other_metrics_of_that_name_is_refused():
    registry = CollectorRegistry()
    Counter("messaging_client_sent_messages", "x", registry=registry)
    with pytest.raises(InvalidArgumentError, match="registry of its own"):
        PrometheusObserver(registry)
