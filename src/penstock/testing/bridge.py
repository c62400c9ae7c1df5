"""For tests of programs that use a bridge: no server, no database, and the other app is you.

    async def test_a_new_user_is_told():
        async with BridgeKit("api", "worker") as kit:
            await register(kit.bridge, "ann@example.com")          # what is tested
            kit.assert_published(event_type="user.created")

            async with kit.bridge.consumer(on_order):              # what is tested
                await kit.tell(event_type="order.paid", payload={"id": 7})
                await kit.processed()

In virtual time (`@pytest.mark.virtual_time`) backoffs and deadlines pass at once. With a database,
give `database_url="sqlite://"` and run in real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from penstock.bridge import Bridge, Envelope, Event
from penstock.bridge.envelope import EventFields, build, parse
from penstock.bridge.naming import Names
from penstock.broker import Admin, Broker, Capabilities, Log
from penstock.clock import Clock
from penstock.connect import connect
from penstock.dead_letters import DeadLetter, Selection
from penstock.errors import ClosedError, UnavailableError
from penstock.message import AckResponse, Delivery, Draft, PublishFault, Receipt, Settlement


def make_event(
    event_type: str = "user.created",
    payload: Any = None,
    *,
    producer: str = "worker",
    deliveries: int = 1,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Event:
    """An event as a handler would get it, to call the handler with."""
    envelope = build(
        producer=producer, event_type=event_type, payload={"id": 1} if payload is None else payload,
        **fields,
    )  # fmt: skip
    said = {name: getattr(envelope, name) for name in envelope.__struct_fields__}
    return Event(**said, deliveries=deliveries, headers=headers or {}, raw=envelope.encode())


class UnpluggableBroker:
    """A memory broker that keeps what was published, and can be unplugged.

    While it is unplugged everything fails as if the connection were lost: pulls at once, also those
    that wait.
    """

    def __init__(self, clock: Clock) -> None:
        self.project = "penstock"
        self._clock = clock
        self._opened: Broker | None = None
        self.published: list[tuple[str, Draft]] = []
        """Topics and drafts, as they were stored."""
        self._unplugged = asyncio.Event()

    async def open(self) -> None:
        """Before anything else. Idempotent."""
        if self._opened is None:
            self._opened = await connect("memory://", clock=self._clock)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def admin(self) -> Admin:
        return self._inner.admin

    @property
    def log(self) -> Log | None:
        return self._inner.log

    def unplug(self) -> None:
        self._unplugged.set()

    def plug_in(self) -> None:
        self._unplugged.clear()

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        self._check()
        answers = await self._inner.publish(topic, drafts)
        for draft, answer in zip(drafts, answers, strict=True):
            if isinstance(answer, Receipt) and not answer.duplicate:
                self.published.append((topic, draft))
        return answers

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        self._check()
        pulling = asyncio.ensure_future(
            self._inner.pull(
                subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
            )
        )
        unplugged = asyncio.ensure_future(self._unplugged.wait())
        try:
            await asyncio.wait({pulling, unplugged}, return_when=asyncio.FIRST_COMPLETED)
            if not pulling.done():
                self._check()
            return await pulling
        finally:
            pulling.cancel()
            unplugged.cancel()

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        self._check()
        return await self._inner.settle(subscription, settlements)

    async def ping(self) -> float:
        self._check()
        return await self._inner.ping()

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def _inner(self) -> Broker:
        if self._opened is None:
            raise ClosedError("The broker of this test is not open yet; enter its BridgeKit")
        return self._opened

    def _check(self) -> None:
        if self._unplugged.is_set():
            raise UnavailableError("The broker of this test is unplugged")


class BridgeKit:
    """A bridge to test with, and the other end of it. Settings are those of a `Bridge`."""

    def __init__(
        self, app_name: str = "api", destination_app: str = "worker", **settings: Any
    ) -> None:
        self._clock: Clock = settings.pop("clock", None) or Clock()
        self.broker = UnpluggableBroker(self._clock)
        self.bridge = Bridge(
            app_name, destination_app, broker=self.broker, clock=self._clock, **settings
        )

    @property
    def names(self) -> Names:
        return self.bridge.names

    async def __aenter__(self) -> Self:
        await self.broker.open()
        await self.bridge.startup()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.broker.plug_in()
        await self.bridge.aclose()
        await self.broker.aclose()

    # The other app.

    async def tell(self, **event: Unpack[EventFields]) -> Envelope:
        """Publish an event as the other app would."""
        envelope = build(producer=self.names.destination_app, **event)
        await self._send(envelope.draft(self.names.destination_subject))
        return envelope

    async def tell_raw(self, data: bytes, attributes: Mapping[str, str] | None = None) -> None:
        """Publish any bytes where the other app's events come from."""
        await self._send(Draft.of(data, attributes, subject=self.names.destination_subject))

    async def processed(self, within: float = 3600.0) -> None:
        """Wait until everything that was told is acked or in the dead letters."""
        async with asyncio.timeout(within):
            # The broker has no event to wait for.
            while (await self.broker.admin.describe_subscription(self.names.durable)).backlog:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _send(self, draft: Draft) -> None:
        [answer] = await self.broker.publish(self.names.stream_name, [draft])
        if isinstance(answer, PublishFault):
            raise answer.error

    # What was published.

    def published(self) -> list[Envelope]:
        """The events this app published, in order."""
        return [
            parse(draft.data)
            for _, draft in self.broker.published
            if draft.subject == self.names.source_subject
        ]

    def assert_published(
        self,
        *,
        count: int | None = None,
        where: Callable[[Envelope], bool] | None = None,
        **fields: Any,
    ) -> Envelope:
        """An event was published whose fields are these (a payload may have more keys); so often,
        if `count` is given. Returns the first."""
        found = [
            event
            for event in self.published()
            if _matches(event, fields) and (where is None or where(event))
        ]
        if not found or (count is not None and len(found) != count):
            wanted = ", ".join(f"{name}={value!r}" for name, value in fields.items()) or "any"
            said = "\n".join(f"  {event!r} {dict(event.payload)}" for event in self.published())
            raise AssertionError(
                f"Expected {count if count is not None else 'an'} event(s) with {wanted}, found "
                f"{len(found)}. Published were:\n{said or '  nothing'}"
            )
        return found[0]

    def assert_not_published(self, **fields: Any) -> None:
        found = [event for event in self.published() if _matches(event, fields)]
        assert not found, f"Expected no such event, and found {found}"

    async def dead_letters(self) -> list[DeadLetter]:
        """What this app gave up."""
        pubsub = await self.bridge.connection.pubsub()
        letters = pubsub.dead_letters(self.names.dlq_stream).read(Selection(settled=True))
        return [letter async for letter in letters]


def _matches(event: Envelope, fields: Mapping[str, Any]) -> bool:
    for name, wanted in fields.items():
        actual = getattr(event, name)
        if name == "payload":
            if any(key not in actual or actual[key] != value for key, value in wanted.items()):
                return False
        elif actual != wanted:
            return False
    return True
