"""Drivers to be killed: `penstock pipeline run`, watched over as a service would be."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Seconds without any sign of life. A busy machine is slow; one that hangs does nothing.
PATIENCE = float(os.environ.get("CHAOS_PATIENCE", "300"))


class Driver:
    """Started again when it ends by itself, as its service would. `ended` counts how often."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.ended = 0
        self._log = folder / "drivers.log"
        self._checkpoints = folder / "checkpoints"
        self._command = [
            *(sys.executable, "-c", "from penstock.cli.main import main; main()"),
            *("pipeline", "run", "--checkpoints", str(self._checkpoints), *words),
        ]
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # Shown by nobody while all is well; kept with the folder of a trial that fails.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                start_new_session=True,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def kill(self) -> None:
        """With its JVM, as if the machine was gone. Python workers notice that nobody speaks to
        them."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill_jvm(self) -> None:
        """Its JVM alone, as the kernel does when memory is short. Python finds out, and ends."""
        assert self._process is not None
        group = str(self._process.pid)
        listed = subprocess.run(
            ["/bin/ps", "-ewwo", "pid,pgid,comm"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[1:]
        rows = (line.split() for line in listed)
        [jvm] = [int(pid) for pid, *its in rows if its == [group, "java"]]
        os.kill(jvm, signal.SIGKILL)

    def stop(self) -> int:
        """End it in order; what it answered."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        return process.wait(600)

    def wait_until(self, condition: Callable[[], object], every: float = 1.0) -> None:
        """As long as there are signs of life: batches, or words in the log."""
        seen, since = self._signs(), time.monotonic()
        while not condition():
            self._watch()
            signs = self._signs()
            if signs != seen:
                seen, since = signs, time.monotonic()
            assert time.monotonic() - since < PATIENCE, f"it hangs:\n{self.said()}"
            time.sleep(every)

    def said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])

    def _watch(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self.ended += 1
            assert self.ended < 10, f"it ends again and again:\n{self.said()}"
            self.start()

    def _signs(self) -> tuple[int, int]:
        batches = sum(len(files) for *_, files in os.walk(self._checkpoints))
        return batches, self._log.stat().st_size
