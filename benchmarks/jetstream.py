"""JetStream through Penstock, beside nats-py and a bare socket, on the same server in one run."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from benchmarks.measure import Figures, Row, Stopwatch, Timed, interleaved, ratios, table
from penstock import ManagedPublisher, Message, PreciseTime, PubSub
from penstock.brokers.nats.local import process as server

PAYLOAD = bytes(256)
# What nats-py has in flight unless told otherwise.
WINDOW = 4000
# Where every write is synced a batch has no more than 1000, and syncs are counted by the window.
SYNCED_WINDOW = 512
REPEATS = 7
# Some seconds of publishing: a publisher lives longer than its first second, in which the server
# learns each subject that acks go to.
PUBLISHED = 250_000
READ = 60_000


@asynccontextmanager
async def running(sync: bool) -> AsyncIterator[tuple[int, int]]:
    """A server with file storage in a folder of its own; yields its port and process id."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        config = folder / "server.conf"
        interval = ", sync_interval: always" if sync else ""
        config.write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}/run"\n'
            f'jetstream {{ store_dir: "{folder}/data"{interval} }}\n'
        )
        pid, port = server.start(config, folder / "log", folder / "run")
        try:
            yield port, pid
        finally:
            server.stop(pid)


class Publishers:
    """Ways to publish `messages` to a topic and have all of them acknowledged."""

    def __init__(
        self, port: int, messages: int, window: int = WINDOW, group_commit: bool = False
    ) -> None:
        self.port = port
        self.messages = messages
        self.window = window
        self.url = f"nats://127.0.0.1:{port}" + ("?group_commit=1" if group_commit else "")
        self._runs = 0

    def each_to_its_own(self, way: Timed) -> Timed:
        """To a topic that is new: the server looks each id up among those of the last two minutes,
        and those of the way before would slow down the next."""

        async def measured() -> float:
            async with PubSub(self.url) as pubsub:
                topic = await pubsub.topic("orders").create()
                took = await way()
                await topic.delete()
                return took

        return measured

    async def managed(self) -> float:
        return await self._managed(self.window, self.window - 1)

    async def managed_with_the_defaults(self) -> float:
        return await self._managed(50, 0)

    async def _managed(self, window: int, refill: int) -> float:
        async with PubSub(self.url) as pubsub:
            publisher = ManagedPublisher(
                pubsub, max_in_flight=window, refill_allowed_at=refill, wait_timeout=60
            )
            publisher.start()
            watch = Stopwatch()
            for _ in range(self.messages):
                await publisher.publish_async("orders", PAYLOAD)
            left = await publisher.drain()
            took = watch.per(self.messages)
            assert not left, left[:3]
            return took

    async def nats_py_async(self) -> float:
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        context = client.jetstream(publish_async_max_pending=self.window)
        self._runs += 1
        watch = Stopwatch()
        for n in range(self.messages):
            headers = {"Nats-Msg-Id": f"np-{self._runs}-{n}"}
            await context.publish_async("orders", PAYLOAD, headers=headers)
        await context.publish_async_completed()
        took = watch.per(self.messages)
        await client.close()
        return took

    async def nats_py_one_by_one(self) -> float:
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        context = client.jetstream()
        messages = max(200, self.messages // 20)
        self._runs += 1
        watch = Stopwatch()
        for n in range(messages):
            headers = {"Nats-Msg-Id": f"no-{self._runs}-{n}"}
            await context.publish("orders", PAYLOAD, headers=headers, timeout=60)
        took = watch.per(messages)
        await client.close()
        return took

    async def bare_socket(self) -> float:
        """The floor: pipelined HPUB on a blocking socket, a reply inbox each so that acks can be
        told apart, though here they are only counted."""
        return await self._bare_socket(lambda n: b"bare.inbox.%d" % n)

    async def bare_socket_one_inbox(self) -> float:
        """Below the floor: the server saves a routing decision a message, but nobody can tell
        which message an ack is for."""
        return await self._bare_socket(lambda _: b"bare.inbox.0")

    async def _bare_socket(self, reply_to: Callable[[int], bytes]) -> float:
        self._runs += 1
        return await asyncio.to_thread(_bare_socket, self.port, self.messages, self._runs, reply_to)


# What every ack has once; a read may end inside one.
_SEQUENCE = b'"seq":'


def _bare_socket(port: int, messages: int, run: int, reply_to: Callable[[int], bytes]) -> float:
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.recv(65536)
        wire.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB bare.inbox.> 1\r\nPING\r\n')
        while b"PONG" not in wire.recv(65536):
            pass
        sent = acked = 0
        cut = b""
        watch = Stopwatch()
        while acked < messages:
            room = min(WINDOW - (sent - acked), messages - sent)
            if room >= WINDOW // 4 or (room and sent + room == messages):
                parts = []
                for n in range(sent, sent + room):
                    head = b"NATS/1.0\r\nNats-Msg-Id: bare-%d-%d\r\n\r\n" % (run, n)
                    parts.append(
                        b"HPUB orders %b %d %d\r\n%b%b\r\n"
                        % (reply_to(n), len(head), len(head) + len(PAYLOAD), head, PAYLOAD)
                    )
                wire.sendall(b"".join(parts))
                sent += room
            read = wire.recv(1 << 20)
            assert read, "the server has ended the connection"
            seen = cut + read
            acked += seen.count(_SEQUENCE)
            cut = seen[1 - len(_SEQUENCE) :]
        return watch.per(messages)


class Subscribers:
    """Ways to receive what is in a topic."""

    def __init__(self, port: int, messages: int) -> None:
        self.port = port
        self.messages = messages
        self._runs = 0

    async def penstock(self) -> float:
        self._runs += 1
        async with PubSub(f"nats://127.0.0.1:{self.port}") as pubsub:
            sub = await pubsub.topic("orders").subscription(f"bench-{self._runs}").create()
            await sub.seek(_beginning())
            done = asyncio.Event()
            left = self.messages

            def handle(message: Message) -> None:
                nonlocal left
                message.ack()
                left -= 1
                if not left:
                    done.set()

            sub.on("message", handle)
            watch = Stopwatch()
            sub.open()
            await done.wait()
            took = watch.per(self.messages)
            await sub.close()
            await sub.delete()
            return took

    async def nats_py_fetch(self) -> float:
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        context = client.jetstream()
        self._runs += 1
        config = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL, max_ack_pending=-1
        )
        sub = await context.pull_subscribe("orders", f"np-{self._runs}", config=config)
        messages = self.messages // 2
        got = 0
        watch = Stopwatch()
        while got < messages:
            for message in await sub.fetch(min(500, messages - got), timeout=10):
                await message.ack()
                got += 1
        took = watch.per(messages)
        await client.close()
        return took

    async def log_read(self) -> float:
        async with PubSub(f"nats://127.0.0.1:{self.port}") as pubsub:
            broker = await pubsub.broker()
            assert broker.log is not None
            got = 0
            watch = Stopwatch()
            async for batch in broker.log.read("orders", 1, self.messages):
                got += len(batch)
            assert got == self.messages
            return watch.per(got)


