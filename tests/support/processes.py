"""Commands of ours, in this process and in processes of their own."""

import io
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple, Self
from unittest import mock

from penstock.cli.main import main

PENSTOCK = Path(sys.executable).parent / "penstock"


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


def command(*words: str, **environment: str) -> Ended:
    """`penstock` with these words, to its end, in a process of its own, with no settings but
    these."""
    ran = subprocess.run(
        [PENSTOCK, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=settings(**environment),
    )
    return Ended(ran.returncode, ran.stdout, ran.stderr)


def command_here(*words: str, **environment: str) -> Ended:
    """The same in this process: starting another costs more than all that most commands do.

    A traceback, which a person would see, is raised.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["penstock", *words]),
        mock.patch.dict(os.environ, settings(**environment), clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code: str | int | None = 0
        except SystemExit as end:
            code = end.code
    if isinstance(code, str):
        err.write(f"{code}\n")
        code = 1
    return Ended(code or 0, out.getvalue(), err.getvalue())


def settings(**environment: str) -> dict[str, str]:
    """An environment with these settings and none that somebody has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, "COLUMNS": "120", **environment}


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
