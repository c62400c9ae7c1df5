"""`session()`: a Spark session with defaults that suit one machine and do no harm on many."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.spark.reasons import reason_of
from penstock.spark.session.class_file import class_options
from penstock.spark.session.connect import check_remote
from penstock.spark.session.java import java_home, scratch
from penstock.spark.session.launching import heeding_ctrl_c
from penstock.spark.session.master import check_master
from penstock.spark.session.python import interpreter
from penstock.spark.session.quiet import STACK, say_once
from penstock.spark.sink_counts import PLACE, counts_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def session(
    app_name: str,
    master: str | None = None,
    *,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    ui: bool = False,
    log_level: str = "WARN",
) -> SparkSession:
    """A session, made or found.

    `master`: `local[*]` by default; `local-cluster[2,1,1024]`, `spark://HOST:PORT`… `remote`: a
    Connect server, `sc://HOST:PORT`, or `local[2]` to start one. `config`: settings that win over
    these defaults. On one machine everything listens on loopback, executors must know a secret
    that is made here, and temporary files go to a folder of this user's own. `ui`: Spark's page.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise FailedPreconditionError(
            "PySpark is not installed; install it with: pip install 'penstock[spark]'"
        ) from None
    if remote is not None and master is not None:
        raise InvalidArgumentError("Give session() a master or a remote, not both")
    if remote is not None:
        check_remote(remote)
    builder = SparkSession.builder.appName(app_name)
    if remote is not None and remote.startswith("sc://"):
        return _configured(builder.remote(remote), config or {}).getOrCreate()
    address = remote or master_of(master)
    check_master(address)
    settings = {**defaults(address, ui=ui), **(config or {})}
    builder = builder.remote(address) if remote is not None else builder.master(address)
    _import_meanwhile()
    with _environment(address), heeding_ctrl_c(), _telling_why_not(address):
        made = _configured(builder, settings).getOrCreate()
        if remote is None:
            made.sparkContext.setLogLevel(log_level)
            say_once(made)
    return made


@contextmanager
def _telling_why_not(master: str) -> Iterator[None]:
    """One line about a Spark that does not start, after the pages of its JVM."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise FailedPreconditionError(
            f"Spark does not start on {master} ({reason_of(error)}); what it said before is why"
        ) from error


def _import_meanwhile() -> None:
    """Pandas, in a thread: PySpark imports it, for a second, once its JVM is there, and until then
    there is time to. NumPy before: it starts threads of its own, and not while the JVM is forked.
    """
    with suppress(ImportError):
        import_module("numpy")
        threading.Thread(target=_import_pandas, name="penstock-import").start()


def _import_pandas() -> None:
    with suppress(ImportError):
        import_module("pandas")


def master_of(given: str | None) -> str:
    """The master that `session` uses when it is given this one."""
    return given or os.environ.get("MASTER") or "local[*]"


def activate(spark: SparkSession) -> None:
    """Let this thread start queries with `format("penstock")` as their sink.

    Spark looks up sinks through the session of the current thread, which is set only in the thread
    that made it. A Connect session needs nothing.
    """
    if hasattr(spark, "_jsparkSession"):
        java: Any = spark._jvm
        java.SparkSession.setActiveSession(spark._jsparkSession)


def renew_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Let what is loaded next share nothing of Spark's with what was loaded before.

    Spark 4.3 keeps one function for all uses of a source that registered itself. Each query that
    begins writes into a map of it, while others read it for their tasks: two at the same moment
    damage the map, and from then on every batch of all of them fails with `Task not serializable`.
    A source that is registered again has a function, and a map, of its own.
    """
    spark.dataSource.register(source)


def add_modules(spark: SparkSession, files: Iterable[str]) -> None:
    """Let tasks import what is in these files: `.py`, `.zip`, `.whl`."""
    for file in files:
        if not Path(file).exists():
            raise InvalidArgumentError(f"There is no file {file!r} to give to tasks")
        if hasattr(spark, "_jsparkSession"):
            spark.sparkContext.addPyFile(file)
        else:
            spark.addArtifacts(file, pyfile=True)


def defaults(master: str, *, ui: bool = False) -> dict[str, str]:
    """The settings `session()` begins with."""
    settings = {
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A Python process of Spark's that is slow to start, because the machine is busy, is not
        # one that is lost; the usual 15 s make it so.
        "spark.python.authenticate.socketTimeout": "120s",
        # Spark puts these before the extra ones, so whoever gives some has both.
        "spark.driver.defaultJavaOptions": f"{STACK} {class_options()}".strip(),
    }
    if _is_one_machine(master):
        settings |= {
            # A cluster has places of its own for these, which all of its machines see.
            "spark.local.dir": str(scratch()),
            "spark.sql.warehouse.dir": str(scratch() / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # With a secret that Spark makes for itself; a local cluster's is in its own file.
            "spark.authenticate": "true",
            # The default forks processes for every file it writes on a local disk.
            "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        }
    return settings


@contextmanager
def _environment(master: str) -> Iterator[None]:
    """What Spark's launchers read, for as long as it takes to start them. What Spark sets
    meanwhile, that Connect is used for instance, stays."""
    ours = environment(master, os.environ) | {PLACE: str(counts_file())}
    # Spark starts many Python processes. One that may not keep compiled modules compiles PySpark,
    # pandas and the rest each time, for seconds; here they are kept out of everybody's way.
    before = {name: os.environ.get(name) for name in (*ours, _NO_BYTECODE)}
    os.environ.update(ours)
    os.environ.pop(_NO_BYTECODE, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def environment(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variables for Spark's processes; what is given already is left alone, but for a
    JAVA_HOME that is too old."""
    python = given.get("PYSPARK_PYTHON") or interpreter(one_machine=_is_one_machine(master))
    wanted = {
        "PYSPARK_PYTHON": python,
        # Tasks that read and write topics are started with the driver's, also on executors.
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPYCACHEPREFIX": str(scratch() / "pycache"),
        "SPARK_WORKER_DIR": str(scratch() / "work"),
    }
    if _is_one_machine(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    if master.startswith("local-cluster") and "SPARK_CONF_DIR" not in given:
        wanted["SPARK_CONF_DIR"] = str(_secret_folder())
    # So that the driver finds this interpreter under its name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{given.get('PATH', os.defpath)}"
    return {**wanted, **given, "PATH": path, "JAVA_HOME": str(java_home())}


def _secret_folder() -> Path:
    """Settings with a secret, in a file: everybody on a machine can read the arguments of a
    process, and that is where Spark puts all other settings."""
    folder = Path(tempfile.mkdtemp(prefix="conf-", dir=scratch()))
    file = folder / "spark-defaults.conf"
    file.touch(mode=0o600)
    file.write_text(f"spark.authenticate.secret {secrets.token_urlsafe(32)}\n")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_one_machine(master: str) -> bool:
    return master.startswith("local")


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder
