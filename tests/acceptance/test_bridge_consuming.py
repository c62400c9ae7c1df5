"""The bridge's specification, "Consuming Flow", "Error Handling", "Dead Letter Queue", "Retry
Strategy" and "Consumer Modes", without a database."""

import asyncio
import json
import logging
import os
import signal

import pytest

from penstock import ActionResult, Reject, Retry, errors
from penstock.bridge import Recovery
from penstock.consuming.middleware import timeout
from penstock.testing.bridge import BridgeKit, make_event


def now():
    return asyncio.get_running_loop().time()


class Handler:
    """Records what it gets; `script` says what each delivery raises or returns."""

    def __init__(self, *script):
        self.script = list(script)
        self.events = []
        self.times = []

    async def __call__(self, event):
        self.events.append(event)
        self.times.append(now())
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        return step


async def test_a_handler_gets_the_event_with_everything_about_it():
    handler = Handler()
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        told = await kit.tell(event_type="order.paid", payload={"id": 7, "total": 12})
        await kit.processed()
    [event] = handler.events
    assert event.event_id == told.event_id and event.type == event.event_type == "order.paid"
    assert (event.resource_type, event.resource_id) == ("order", "7")
    assert event.payload == {"id": 7, "total": 12} and event.producer == "worker"
    assert (event.subject, event.stream) == ("worker.sync.api", "jetstream-bridge-stream")
    assert (event.sequence, event.consumer, event.deliveries) == (1, "api-workers", 1)


async def test_events_are_processed_one_after_the_other_in_their_order():
    running, order = [], []

    async def handle(event):
        assert running == []
        running.append(event)
        await asyncio.sleep(0.1)
        order.append(int(event.resource_id))
        running.clear()

    async with BridgeKit() as kit, kit.bridge.consumer(handle, batch_size=10):
        for n in range(40):
            await kit.tell(event_type="a.b", payload={"id": n})
        await kit.processed()
    assert order == list(range(40))


async def test_no_more_than_a_batch_is_in_hand():
    most = 0

    async def handle(_):
        nonlocal most
        status = await kit.broker.admin.describe_subscription("api-workers")
        most = max(most, status.leased)

    async with BridgeKit() as kit, kit.bridge.consumer(handle, batch_size=5):
        for n in range(50):
            await kit.tell(event_type="a.b", payload={"id": n})
        await kit.processed()
    assert 1 <= most <= 5


async def test_with_concurrency_resources_go_side_by_side_and_each_in_order():
    running: dict[str, int] = {}
    most, order = 0, []

    async def handle(event):
        nonlocal most
        assert event.resource_id not in running
        running[event.resource_id] = 1
        most = max(most, len(running))
        await asyncio.sleep(1)
        order.append((event.resource_id, event.payload["n"]))
        del running[event.resource_id]

    async with BridgeKit() as kit, kit.bridge.consumer(handle, batch_size=40, concurrency=4):
        for n in range(40):
            await kit.tell(event_type="a.b", payload={"id": n % 8, "n": n})
        await kit.processed()
    assert 1 < most <= 4
    for resource in range(8):
        own = [n for one, n in order if one == str(resource)]
        assert own == sorted(own) and len(own) == 5


async def test_a_recoverable_error_brings_the_event_back_later_each_time():
    handler = Handler(*[RuntimeError("not yet")] * 4)
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed()
        assert await kit.dead_letters() == []
    assert [event.deliveries for event in handler.events] == [1, 2, 3, 4, 5]
    pauses = [b - a for a, b in zip(handler.times, handler.times[1:], strict=False)]
    assert pauses == pytest.approx([1, 5, 15, 30], abs=0.5)


