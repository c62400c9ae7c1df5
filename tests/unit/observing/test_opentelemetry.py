"""Traces and metrics as OpenTelemetry records them."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import App, Draft, Message, PubSub, Reject
from penstock.consuming.middleware import tracing
from penstock.observing import OpenTelemetryObserver
from penstock.testing import TestApp, VirtualClock, eventually
from tests.support.shop import Invoice, Order


class Telemetry:
    def __init__(self):
        self.spans = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([self.reader])

    @property
    def providers(self):
        return {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def named(self, name):
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def metrics(self):
        found = {}
        for resource in self.reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = list(metric.data.data_points)
        return found


@pytest.fixture
def telemetry():
    found = Telemetry()
    yield found
    found.tracers.shutdown()
    found.meters.shutdown()


def an_app(telemetry, **options):
    app = App(max_attempts=1)
    app.use(tracing(**telemetry.providers, **options))

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    async def bill(order: Order) -> Invoice:
        if order.id == 2:
            raise Reject("closed")
        if order.id == 3:
            raise ValueError("secret")
        return Invoice(order.id)

    @app.subscriber("invoices", "archive")
    def keep(invoice: Invoice) -> None:
        pass

    return app


async def test_a_message_is_followed_from_publisher_to_handler_to_the_next(telemetry):
    tracer = telemetry.tracers.get_tracer("test")
    async with TestApp(an_app(telemetry)) as shop:
        with tracer.start_as_current_span("request") as request:
            await shop.publish("orders", Order(1))
        traceparent = shop.records("orders")[0].attributes["traceparent"]
    [created] = telemetry.named("create orders")
    [billed] = telemetry.named("process billing")
    [invoiced] = telemetry.named("create invoices")
    [kept] = telemetry.named("process archive")
    assert created.parent.span_id == request.get_span_context().span_id
    assert f"{created.context.span_id:016x}" in traceparent
    assert [link.context.span_id for link in billed.links] == [created.context.span_id]
    assert billed.context.trace_id != created.context.trace_id
    assert invoiced.parent.span_id == billed.context.span_id
    assert [link.context.span_id for link in kept.links] == [invoiced.context.span_id]
    assert (created.kind, billed.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)


async def test_spans_say_what_the_conventions_ask_for(telemetry):
    async with TestApp(an_app(telemetry)) as shop:
        message_id = await shop.publish("orders", Order(1))
    [billed] = telemetry.named("process billing")
    assert dict(billed.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.subscription.name": "billing",
        "messaging.message.id": message_id,
        "messaging.message.body.size": 25,
        "penstock.delivery_attempt": 1,
    }
    [sent] = telemetry.named("send orders")
    [created] = telemetry.named("create orders")
    assert sent.attributes["messaging.batch.message_count"] == 1
    assert [link.context.span_id for link in sent.links] == [created.context.span_id]
    assert sent.kind is trace.SpanKind.CLIENT and sent.end_time >= sent.start_time


async def test_traces_can_be_continued_instead_of_linked(telemetry):
    async with TestApp(an_app(telemetry, continue_traces=True)) as shop:
        await shop.publish("orders", Order(1))
    [created], [billed] = telemetry.named("create orders"), telemetry.named("process billing")
    assert billed.parent.span_id == created.context.span_id
    assert billed.context.trace_id == created.context.trace_id
    assert not billed.links


async def test_failures_are_errors_decisions_are_not_and_texts_stay_out(telemetry):
    async with TestApp(an_app(telemetry)) as shop:
        await shop.publish("orders", Order(2))
        await shop.publish("orders", Order(3))
    rejected, failed = telemetry.named("process billing")
    assert rejected.status.status_code is trace.StatusCode.UNSET
    assert rejected.attributes["error.type"] == "reject"
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.attributes["error.type"] == "ValueError"
    assert "secret" not in failed.to_json()


async def test_metrics_have_the_names_of_the_conventions(telemetry):
    async with TestApp(an_app(telemetry)) as shop:
        await shop.publish("orders", Order(1))
        await shop.publish("orders", Order(2))
        found = telemetry.metrics()
    [sent] = [
        point
        for point in found["messaging.client.sent.messages"]
        if point.attributes["messaging.destination.name"] == "orders"
    ]
    assert sent.value == 2
    assert {"messaging.client.consumed.messages", "messaging.client.operation.duration"} <= set(
        found
    )
    processed = found["messaging.process.duration"]
    assert {point.attributes.get("error.type") for point in processed} == {None, "reject"}
    [dead] = found["penstock.dead_letters"]
    assert (dead.value, dead.attributes["penstock.reason"]) == (1, "closed")
    assert "penstock.backlog.messages" in found and "penstock.window.messages" in found


async def test_a_batch_is_one_span_with_a_link_to_each_message(telemetry):
    app = App()
    app.use(tracing(**telemetry.providers))

    @app.subscriber("orders", "billing")
    async def bill(orders: list[Order]) -> None:
        pass

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1), wait=False)
        await shop.publish("orders", Order(2))
    [billed] = telemetry.named("process billing")
    assert len(billed.links) == 2
    assert billed.attributes["messaging.batch.message_count"] == 2


async def test_a_bare_client_is_traced_too(telemetry):
    observer = OpenTelemetryObserver(**telemetry.providers)
    async with PubSub(clock=VirtualClock(), observer=observer) as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing").create()
        inside = []

        @billing.on("message")
        async def handle(message: Message) -> None:
            inside.append(trace.get_current_span().get_span_context().span_id)
            message.ack()

        billing.open()
        await topic.publish_message(b"x", {"traceparent": "nonsense"})
        await eventually(lambda: inside)
    [processed] = telemetry.named("process billing")
    assert inside == [processed.context.span_id]
    assert len(processed.links) == 1


async def test_a_message_of_somebody_who_traces_nothing_links_to_nothing(telemetry):
    async with TestApp(an_app(telemetry)) as shop:
        broker = await shop.app.pubsub.broker()
        await broker.publish("orders", [Draft(b'{"id": 1}', {"traceparent": "00-zz-zz-01"})])
        await shop.idle()
    [billed] = telemetry.named("process billing")
    assert not billed.links
