"""Jobs as they are run: the API, the worker and whoever asks are processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.processes import spent_by
from penstock.cli.event_loop import run
from penstock.collector import look_rarely
from penstock.jobs import JobSettings, JobStage, job_system, load_settings
from penstock.web import create_app, serve

_REQUEST = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_BODY = b'{"mediaType":"audio","source":"a.wav"}'
_STARTS_WITHIN = 60.0


def settings_in(folder: Path) -> JobSettings:
    eager = {"concurrency": 256}
    return load_settings(
        environ={},
        url=f"local://{folder}/broker",
        database=f"sqlite:///{folder}/jobs.db",
        stages={"metadata": eager, "transcription": eager},
    )


class Apart:
    """An API and a worker, each a process, on the jobs in `folder`, which nobody else uses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._numbers: dict[str, int] = {}
        self.cpu: dict[str, float] = {}
        """Seconds of a processor a job, by process, as of the last figure."""

    async def asked(self, jobs: int, clients: int) -> float:
        """The seconds of each, when so many clients ask."""
        return await self._measured(jobs, clients, wait=False)

    async def done(self, jobs: int, clients: int) -> float:
        """The same, until all of them are at their end in the API."""
        async with self.running("worker"):
            await self._none_under_way()
            return await self._measured(jobs, clients, wait=True)

    @asynccontextmanager
    async def running(self, role: str) -> AsyncIterator[None]:
        ready = self._folder / role
        ready.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.job_processes", role, str(self._folder)),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        try:
            async with asyncio.timeout(_STARTS_WITHIN):
                while not ready.exists():  # noqa: ASYNC110 - another process says so
                    await asyncio.sleep(0.05)
            if role == "api":
                self._port = int(ready.read_text())
            self.cpu[role] = 0.0
            self._numbers[role] = process.pid
            yield
        finally:
            self._numbers.pop(role, None)
            process.send_signal(signal.SIGTERM)
            await process.wait()

    async def _measured(self, jobs: int, clients: int, *, wait: bool) -> float:
        before = {role: spent_by(number) for role, number in self._numbers.items()}
        began = time.perf_counter()
        await ask_for(self._port, jobs, clients)
        if wait:
            await self._none_under_way()
        took = time.perf_counter() - began
        for role, number in self._numbers.items():
            self.cpu[role] = (spent_by(number) - before[role]) / jobs
        return took / jobs

    async def _none_under_way(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for stage in (JobStage.QUEUED, JobStage.METADATA_READY):
            ask = f"GET /jobs?limit=1&stage={stage} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            while True:
                writer.write(ask)
                if not json.loads(await _answer(reader, b"200"))["jobs"]:
                    break
                await asyncio.sleep(0.02)
        writer.close()


async def ask_for(port: int, jobs: int, clients: int) -> None:
    """By a client of a few lines: one that does more would measure itself."""
    left = jobs
    request = _REQUEST + b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)

    async def ask() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            writer.write(request)
            await _answer(reader, b"202")
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(ask() for _ in range(clients)))


async def _answer(reader: asyncio.StreamReader, status: bytes) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status), head[:100]
    return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))


async def _api(folder: Path, stop: asyncio.Event) -> None:
    def ready(address: str) -> None:
        _say(folder / "api", address.rpartition(":")[2])

    async with job_system(settings_in(folder)) as system, system.ingesting() as ingestion:
        look_rarely()  # As the commands do.
        await serve(create_app(system, ingestion), "127.0.0.1", 0, on_ready=ready, stop=stop)


async def _worker(folder: Path, stop: asyncio.Event) -> None:
    from benchmarks.jobs import STAGES

    async with job_system(settings_in(folder)) as system, AsyncExitStack() as stack:
        for stage in STAGES:
            await stack.enter_async_context(system.worker(stage))
        look_rarely()
        _say(folder / "worker", "")
        await stop.wait()


def _say(path: Path, text: str) -> None:
    """In one step."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


async def _main(role: str, folder: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await {"api": _api, "worker": _worker}[role](folder, stop)


if __name__ == "__main__":
    run(_main(sys.argv[1], Path(sys.argv[2])))
