"""The commands of docs/cluster.md, run as they stand there, in an empty folder."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from tests.support.nats_scenes import stored
from tests.support.servers import free_port

from penstock.jobs import JobStage

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cluster.md").read_text().partition("\n## On Kubernetes")[0]
# What a client has that was installed with Connect's requirements, and nothing of ours.
CLIENT = (
    "pyspark py4j grpc grpc_status google pandas numpy numpy.libs pyarrow pytz dateutil six.py "
    "tzdata zstandard typing_extensions.py"
)
INSTALL = """#!/bin/sh
for name in {names}; do ln -s {here}/$name client/lib/python*/site-packages/; done
"""
# Spark gives a Python process 10 s to start, which a busy machine does not always manage. What
# runs until it is killed is not tried again.
PATIENCE = """
spark-submit() {
    case "$*" in *copying.py) ;; *) exec env spark-submit "$@" ;; esac
    for n in 1 2 3 4 5 6 7 8; do command spark-submit "$@" && return; done
    return 1
}
"""
JOBS = 15
pytestmark = pytest.mark.timeout(3600)


def commands_of_page():
    return re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def files():
    """Programs of the page, by the names that it gives them."""
    found = re.findall(r"^`(\w+\.py)`:\n\n```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in found] == ["copying.py", "counting.py"]
    return dict(found)


def install_client(folder):
    """As pip would, without asking an index."""
    script = folder / "pip"
    script.write_text(INSTALL.format(names=CLIENT, here=sysconfig.get_path("purelib")))
    script.chmod(0o755)
    return script


def said(folder):
    """What was said last, by the shell and by all that it started."""
    logs = [folder / "log", *sorted((folder / "shared").glob("*.log"))]
    ends = (f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
    return "\n\n".join(ends)


def test_the_page_works_command_by_command(server, postgres, tmp_path):
    folder = tmp_path / "somewhere"
    folder.mkdir()
    for name, text in files().items():
        (folder / name).write_text(text)
    api = free_port()
    where = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "CLUSTER": f"spark://127.0.0.1:{free_port()}",
        "SHARED": str(tmp_path / "shared"),
        "PENSTOCK_URL": server.url,
        "PENSTOCK_DATABASE": postgres.new_database(),
        "CONNECT_PORT": str(free_port()),
    }
    settings, *commands = commands_of_page()
    assert set(re.findall(r"^export (\w+)=", settings, re.MULTILINE)) == set(where)
    script = "".join(commands)
    pip = "client/bin/pip install 'pyspark[connect]==4.3.*' 'pandas<3'"
    assert pip in script
    script = script.replace(pip, str(install_client(tmp_path)))
    # A busy machine takes more than the usual 15 s to start a process.
    (tmp_path / "conf").mkdir()
    patient = "spark.python.authenticate.socketTimeout 300s\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(patient)
    environment = {
        **{name: os.environ[name] for name in ("JAVA_TOOL_OPTIONS",) if name in os.environ},
        **where,
        "PENSTOCK_API__PORT": str(api),
        "PENSTOCK_API_URL": f"http://127.0.0.1:{api}",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }
    with (tmp_path / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-euxo", "pipefail", "-c", PATIENCE + script],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert shell.wait() == 0, said(tmp_path)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert "1000 were copied" in (tmp_path / "log").read_text(errors="replace")
    assert sorted(map(int, stored(server.url, "copied"))) == list(range(1, 1001))
    with psycopg.connect(where["PENSTOCK_DATABASE"]) as connection:
        # The read model of a driver that was just stopped may lack what happened last.
        kept = connection.execute("SELECT stage, count(*) FROM penstock_jobs GROUP BY stage")
        assert kept.fetchall() == [(JobStage.TRANSCRIPT_COMPLETE.value, JOBS)]
    assert len(stored(server.url, "job-events")) == 3 * JOBS
    assert "Stopped between batches." in (tmp_path / "shared" / "driver.log").read_text()
