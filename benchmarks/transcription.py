"""How fast speech becomes text, by one process and by two side by side."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import wave
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.measure import Figures, Row, interleaved, table
from penstock.media import Transcriber, probe_blocking

FOLDER = Path(__file__).parents[1] / "examples" / "media"
REPEATS = 3
SECONDS = 60
FILES = 4
PROBES = 200

_transcriber = Transcriber(threads=1)


def spoken(path: Path) -> None:
    """A minute of somebody talking without a pause longer than half a second."""
    with wave.open(str(FOLDER / "weather.wav")) as file:
        rate = file.getframerate()
        said = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.resize(said, SECONDS * rate).tobytes())


def prepare(_: int) -> None:
    _transcriber.load()
    # Long enough that each process of the pool gets one.
    time.sleep(0.5)


def work(path: str) -> float:
    return _transcriber.transcribe(path).duration


class Workers:
    """A pool of processes with the model loaded, one thread each."""

    def __init__(self, count: int, path: Path) -> None:
        self._path = str(path)
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
        list(self._pool.map(prepare, range(count)))

    async def run(self) -> float:
        return await asyncio.to_thread(self._run)

    def _run(self) -> float:
        began = time.perf_counter()
        seconds = sum(self._pool.map(work, [self._path] * FILES))
        return (time.perf_counter() - began) / seconds

    def close(self) -> None:
        self._pool.shutdown()


def factor(what: str, figures: Figures, most: float | None = None) -> Row:
    values = sorted(figures.seconds)
    return Row(
        what=what,
        value=f"{figures.median:.3f} ({1 / figures.median:.1f} x)",
        spread=f"{values[0]:.3f} to {values[-1]:.3f}",
        promise=f"at most {most:g}" if most is not None else "",
        kept=figures.median <= most if most is not None else None,
    )


async def probing() -> float:
    def probe_all() -> float:
        began = time.perf_counter()
        for _ in range(PROBES):
            probe_blocking(FOLDER / "river.mp4")
        return (time.perf_counter() - began) / PROBES

    return await asyncio.to_thread(probe_all)


async def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder) / "talk.wav"
        spoken(path)
        workers = [Workers(1, path), Workers(2, path)]
        try:
            figures = await interleaved(
                REPEATS, one=workers[0].run, two=workers[1].run, probe=probing
            )
        finally:
            for each in workers:
                each.close()
    rows = [
        factor("one worker: seconds of work a second of speech", figures["one"], 0.5),
        factor("two workers", figures["two"], 0.4),
        Row(
            "probing a video in a warm guarded child",
            f"{figures['probe'].median * 1e3:.2f} ms",
            promise="at most 20 ms",
            kept=figures["probe"].median <= 0.02,
        ),
    ]
    table("Transcription, tiny.en, int8, one thread a worker", rows)
    return all(row.kept is not False for row in rows)


if __name__ == "__main__":
    asyncio.run(main())
