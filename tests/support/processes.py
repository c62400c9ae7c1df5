"""Commands of ours in processes of their own."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

PENSTOCK = Path(sys.executable).parent / "penstock"


class Running:
    """A command that keeps running, and what it has said so far. Use it with `with`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / "output.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [PENSTOCK, *words],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[str], object], within: float = 120.0) -> None:
        """Until it has said something that meets it; fails when it has ended before."""
        until = time.monotonic() + within
        while not condition(self.said):
            ended = self.process.poll() is not None
            if (ended or time.monotonic() > until) and not condition(self.said):
                raise AssertionError(f"It {'ended' if ended else 'still runs'}: {self.said}")
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


def page(url: str) -> tuple[int, str]:
    """Status and text of a page; 0 when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
