"""An emulator of Google Pub/Sub for tests, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from penstock.clock import Clock
from penstock.emulator import Emulator
from penstock.testing.clock import HastyLoop, VirtualClock

_READY_WITHIN = 30.0


class EmulatorInThread:
    """Use it with `with`. `address` is for PUBSUB_EMULATOR_HOST; `speed` makes the emulator's time
    pass faster, so that deadlines and backoffs of many seconds are over soon."""

    def __init__(self, *, project: str = "penstock", speed: float = 1.0, **options: Any) -> None:
        self.project = project
        self._speed = speed
        self._options = options
        self._thread = threading.Thread(target=self._run, name="pubsub-emulator", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_READY_WITHIN):
            raise TimeoutError("The emulator was not ready in time")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_READY_WITHIN)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: HastyLoop(self._speed)) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # With real time the wall's clock is right; with any other it has to follow.
        clock = Clock() if self._speed == 1 else VirtualClock()
        options = {"project": self.project, "clock": clock, **self._options}
        async with Emulator(**options) as emulator:
            self.address = emulator.address
            self._ready.set()
            await self._stop.wait()
