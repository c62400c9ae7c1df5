"""Google Pub/Sub: our emulator beside Google's, and our adapter beside Google's client.

Google's emulator is used where `gcloud` has it installed (component pubsub-emulator); where it is
not, what was measured elsewhere is shown beside ours, marked as such.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, FlowControl, PublisherOptions
from google.pubsub_v1 import PublisherClient as GeneratedPublisher
from google.pubsub_v1 import types

from benchmarks.measure import Figures, Row, Stopwatch, interleaved, ratios, table
from penstock import FlowControl as OurFlowControl
from penstock import ManagedPublisher, Message, PubSub

PROJECT = "bench"
PAYLOAD = bytes(256)
CALL = 500
REPEATS = 3
READY_WITHIN = 60.0
# Of Google's emulator 0.8.20 on another machine: messages a second, seconds, megabytes.
ELSEWHERE = {"ingest": "80-88 k/s", "streaming": "1.9 k/s", "ready": "0.8-4.5 s", "rss": "200-385"}


@dataclass
class Server:
    """An emulator in a process of its own."""

    name: str
    command: list[str]
    port: int
    pid: int = 0
    ready: float = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Server]:
        began = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment()
        )
        try:
            self.pid = process.pid
            self._wait(process, began + READY_WITHIN)
            self.ready = time.perf_counter() - began
            yield self
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)

    def _wait(self, process: subprocess.Popen[bytes], until: float) -> None:
        """Until it answers a call. Looked for by hand: gRPC pauses a second between its looks."""
        while process.poll() is None and time.perf_counter() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.005)
                continue
            with grpc.insecure_channel(self.address) as channel:
                client = GeneratedPublisher(transport=_transport(channel))
                client.list_topics(project=f"projects/{PROJECT}", timeout=30)
            return
        raise RuntimeError(f"{self.name} did not start: {' '.join(self.command)}")

    def rss(self) -> float:
        """Megabytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _environment() -> dict[str, str]:
    """Bytecode is kept, but not in the sources."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "penstock-bench")}


def _transport(channel: Any) -> Any:
    return GeneratedPublisher.get_transport_class()(channel=channel)


def ours() -> Server:
    port = _free_port()
    program = "from penstock.cli.main import main; main()"
    options = ["--port", str(port), "--project", PROJECT]
    return Server("ours", [sys.executable, "-c", program, "emulator", *options], port)


def googles() -> Server | None:
    gcloud, java = shutil.which("gcloud"), shutil.which("java")
    if gcloud is None or java is None:
        return None
    root = Path(gcloud).resolve().parent.parent
    jars = sorted(root.glob("platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"))
    if not jars:
        return None
    port = _free_port()
    command = [java, "-jar", str(jars[-1]), "--host=127.0.0.1", f"--port={port}"]
    version = jars[-1].name.split("-")[3]
    return Server(f"Google's {version}", command, port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OfficialClient:
    """Google's own client, at its best: batches as large as it likes, acks in its own threads."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(
            address,
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        )
        publisher, subscriber = pubsub_v1.PublisherClient, pubsub_v1.SubscriberClient
        self.publisher = publisher(
            batch_settings=BatchSettings(max_messages=1000, max_bytes=5_000_000, max_latency=0.01),
            publisher_options=PublisherOptions(),
            transport=publisher.get_transport_class()(channel=self.channel),
        )
        self.subscriber = subscriber(
            transport=subscriber.get_transport_class()(channel=self.channel)
        )
        self.generated = GeneratedPublisher(transport=_transport(self.channel))
        self.threads = 0
        self._names = 0

    def pair(self) -> tuple[str, str]:
        self._names += 1
        tag = f"{os.getpid()}-{id(self)}-{self._names}"
        topic = f"projects/{PROJECT}/topics/topic-{tag}"
        subscription = f"projects/{PROJECT}/subscriptions/sub-{tag}"
        self.publisher.create_topic(request={"name": topic})
        self.subscriber.create_subscription(request={"name": subscription, "topic": topic})
        return topic, subscription

    def fill(self, topic: str, messages: int, at_once: int = 2) -> float:
        """Calls of 500 messages; seconds a message."""
        request = types.PublishRequest(
            topic=topic, messages=[types.PubsubMessage(data=PAYLOAD)] * CALL
        )
        call = self.channel.unary_unary(
            "/google.pubsub.v1.Publisher/Publish",
            request_serializer=types.PublishRequest.serialize,
            response_deserializer=types.PublishResponse.deserialize,
        )
        watch = Stopwatch()
        flying: list[Any] = []
        for _ in range(messages // CALL):
            flying.append(call.future(request))
            if len(flying) == at_once:
                flying.pop(0).result()
        for one in flying:
            one.result()
        return watch.per(messages)

    def publish(self, messages: int) -> float:
        topic, _ = self.pair()
        watch = Stopwatch()
        futures = [self.publisher.publish(topic, PAYLOAD) for _ in range(messages)]
        for future in futures:
            future.result()
        return watch.per(messages)

    def receive(self, messages: int) -> float:
        topic, subscription = self.pair()
        self.fill(topic, messages)
        done = threading.Event()
        seen = 0

        def handle(message: Any) -> None:
            nonlocal seen
            message.ack()
            seen += 1
            if seen == messages:
                done.set()

        watch = Stopwatch()
        future = self.subscriber.subscribe(
            subscription, handle, flow_control=FlowControl(max_messages=5000)
        )
        assert done.wait(300), f"{seen} of {messages}"
        took = watch.per(messages)
        self.threads = threading.active_count()
        future.cancel()
        future.result(60)
        return took

    def close(self) -> None:
        self.publisher.stop()
        self.channel.close()


class OurClient:
    """The same work through the adapter: one thread, one event loop."""

    def __init__(self, address: str, official: OfficialClient) -> None:
        self.url = f"pubsub://{PROJECT}?emulator={address}"
        self._official = official
        self.threads = 0

    async def publish(self, messages: int) -> float:
        topic, _ = self._official.pair()
        async with PubSub(self.url) as pubsub:
            publisher = ManagedPublisher(
                pubsub, max_in_flight=5000, refill_allowed_at=4999, wait_timeout=60
            )
            publisher.start()
            watch = Stopwatch()
            for _ in range(messages):
                await publisher.publish_async(topic.rpartition("/")[2], PAYLOAD)
            left = await publisher.drain()
            took = watch.per(messages)
            assert not left
            return took

    async def receive(self, messages: int) -> float:
        topic, subscription = self._official.pair()
        await asyncio.to_thread(self._official.fill, topic, messages)
        async with PubSub(self.url) as pubsub:
            sub = pubsub.subscription(
                subscription.rpartition("/")[2], flow_control=OurFlowControl(max_messages=5000)
            )
            done = asyncio.Event()
            seen = 0

            def handle(message: Message) -> None:
                nonlocal seen
                message.ack()
                seen += 1
                if seen == messages:
                    done.set()

            sub.on("message", handle)
            watch = Stopwatch()
            sub.open()
            async with asyncio.timeout(300):
                await done.wait()
            took = watch.per(messages)
            await sub.close()
            return took


async def _client_rows() -> list[Row]:
    """Our adapter beside Google's client, both on our emulator."""
    with ours().running() as server:
        official = OfficialClient(server.address)
        adapter = OurClient(server.address, official)

        def theirs(work: Callable[[int], float], messages: int) -> Any:
            async def run() -> float:
                return await asyncio.to_thread(work, messages)

            return run

        figures = await interleaved(
            REPEATS,
            theirs_publish=theirs(official.publish, 10_000),
            ours_publish=lambda: adapter.publish(10_000),
            theirs_receive=theirs(official.receive, 10_000),
            ours_receive=lambda: adapter.receive(20_000),
        )
        threads = official.threads
        official.close()
    return [
        _faster("publish, our adapter", figures["ours_publish"], figures["theirs_publish"], 2),
        _faster(
            "receive and ack, our adapter", figures["ours_receive"], figures["theirs_receive"], 5
        ),
        Row("threads, Google's client while receiving", f"{threads}", "", "ours: 1 + gRPC's"),
    ]


def _faster(what: str, new: Figures, old: Figures, least: float) -> Row:
    values = ratios(old, new)
    middle = statistics.median(values)
    rates = f"({1 / new.median / 1000:.1f} k/s, theirs {1 / old.median / 1000:.1f})"
    return Row(
        what,
        f"{middle:.1f} x {rates}",
        f"{values[0]:.1f} to {values[-1]:.1f}",
        f"at least {least:g} x",
        middle >= least,
    )


@dataclass
class Measured:
    name: str
    ready: list[float]
    idle: float
    full: float
    ingest: Figures
    streaming: Figures


def _measure(server: Server, found: Measured) -> None:
    with server.running():
        client = OfficialClient(server.address)
        found.ready.append(server.ready)
        found.idle = server.rss()
        topic, _ = client.pair()
        client.fill(topic, 20_000)  # Java runs better once it is warm
        topic, _ = client.pair()
        found.ingest.seconds.append(client.fill(topic, 100_000))
        found.full = server.rss()
        found.streaming.seconds.append(client.receive(10_000))
        client.close()


def _measured() -> list[Measured]:
    """Ours, and Google's if it is there. In turns, one at a time: the machine is small."""
    with ours().running():
        pass  # as installed programs are: compiled
    found = [
        Measured(server.name, [], 0.0, 0.0, Figures("ingest"), Figures("streaming"))
        for server in (ours(), googles())
        if server is not None
    ]
    for _ in range(REPEATS):
        for measured, make in zip(found, (ours, googles), strict=False):
            server = make()
            assert server is not None
            _measure(server, measured)
    return found


def _emulator_rows() -> list[Row]:
    new, *others = _measured()
    old = others[0] if others else None
    ready = statistics.median(new.ready)
    if old is None:
        return [
            Row("calls of 500", f"{1 / new.ingest.median / 1000:.0f} k/s", "", "", None),
            Row("  (Google's emulator, measured elsewhere)", ELSEWHERE["ingest"]),
            Row("streaming pull, Google's client", f"{1 / new.streaming.median / 1000:.1f} k/s"),
            Row("  (Google's emulator, measured elsewhere)", ELSEWHERE["streaming"]),
            Row("start to ready", f"{ready:.2f} s"),
            Row("  (Google's emulator, measured elsewhere)", ELSEWHERE["ready"]),
            Row("memory with 120,000 messages", f"{new.full:.0f} MB", f"{new.idle:.0f} idle"),
            Row("  (Google's emulator, measured elsewhere)", f"{ELSEWHERE['rss']} MB"),
        ]
    theirs = statistics.median(old.ready)
    return [
        _faster(f"calls of 500, against {old.name}", new.ingest, old.ingest, 1),
        _faster("streaming pull + ack, Google's client", new.streaming, old.streaming, 1),
        Row(
            "start to ready",
            f"{ready:.2f} s (theirs {theirs:.2f})",
            "",
            "under a third",
            ready < theirs / 3,
        ),
        Row(
            "memory with 120,000 messages",
            f"{new.full:.0f} MB (theirs {old.full:.0f})",
            f"{new.idle:.0f}, {old.idle:.0f} idle",
            "under half",
            new.full < old.full / 2,
        ),
    ]


async def main() -> bool:
    rows = await asyncio.to_thread(_emulator_rows)
    table("Emulators of Google Pub/Sub, Google's own Python client, 256 bytes", rows)
    more = await _client_rows()
    table("Clients of Google Pub/Sub, on our emulator, 256 bytes", more)
    return all(row.kept is not False for row in [*rows, *more])
