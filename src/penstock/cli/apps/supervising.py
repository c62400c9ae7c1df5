"""Several processes of one app: started, watched, restarted, told to end, waited for."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from penstock.cli.apps.app_process import FAILED, HEARTBEAT, MISTAKEN, Orders, ports
from penstock.cli.apps.log_lines import write_logs
from penstock.cli.apps.pages import Page, serving
from penstock.rules.backoff import Backoff

_log = logging.getLogger("penstock.app")

_BACKOFF = Backoff(initial=0.5, maximum=30.0)
# A process that lasted so long was a good one: what ends it is not what it was started with.
_STEADY = 60.0
# A process that has not told for so long has an event loop that does not turn.
_SILENT = 30 * HEARTBEAT
# To close connections after draining.
_GRACE = 10.0
_LOOK = 0.5


class Worker:
    """One process, and what it last said of itself."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        loop = asyncio.get_running_loop()
        self.process = process
        self.ready = False
        self.heard = loop.time()
        self._pipe = pipe
        os.set_blocking(pipe, False)
        loop.add_reader(pipe, self._hear)

    @classmethod
    async def start(cls, orders: Orders, environment: dict[str, str]) -> Worker:
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "penstock.cli.apps.app_process"),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(theirs,),
                # Ctrl-C is for the supervisor, which tells the others.
                start_new_session=True,
                env=environment,
            )
        finally:
            os.close(theirs)
        if process.stdin is not None:
            # Not as arguments: an address may hold a password.
            told = msgspec.structs.replace(orders, pipe=theirs)
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.close()
        return cls(process, ours)

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            said = os.read(self._pipe, 4096)
            if not said:
                asyncio.get_running_loop().remove_reader(self._pipe)
                return
            self.ready = said.endswith(b"1")
            self.heard = asyncio.get_running_loop().time()

    async def wait(self) -> int:
        code = await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        return code

    def end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class Supervisor:
    """Keeps `count` processes running until told to stop.

    What ends is started again, with growing pauses. A process that says the app itself is wrong
    ends all of them, unless files are watched: then the next change may mend it.
    """

    def __init__(self, orders: Orders, count: int, *, reload: Path | None) -> None:
        self._orders = orders
        self._count = count
        self._reload = reload
        self._workers: dict[int, Worker] = {}
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._code = 0
        self._environment = dict(os.environ)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        async with AsyncExitStack() as stack:
            if self._orders.metrics:
                folder = stack.enter_context(TemporaryDirectory(prefix="penstock-metrics-"))
                self._environment["PROMETHEUS_MULTIPROC_DIR"] = folder
            for port, pages in ports(self._orders, self._health(), self._metrics).items():
                bound = await stack.enter_async_context(serving(pages, self._orders.host, port))
                _log.info("http://%s:%d%s", self._orders.host, bound, " ".join(pages))
            tasks = [asyncio.ensure_future(self._keep(n)) for n in range(self._count)]
            if self._reload is not None:
                watching = asyncio.ensure_future(self._watch(self._reload))
                stack.callback(watching.cancel)
            await asyncio.gather(*tasks)
        return self._code

    def _on_signal(self) -> None:
        if self._stop.is_set():
            for worker in self._workers.values():
                worker.end(signal.SIGKILL)
        self._stop.set()

    # One place, and whoever works there.

    async def _keep(self, place: int) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while not self._stop.is_set():
            began = loop.time()
            changed = self._changed
            worker = await Worker.start(self._worker_orders(), self._environment)
            self._workers[place] = worker
            code = await self._wait(worker, changed)
            del self._workers[place]
            self._forget_metrics(worker)
            if self._stop.is_set():
                self._code = self._code or (FAILED if code else 0)
                return
            if changed.is_set():
                failures = 0
                continue
            if code == MISTAKEN and self._reload is None:
                self._code = code
                self._stop.set()
                return
            failures = 1 if loop.time() - began > _STEADY else failures + 1
            await self._pause(code, worker, failures, changed)

    async def _wait(self, worker: Worker, changed: asyncio.Event) -> int:
        """Until it ends: by itself, or told to, or killed because it did not."""
        ended = asyncio.ensure_future(worker.wait())
        told = [asyncio.ensure_future(one.wait()) for one in (self._stop, changed)]
        await asyncio.wait({ended, *told}, return_when=asyncio.FIRST_COMPLETED)
        for one in told:
            one.cancel()
        if not ended.done():
            worker.end(signal.SIGTERM)
            _, late = await asyncio.wait({ended}, timeout=self._orders.drain + _GRACE)
            if late:
                _log.error("Process %d does not end and is killed", worker.process.pid)
                worker.end(signal.SIGKILL)
        return await ended

    async def _pause(
        self, code: int, worker: Worker, failures: int, changed: asyncio.Event
    ) -> None:
        if code == MISTAKEN:
            _log.error("The app is not right; waiting for a change")
            until = None
        else:
            until = _BACKOFF.delay(failures)
            _log.error(
                "Process %d ended with %d; starting another in %.1f s",
                worker.process.pid,
                code,
                until,
            )
        waiting = [asyncio.ensure_future(one.wait()) for one in (self._stop, changed)]
        await asyncio.wait(waiting, timeout=until, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()

    def _worker_orders(self) -> Orders:
        return msgspec.structs.replace(
            self._orders, health_port=None, metrics_port=None, shared=self._count > 1
        )

    # What is told of them.

    def _health(self) -> dict[str, Page]:
        def live() -> tuple[int, str]:
            now = asyncio.get_running_loop().time()
            silent = [w.process.pid for w in self._workers.values() if now - w.heard > _SILENT]
            return (503, f"silent: {silent}\n") if silent else (200, "alive\n")

        def ready() -> tuple[int, str]:
            count = sum(worker.ready for worker in self._workers.values())
            status = 200 if count == self._count and live()[0] == 200 else 503
            return status, f"{count} of {self._count} ready\n"

        return {"/live": live, "/ready": ready}

    def _metrics(self) -> tuple[int, str]:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        folder = self._environment["PROMETHEUS_MULTIPROC_DIR"]
        MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
        return 200, generate_latest(registry).decode()

    def _forget_metrics(self, worker: Worker) -> None:
        folder = self._environment.get("PROMETHEUS_MULTIPROC_DIR")
        if folder is not None and self._orders.metrics:
            from prometheus_client.multiprocess import mark_process_dead

            mark_process_dead(worker.process.pid, folder)  # type: ignore[no-untyped-call]

    # Changes.

    async def _watch(self, folder: Path) -> None:
        before = await asyncio.to_thread(_times, folder)
        while True:
            await asyncio.sleep(_LOOK)
            now = await asyncio.to_thread(_times, folder)
            if now != before:
                before = now
                _log.info("Files changed; starting anew")
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()


def _times(folder: Path) -> dict[str, float]:
    """When each source file below a folder was written last."""
    found = {}
    for path in _sources(folder):
        with suppress(OSError):
            found[str(path)] = path.stat().st_mtime
    return found


def _sources(folder: Path) -> Iterable[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith((".", "__")) and f != "node_modules"]
        yield from (Path(parent, name) for name in files if name.endswith(".py"))


def supervise(orders: Orders, count: int, *, reload: Path | None) -> int:
    write_logs(orders.log_level, as_json=orders.log_json)
    return asyncio.run(_supervise(orders, count, reload))


async def _supervise(orders: Orders, count: int, reload: Path | None) -> int:
    return await Supervisor(orders, count, reload=reload).run()