async def test_after_max_deliver_failures_it_is_a_dead_letter_and_acked():
    handler = Handler(*[RuntimeError("never")] * 9)
    async with BridgeKit(max_deliver=3) as kit, kit.bridge.consumer(handler):
        told = await kit.tell(event_type="a.b", payload={"id": 1})
        await kit.processed()
        [letter] = await kit.dead_letters()
        [(topic, draft)] = [one for one in kit.broker.published if "dlq" in one[0]]
    assert len(handler.events) == 3
    assert topic == "jetstream-bridge-stream-dlq" and draft.subject == "api.sync.dlq"
    assert draft.data == told.encode()
    assert draft.attributes["x-dead-letter"] == "true"
    assert draft.attributes["x-dlq-reason"] == "max_deliver_exceeded"
    assert draft.attributes["x-deliveries"] == "3"
    context = json.loads(draft.attributes["x-dlq-context"])
    assert context["event_id"] == told.event_id
    assert (context["error_class"], context["error_message"]) == ("RuntimeError", "never")
    assert context["original_subject"] == "worker.sync.api" and context["deliveries"] == 3
    assert context["sequence"]["stream"] == 1 and context["stream"] == "jetstream-bridge-stream"
    assert (letter.reason, letter.attempt) == ("max_deliver_exceeded", 3)


@pytest.mark.parametrize("error", [TypeError("x"), ValueError("x"), NameError("x"), Reject("bad")])
async def test_an_unrecoverable_error_is_a_dead_letter_at_once(error):
    handler = Handler(error)
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed()
        [letter] = await kit.dead_letters()
    assert len(handler.events) == 1
    assert letter.reason == "unrecoverable" and letter.attempt == 1


@pytest.mark.parametrize(
    "data", [b"{", b"\xff\xfe\x00", b"[]", b"{}", b'{"event_type": "a", "payload": 3}']
)
async def test_a_malformed_message_is_a_dead_letter_at_once_with_its_bytes_as_they_were(data):
    handler = Handler()
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell_raw(data, {"x-tenant": "acme"})
        await kit.processed()
        [letter] = await kit.dead_letters()
        [(_, draft)] = [one for one in kit.broker.published if "dlq" in one[0]]
    assert handler.events == []
    assert letter.data == data and letter.attributes == {"x-tenant": "acme"}
    assert letter.reason == "malformed_json"
    assert draft.attributes["x-dlq-reason"] == "malformed_json"


async def test_a_malformed_message_holds_nobody_up():
    handler = Handler()
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell_raw(b"{")
        await kit.tell(event_type="a.b", payload={})
        await kit.processed()
    assert len(handler.events) == 1


async def test_what_is_recoverable_can_be_said_otherwise():
    def strict(error):
        return Recovery.UNRECOVERABLE if "hopeless" in str(error) else Recovery.RECOVERABLE

    handler = Handler(ValueError("later"), RuntimeError("hopeless"))
    async with BridgeKit() as kit, kit.bridge.consumer(handler, classifier=strict):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed()
        [letter] = await kit.dead_letters()
    assert len(handler.events) == 2 and letter.reason == "unrecoverable"


async def test_a_dead_letter_that_cannot_be_stored_keeps_its_event():
    handler = Handler(TypeError("x"), TypeError("x"))
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.broker.admin.delete_topic("jetstream-bridge-stream-dlq")
        await kit.tell(event_type="a.b", payload={})
        while not handler.events:
            await asyncio.sleep(0.1)
        await kit.bridge.provision()
        await kit.processed()
        assert [letter.reason for letter in await kit.dead_letters()] == ["unrecoverable"]
    assert len(handler.events) == 2


async def test_without_dead_letters_what_is_given_up_is_dropped_and_said(caplog):
    async with BridgeKit(use_dlq=False) as kit, kit.bridge.consumer(Handler(TypeError("x"))):
        await kit.tell(event_type="a.b", payload={"secret": "hunter2"})
        with caplog.at_level(logging.ERROR):
            await kit.processed()
        assert "is dropped (unrecoverable)" in caplog.text
        assert "hunter2" not in caplog.text


async def test_an_event_that_was_never_answered_is_given_up_in_the_end():
    """A handler that takes its process along is not tried for ever, and not lost either."""
    handler = Handler()
    async with BridgeKit(max_deliver=2, ack_wait=1) as kit:
        # Not under its own id, as a peer's does that the broker does not know ids of.
        await kit.tell_raw(b'{"event_id": "e-1", "event_type": "a.b", "payload": {}}')
        for _ in range(12):  # Its consumers died with it in hand.
            deliveries = []
            while not deliveries:
                deliveries = await kit.broker.pull(
                    "api-workers", max_messages=1, max_bytes=10**6, wait=5
                )
        async with kit.bridge.consumer(handler):
            await kit.processed()
            [letter] = await kit.dead_letters()
        [(_, draft)] = [one for one in kit.broker.published if "dlq" in one[0]]
    assert handler.events == []
    assert letter.reason == "max_deliver_exceeded" and letter.attempt == 13
    assert "never answered" in (letter.error or "")
    assert json.loads(draft.attributes["x-dlq-context"])["event_id"] == "e-1"


