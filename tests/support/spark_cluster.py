"""A standalone Spark cluster on loopback: a master and workers, each a process."""

import json
import os
import signal
import subprocess
import sys
import time
import venv
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.request import urlopen

import pyspark

from penstock.spark.session.java import java_home
from tests.support.servers import free_port

HOME = Path(pyspark.__file__).parent


class SparkCluster:
    """Use it with `with`. The Python of its executors has nothing installed: what tasks import is
    PySpark's own, which comes with Spark, or was shipped."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._page = free_port()
        self._workers = workers
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        venv.create(self.folder / "bare", symlinks=True)
        try:
            self.start_master()
            for number in range(self._workers):
                self.start_worker(number)
            self.wait_for_workers(self._workers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start_master(self) -> None:
        port = self.master.rpartition(":")[2]
        self._start(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", port, "--webui-port", str(self._page)),
        )

    def start_worker(self, number: int) -> None:
        """One core, and room for an executor with half a gigabyte."""
        self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
            *("--work-dir", str(self.folder / f"work-{number}"), self.master),
        )

    def kill(self, name: str) -> None:
        """A process, and its executors, as if their machine was gone."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_worker(self, number: int) -> None:
        self.kill(f"worker-{number}")

    def executors(self) -> dict[int, int]:
        """The JVMs that run tasks now, by the number of their worker."""
        groups = {
            process.pid: int(name.rpartition("-")[2])
            for name, process in self._processes.items()
            if name != "master"
        }
        listed = subprocess.run(
            ["/bin/ps", "-ewwo", "pid,pgid,args"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[1:]
        rows = (line.split(None, 2) for line in listed)
        return {
            groups[int(group)]: int(pid)
            for pid, group, words in rows
            if "CoarseGrainedExecutorBackend" in words and int(group) in groups
        }

    def wait_for_workers(self, count: int, within: float = 300.0) -> None:
        until = time.monotonic() + within
        while self._alive_workers() != count:
            assert time.monotonic() < until, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)

    def _alive_workers(self) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):
            return -1

    def _start(self, name: str, main: str, *arguments: str) -> None:
        home = java_home()
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [home / "bin" / "java", "-Xmx256m", "-cp", f"{HOME}/jars/*", main, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(home),
                start_new_session=True,
            )

    def _environment(self, home: Path) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bare' / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(home),
            "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", ""),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # What Spark's scripts would say; without it a worker looks for a build of Spark.
            "SPARK_SCALA_VERSION": "2.13",
            "HOME": str(self.folder),
        }


def driver_environment() -> dict[str, str]:
    """For a driver that stays on loopback, with the Python of these tests first."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