@asynccontextmanager
async def counting_syncs(pid: int) -> AsyncIterator[list[int]]:
    """Counts the server's fsyncs while the block runs; the list stays empty without strace."""
    counts: list[int] = []
    strace = shutil.which("strace")
    if strace is None:
        yield counts
        return
    with tempfile.NamedTemporaryFile() as output:
        calls = "trace=fsync,fdatasync,sync_file_range"
        watcher = await asyncio.create_subprocess_exec(
            *(strace, "-f", "-c", "-e", calls, "-o", output.name, "-p", str(pid)),
            stderr=asyncio.subprocess.PIPE,
        )
        await asyncio.sleep(0.5)
        yield counts
        watcher.send_signal(signal.SIGINT)
        await watcher.wait()
        text = await asyncio.to_thread(Path(output.name).read_text)
        counts += [int(line.split()[3]) for line in text.splitlines() if "sync" in line]


def _beginning() -> PreciseTime:
    return PreciseTime.from_ns(0)


def faster(what: str, ours: Figures, theirs: Figures, least: float | None = None) -> Row:
    """How many times as fast ours is."""
    values = ratios(theirs, ours)
    middle = values[len(values) // 2]
    return Row(
        what=what,
        value=f"{middle:5.2f} x  ({1 / ours.median:,.0f}/s)",
        spread=f"{values[0]:.2f} to {values[-1]:.2f}",
        promise=f"at least {least:g} x" if least is not None else "",
        kept=middle >= least if least is not None else None,
    )


async def main() -> bool:
    rows: list[Row] = []
    async with running(sync=False) as (port, _):
        ways = Publishers(port, PUBLISHED)
        # Those that are compared are neighbours: the machine changes from one second to the next.
        published = {
            "nats_py": ways.nats_py_async,
            "managed": ways.managed,
            "bare": ways.bare_socket,
            "one_inbox": ways.bare_socket_one_inbox,
            "defaults": ways.managed_with_the_defaults,
            "one_by_one": ways.nats_py_one_by_one,
        }
        figures = await interleaved(
            REPEATS, **{name: ways.each_to_its_own(way) for name, way in published.items()}
        )
        managed = figures["managed"]
        rows += [
            faster(
                "managed publisher, against nats-py publish_async", managed, figures["nats_py"], 3
            ),
            faster("the same, against a bare socket", managed, figures["bare"], 0.7),
            faster("and one that cannot tell acks apart", managed, figures["one_inbox"]),
            faster(
                "window of 50, against nats-py one by one",
                figures["defaults"],
                figures["one_by_one"],
                5,
            ),
        ]
        table(f"Publishing to JetStream, {len(PAYLOAD)} B, file storage, window {WINDOW}", rows)
        await _create(port)
        await Publishers(port, READ).managed()
        readers = Subscribers(port, READ)
        figures = await interleaved(
            REPEATS,
            penstock=readers.penstock,
            log=readers.log_read,
            nats_py=readers.nats_py_fetch,
        )
        reading = [
            faster(
                "subscribe, plain handler, ack, against nats-py",
                figures["penstock"],
                figures["nats_py"],
                4,
            ),
            faster("Log.read, against nats-py fetch", figures["log"], figures["nats_py"], 8),
        ]
        table("Receiving from JetStream", reading)
        rows += reading
    async with running(sync=True) as (port, pid):
        await _create(port)
        plain = Publishers(port, 4_000, SYNCED_WINDOW)
        grouped = Publishers(port, 20_000, SYNCED_WINDOW, group_commit=True)
        figures = await interleaved(REPEATS, managed=grouped.managed, nats_py=plain.nats_py_async)
        async with counting_syncs(pid) as syncs:
            await grouped.managed()
        batches = grouped.messages / SYNCED_WINDOW
        synced = [
            faster(
                "managed publisher, against nats-py publish_async",
                figures["managed"],
                figures["nats_py"],
                8,
            )
        ]
        if syncs:
            synced.append(
                Row(
                    "syncs a full window of messages (strace)",
                    f"{sum(syncs) / batches:.1f}",
                    promise="at least 1",
                    kept=sum(syncs) >= batches,
                )
            )
        table("Publishing where the server syncs every write", synced)
        rows += synced
    return all(row.kept is not False for row in rows)


async def _create(port: int) -> None:
    async with PubSub(f"nats://127.0.0.1:{port}") as pubsub:
        await pubsub.topic("orders").create()


if __name__ == "__main__":
    began = time.monotonic()
    asyncio.run(main())
    print(f"\n{time.monotonic() - began:.0f} s")