async def test_events_in_hand_beside_one_that_ends_its_process_are_not_given_up_with_it():
    handler = Handler()
    async with BridgeKit(max_deliver=2, ack_wait=1) as kit:
        for n in range(4):
            await kit.tell(event_type="a.b", payload={"id": n})
        for _ in range(12):  # Consumers died of the first, with all four in hand.
            left = 4
            while left:
                left -= len(
                    await kit.broker.pull("api-workers", max_messages=4, max_bytes=10**6, wait=5)
                )
        async with kit.bridge.consumer(handler):
            await kit.processed()
            [letter] = await kit.dead_letters()
    assert json.loads(letter.data)["resource_id"] == "0"
    assert [event.resource_id for event in handler.events] == ["1", "2", "3"]


async def test_a_crash_on_the_last_delivery_strands_nothing():
    handler = Handler()
    async with BridgeKit(max_deliver=2, ack_wait=1) as kit:
        await kit.tell(event_type="a.b", payload={})
        for _ in range(2):
            while not await kit.broker.pull("api-workers", max_messages=1, max_bytes=10**6, wait=5):
                pass
        async with kit.bridge.consumer(handler):
            await kit.processed()
    assert [event.deliveries for event in handler.events] == [3]


async def test_a_handler_may_decide_for_itself():
    handler = Handler(ActionResult("nak", delay=7), Retry("later", after=3), ActionResult("ack"))
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed()
        assert await kit.dead_letters() == []
    pauses = [b - a for a, b in zip(handler.times, handler.times[1:], strict=False)]
    assert pauses == pytest.approx([7, 3], abs=0.5)


def test_an_action_is_ack_or_nak():
    with pytest.raises(errors.InvalidArgumentError, match="'ack' or 'nak'"):
        ActionResult("term")
    with pytest.raises(errors.InvalidArgumentError, match="delay"):
        ActionResult("nak", delay=-1)


async def test_middleware_goes_around_the_handler_in_its_order():
    said = []

    def loud(name):
        async def around(call, next):
            said.append(f"{name} before {call.event.event_type}")
            result = await next(call)
            said.append(f"{name} after")
            return result

        return around

    async def handle(_):
        said.append("handler")

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(handle)
        consumer.use(loud("outer"), loud("inner"))
        async with consumer:
            await kit.tell(event_type="a.b", payload={})
            await kit.processed()
    assert said == [
        "outer before a.b", "inner before a.b", "handler", "inner after", "outer after",
    ]  # fmt: skip


async def test_middleware_may_decide_about_an_error():
    class CustomRetryableError(Exception):
        pass

    class CustomPermanentError(Exception):
        pass

    async def custom(call, next):
        try:
            return await next(call)
        except CustomRetryableError:
            return ActionResult("nak", delay=10)
        except CustomPermanentError:
            return ActionResult("ack")

    handler = Handler(CustomRetryableError(), CustomPermanentError())
    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(handler)
        consumer.use(custom)
        async with consumer:
            await kit.tell(event_type="a.b", payload={})
            await kit.processed()
        assert await kit.dead_letters() == []
    assert handler.times[1] - handler.times[0] == pytest.approx(10, abs=0.5)


async def test_middleware_of_apps_works_here_too():
    async def slow(event):
        await asyncio.sleep(60 if event.deliveries == 1 else 0)

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(slow)
        consumer.use(timeout(5))
        async with consumer:
            await kit.tell(event_type="a.b", payload={})
            began = now()
            await kit.processed()
        assert 5 <= now() - began < 10


async def test_what_is_no_middleware_or_handler_is_refused_where_it_is_given():
    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(Handler())
        with pytest.raises(errors.InvalidArgumentError, match="not async"):
            consumer.use(lambda call, inner: None)
        for wrong in (5, lambda: None, lambda a, b, c: None):
            with pytest.raises(errors.InvalidArgumentError):
                kit.bridge.consumer(wrong)
        with pytest.raises(errors.InvalidArgumentError, match="use_inbox"):
            kit.bridge.consumer(lambda event, connection: None)


