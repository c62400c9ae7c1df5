"""`penstock provision`: on a broker, and as text for Google's own tools."""

import json
import os
import shutil
import subprocess

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.jobs.provision import provision as command
from penstock.testing.emulator import EmulatorInThread
from tests.support.google_clients import Google

MADE = ["job-metadata", "job-transcription", "job-views"]


@pytest.fixture(scope="module")
def emulator():
    with EmulatorInThread(project="shop") as running:
        yield running


def provision(*words: str, url: str) -> str:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, ["--url", url, *words], catch_exceptions=False).stdout


def subscription(address: str, project: str, name: str) -> dict[str, object]:
    """As it is, but for its project."""
    google = Google(address, project)
    path = f"projects/{project}/subscriptions/{name}"
    found = google.subscriber.get_subscription(request={"subscription": path})
    google.close()
    shown = type(found).to_dict(found)
    return {key: str(value).replace(f"projects/{project}/", "") for key, value in shown.items()}


def test_what_jobs_need_is_made_and_left_alone_the_second_time(emulator):
    url = f"pubsub://shop?emulator={emulator.address}"
    said = provision(url=url)
    assert [line.split()[1] for line in said.splitlines() if line.startswith("sub")] == MADE
    assert "topic job-processing-dead" in said
    found = subscription(emulator.address, "shop", "job-metadata")
    assert found["filter"] == 'attributes.stage = "Queued"'
    assert provision(url=url) == said
    made = json.loads(provision("--json", url=url))
    assert [one["subscription"] for one in made["subscriptions"]] == MADE
    assert "job-processing-dead" in made["topics"] and made["changed"] == []


def test_what_the_settings_say_otherwise_is_changed_and_told(emulator, monkeypatch):
    url = f"pubsub://shop?emulator={emulator.address}"
    said = provision(url=url)
    monkeypatch.setenv("PENSTOCK_STAGES__METADATA__ACK_DEADLINE", "90")
    changed = provision(url=url)
    told = "changed subscription job-metadata: ack_deadline was 60.0, is 90.0\n"
    assert changed == said + told
    assert subscription(emulator.address, "shop", "job-metadata")["ack_deadline_seconds"] == "90"


def test_a_dry_run_opens_nothing_and_writes_both_forms():
    said = provision("--dry-run", url="pubsub://shop?emulator=127.0.0.1:1")
    assert said.count("gcloud pubsub subscriptions create") == len(MADE)
    assert "job-views-spark" not in said
    with_spark = provision("--dry-run", "--spark", "--as", "gcloud", url="pubsub://shop")
    assert "subscriptions create job-views-spark --project=shop" in with_spark
    assert "resource" not in with_spark
    assert said.count('resource "google_pubsub_subscription"') == len(MADE)


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
@pytest.mark.timeout(240)
def test_gcloud_makes_of_it_what_the_adapter_makes(emulator, tmp_path):
    provision(url=f"pubsub://shop?emulator={emulator.address}")
    lines = provision("--dry-run", "--as", "gcloud", url="pubsub://other").splitlines()
    # Every command takes gcloud a while to start: a topic, and the subscription with most options.
    chosen = [line for line in lines if " job-processing " in line or " job-metadata " in line]
    environ = {
        **os.environ,
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB": f"http://{emulator.address}/",
    }
    script = "\n".join(["set -e", *chosen])
    subprocess.run(["/bin/bash", "-c", script], env=environ, check=True, timeout=200)
    made = subscription(emulator.address, "other", "job-metadata")
    assert made == subscription(emulator.address, "shop", "job-metadata")
