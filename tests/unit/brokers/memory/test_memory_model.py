"""Random histories of the memory broker against a small model of what it promises.

Invariants: nothing published is lost or invented; what is acked never returns; nobody holds what
another holds; of an ordering key only the earliest unsettled message is on loan; only the latest
ack id of a message is valid; attempts count up by one; a seek brings back exactly what it should.
"""

import asyncio
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from penstock import Draft, PreciseTime
from penstock.brokers.memory import MemoryBroker
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.message import AckResponse, Delivery, Settlement, Verb
from penstock.testing import VirtualClock, VirtualTimeLoop

DEADLINE = 10.0
KEYS = st.sampled_from([None, None, "a", "b"])


@dataclass
class Known:
    """What the model knows of one message."""

    key: str | None
    published_ns: int
    attempts: int = 0
    acked: bool = False
    ack_id: str | None = None
    held_until: float = 0.0
    back_at: float = 0.0


class BrokerHistory(RuleBasedStateMachine):
    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.clock = VirtualClock()
        self.messages: dict[str, Known] = {}
        self.ignored_before_ns = 0

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @initialize(ordering=st.booleans(), exactly_once=st.booleans())
    def begin(self, ordering, exactly_once):
        self.ordering, self.exactly_once = ordering, exactly_once

        async def create() -> MemoryBroker:
            broker = MemoryBroker(self.clock)
            await broker.admin.create_topic(TopicConfig(name="topic", message_retention=10**6))
            await broker.admin.create_subscription(
                SubscriptionConfig(
                    name="sub",
                    topic="topic",
                    ack_deadline=DEADLINE,
                    message_ordering=ordering,
                    enable_exactly_once_delivery=exactly_once,
                )
            )
            return broker

        self.broker = self.run(create())

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5))
    def publish(self, keys):
        async def publish():
            now_ns = self.clock.time_ns()
            drafts = [Draft.of(b"x", ordering_key=key) for key in keys]
            receipts = await self.broker.publish("topic", drafts)
            for key, receipt in zip(keys, receipts, strict=True):
                known = Known(key, now_ns, acked=now_ns < self.ignored_before_ns)
                self.messages[receipt.message_id] = known

        self.run(publish())

    @rule(target=deliveries, count=st.integers(1, 4))
    def pull(self, count):
        async def pull():
            return await self.broker.pull("sub", max_messages=count, max_bytes=1000, wait=0)

        now = self.loop.time()
        taken = self.run(pull())
        available = self.available(now)
        assert len(taken) == min(count, len(available))
        for delivery in taken:
            message_id = delivery.record.message_id
            assert message_id in available
            known = self.messages[message_id]
            known.attempts += 1
            assert delivery.delivery_attempt == known.attempts
            assert delivery.ack_id != known.ack_id
            known.ack_id, known.held_until = delivery.ack_id, now + DEADLINE
        return taken[0] if taken else None

    @rule(target=deliveries)
    def pull_everything(self):
        return self.pull(10**6)

    @rule(delivery=deliveries, verb=st.sampled_from([Verb.ACK, Verb.ACK, Verb.NACK, Verb.REJECT]))
    def settle(self, delivery, verb):
        self._settle(delivery, verb, None)

    @rule(delivery=deliveries, seconds=st.sampled_from([0.5, 5.0, 30.0]))
    def extend(self, delivery, seconds):
        self._settle(delivery, Verb.EXTEND, seconds)

    @rule(delivery=deliveries, seconds=st.sampled_from([1.0, 20.0]))
    def nack_with_delay(self, delivery, seconds):
        self._settle(delivery, Verb.NACK, seconds)

    def _settle(self, delivery: Delivery | None, verb: Verb, seconds: float | None) -> None:
        if delivery is None:
            return

        async def settle():
            return await self.broker.settle("sub", [Settlement(delivery.ack_id, verb, seconds)])

        now = self.loop.time()
        known = self.messages[delivery.record.message_id]
        valid = known.ack_id == delivery.ack_id and known.held_until > now
        [response] = self.run(settle())
        expected = AckResponse.INVALID if self.exactly_once and not valid else AckResponse.SUCCESS
        assert response is expected
        if valid and verb is Verb.EXTEND:
            assert seconds is not None
            known.held_until = now + seconds
        elif valid:
            known.held_until = 0
            known.acked = verb in (Verb.ACK, Verb.REJECT)
            known.back_at = now + (seconds or 0)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.9, 10.0, 25.0]))
    def time_passes(self, seconds):
        self.run(asyncio.sleep(seconds))

    @rule(data=st.data())
    def seek(self, data):
        times = sorted({known.published_ns for known in self.messages.values()})
        since = data.draw(st.sampled_from([0, *times, self.clock_ns() + 1]))
        self.run(self.broker.admin.seek("sub", PreciseTime.from_ns(since)))
        self.ignored_before_ns = since
        for known in self.messages.values():
            known.acked = known.published_ns < since
            known.attempts, known.ack_id, known.held_until, known.back_at = 0, None, 0, 0

    def clock_ns(self) -> int:
        async def read() -> int:
            return self.clock.time_ns()

        return self.run(read())

    @invariant()
    def the_backlog_is_what_is_not_acked(self):
        if not hasattr(self, "broker"):
            return
        status = self.run(self.broker.admin.describe_subscription("sub"))
        unacked = [known for known in self.messages.values() if not known.acked]
        assert status.backlog == len(unacked)
        assert status.leased == sum(k.held_until > self.loop.time() for k in unacked)

    def available(self, now: float) -> set[str]:
        """Unacked, not held, not delayed; with ordering, the first unsettled of its key."""
        free: set[str] = set()
        busy: set[str] = set()
        for message_id, known in self.messages.items():
            if known.acked:
                continue
            blocked = self.ordering and known.key in busy
            if not blocked and known.held_until <= now and known.back_at <= now:
                free.add(message_id)
            if known.key is not None:
                busy.add(known.key)
        return free

    def teardown(self):
        if hasattr(self, "broker"):
            self.run(self.broker.aclose())
        self.loop.close()


BrokerHistory.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, print_blob=True
)
TestBrokerHistory = BrokerHistory.TestCase