async def test_a_handler_that_takes_long_is_kept_alive():
    calls = 0

    async def slow(_):
        nonlocal calls
        calls += 1
        await asyncio.sleep(600)

    async with BridgeKit(ack_wait=30) as kit, kit.bridge.consumer(slow):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed()
    assert calls == 1


async def test_stopping_finishes_what_was_begun_and_gives_back_the_rest():
    done = []
    begun = asyncio.Event()

    async def handle(event):
        begun.set()
        await asyncio.sleep(5)
        done.append(event.resource_id)

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(handle, batch_size=10)
        await consumer.start()
        for n in range(10):
            await kit.tell(event_type="a.b", payload={"id": n})
        await begun.wait()
        report = await consumer.stop()
        assert done == ["0"] and report.clean
        status = await kit.broker.admin.describe_subscription("api-workers")
        assert (status.backlog, status.leased) == (9, 0)
        with pytest.raises(errors.ClosedError):
            await consumer.start()


async def test_a_handler_that_does_not_end_is_cancelled_and_its_event_comes_back():
    begun = asyncio.Event()
    cancelled = []

    async def stuck(event):
        begun.set()
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            cancelled.append(event)
            raise

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(stuck, drain_timeout=7)
        await consumer.start()
        await kit.tell(event_type="a.b", payload={})
        await begun.wait()
        began = now()
        await consumer.stop()
        assert now() - began == pytest.approx(7, abs=0.5) and len(cancelled) == 1
        async with kit.bridge.consumer(Handler()):
            await kit.processed()


async def test_a_handler_that_waited_for_something_cancelled_has_failed_and_others_go_on():
    heard = []

    async def handle(event):
        heard.append((event.resource_id, event.deliveries))
        if heard == [("1", 1)]:
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

    async with BridgeKit() as kit, kit.bridge.consumer(handle) as consumer:
        await kit.tell(event_type="a.b", payload={"id": 1})
        await kit.tell(event_type="a.b", payload={"id": 2})
        await kit.processed()
        assert consumer.running and not consumer.failed
    assert heard == [("1", 1), ("2", 1), ("1", 2)]


@pytest.mark.real_time
async def test_a_plain_handler_that_raises_stop_iteration_has_failed():
    heard = []

    def handle(event):
        heard.append(event.deliveries)
        if len(heard) == 1:
            next(iter(()))

    async with BridgeKit(backoff=[0.01]) as kit, kit.bridge.consumer(handle):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed(within=60)
    assert heard == [1, 2]


async def test_a_run_that_is_cancelled_leaves_nothing_running():
    begun = asyncio.Event()

    async def stuck(_):
        begun.set()
        await asyncio.sleep(10_000)

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(stuck)
        running = asyncio.create_task(consumer.run())
        await kit.tell(event_type="a.b", payload={})
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not consumer.running
        status = await kit.broker.admin.describe_subscription("api-workers")
        assert (status.backlog, status.leased) == (1, 0)
        async with kit.bridge.consumer(Handler()):
            await kit.processed()


async def test_a_run_that_is_cancelled_while_it_ends_ends_at_once():
    begun = asyncio.Event()

    async def stuck(_):
        begun.set()
        await asyncio.sleep(10_000)

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(stuck, drain_timeout=3600)
        running = asyncio.create_task(consumer.run())
        await kit.tell(event_type="a.b", payload={})
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        while consumer.running:
            await asyncio.sleep(0.01)
        running.cancel()
        began = now()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert now() - began < 60


async def test_a_handler_may_stop_its_own_consumer():
    async def last(_):
        await consumer.stop()

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(last)
        await consumer.start()
        began = now()
        await kit.tell(event_type="a.b", payload={})
        while consumer.running:
            await asyncio.sleep(0.01)
        assert now() - began < 5


async def test_a_handler_that_stops_its_own_consumer_has_its_event_acked():
    heard = []

    async def last(event):
        heard.append(event.resource_id)
        await consumer.stop()

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(last)
        await consumer.start()
        await kit.tell(event_type="a.b", payload={"id": 1})
        await kit.tell(event_type="a.b", payload={"id": 2})
        while not heard:
            await asyncio.sleep(0.01)
        await consumer.stop()
        async with kit.bridge.consumer(handler := Handler()):
            await kit.processed()
    assert heard == ["1"]
    assert [event.resource_id for event in handler.events] == ["2"]


async def test_stopping_ends_although_a_handler_does_not():
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def stubborn(_):
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(stubborn, drain_timeout=1)
        await consumer.start()
        await kit.tell(event_type="a.b", payload={})
        await begun.wait()
        async with asyncio.timeout(3600):
            await consumer.stop()
        let_go.set()


async def test_receiving_goes_on_after_a_disconnect():
    handler = Handler()
    async with BridgeKit() as kit, kit.bridge.consumer(handler) as consumer:
        await kit.tell(event_type="a.b", payload={"id": 1})
        await kit.processed()
        kit.broker.unplug()
        await asyncio.sleep(20)
        kit.broker.plug_in()
        await kit.tell(event_type="a.b", payload={"id": 2})
        await kit.processed()
        assert consumer.running
    assert [event.resource_id for event in handler.events] == ["1", "2"]


async def test_receiving_goes_on_over_a_connection_that_was_made_anew():
    handler = Handler()
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell(event_type="a.b", payload={"id": 1})
        await kit.processed()
        await kit.bridge.reconnect()
        await kit.tell(event_type="a.b", payload={"id": 2})
        await kit.processed()
    assert [event.resource_id for event in handler.events] == ["1", "2"]


async def test_a_consumer_that_is_gone_ends_the_run_with_an_error():
    async with BridgeKit() as kit:
        consumer = kit.bridge.consumer(Handler())
        running = asyncio.create_task(consumer.run())
        await consumer.receiving.wait()
        await kit.broker.admin.delete_subscription("api-workers")
        with pytest.raises(errors.SubscriptionNotFoundError):
            await running


async def test_a_dead_letter_replayed_is_processed():
    from penstock.dead_letters import Selection

    handler = Handler(TypeError("a bug"))
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        told = await kit.tell(event_type="a.b", payload={"id": 3})
        await kit.processed()
        pubsub = await kit.bridge.connection.pubsub()
        letters = pubsub.dead_letters("jetstream-bridge-stream-dlq")
        replay = await letters.replay(Selection())
        assert (replay.replayed, replay.failed) == (1, {})
        await kit.processed()
        assert await letters.count() == 0
    assert [event.event_id for event in handler.events] == [told.event_id] * 2
    assert handler.events[1].subject == "worker.sync.api"


async def test_an_event_without_an_id_is_known_by_its_place():
    handler = Handler(RuntimeError("once more"))
    async with BridgeKit() as kit, kit.bridge.consumer(handler):
        await kit.tell_raw(b'{"event_type": "a.b", "payload": {}}')
        await kit.processed()
    first, again = handler.events
    assert first.event_id == again.event_id
    assert first.event_id.startswith("seq:jetstream-bridge-stream:1:")


@pytest.mark.real_time
async def test_a_plain_handler_may_block_without_losing_its_event():
    import time

    calls = []

    def slow(event):
        calls.append(event.event_id)
        time.sleep(1.5)

    async with BridgeKit(ack_wait=1) as kit, kit.bridge.consumer(slow):
        await kit.tell(event_type="a.b", payload={})
        await kit.processed(within=60)
    assert len(calls) == 1


async def test_a_handler_can_be_called_with_an_event_that_was_made_for_it():
    handler = Handler()
    await handler(make_event("order.paid", {"id": 4}, deliveries=3))
    assert (handler.events[0].resource_id, handler.events[0].deliveries) == ("4", 3)


async def test_an_idle_consumer_asks_seldom(monkeypatch):
    asked = 0
    async with BridgeKit() as kit:
        pull = kit.broker.pull

        async def counted(*arguments, **options):
            nonlocal asked
            asked += 1
            return await pull(*arguments, **options)

        monkeypatch.setattr(kit.broker, "pull", counted)
        heard = asyncio.Event()

        async def handle(event):
            heard.set()

        async with kit.bridge.consumer(handle):
            await asyncio.sleep(3600)
            assert 0 < asked <= 3600
            await kit.tell(event_type="user.created", payload={"id": 1})
            async with asyncio.timeout(1.0):
                await heard.wait()
