"""What is used can be seen, and nothing secret with it."""

import json

import pytest

from penstock.cli.jobs.used_settings import say_used, seen_address
from penstock.jobs import load_settings
from tests.support.processes import command_here

SECRET = "hunter22"  # noqa: S105 - that is the point


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("nats://broker.internal:4222", "nats://broker.internal:4222"),
        (f"nats://{SECRET}@broker", "nats://***@broker"),
        (f"nats://me:{SECRET}@one,me:{SECRET}@two", "nats://***@two"),
        (f"tls://me:{SECRET}@broker?creds={SECRET}", "tls://***@broker"),
        (f"postgresql://jobs:{SECRET}@db/jobs?sslmode=require", "postgresql://***@db/jobs"),
        (f"postgresql://jobs:p/{SECRET}@db/jobs", "postgresql://***"),
        (f"postgresql://jobs:p?{SECRET}@db/jobs", "postgresql://***"),
        (f"postgresql://jobs:p@{SECRET}@db/jobs", "postgresql://***@db/jobs"),
        (f"postgresql://db/jobs?password=a@{SECRET}", "postgresql://***"),
        (f"postgresql://db/jobs?password={SECRET}", "postgresql://db/jobs"),
        ("sqlite:///some folder/jobs.db", "sqlite:///some folder/jobs.db"),
        ("local://./a@b", "local://./a@b"),
        ("pubsub://shop?emulator=127.0.0.1:8085", "pubsub://shop"),
        (SECRET, "***"),
    ],
)
def test_of_an_address_only_what_is_no_secret_is_seen(address, seen):
    assert seen_address(address) == seen


def test_what_is_not_a_default_is_said_in_one_line(capsys):
    settings = load_settings(
        environ={},
        url=f"nats://{SECRET}@broker",
        stages={"metadata": {"concurrency": 9}},
        media={"youtube_api_key": SECRET, "root": "/srv/media"},
        api={"tokens": {f"{SECRET}-{SECRET}": "user-1"}},
    )
    say_used(settings)
    said = capsys.readouterr().out
    assert said == (
        "Settings: url = nats://***@broker, database = sqlite:///penstock.db, "
        "stages.metadata.concurrency = 9, media.root = /srv/media, media.youtube_api_key = ***, "
        "api.tokens = 1 hidden\n"
    )


def test_all_settings_are_shown_with_what_was_set():
    environment = {
        "PENSTOCK_DATABASE": f"postgresql://jobs:{SECRET}@db/jobs",
        "PENSTOCK_URL": "nats://broker",
        "PENSTOCK_API__TOKENS": json.dumps({SECRET: "user-1"}),
    }
    ended = command_here("jobs", "settings", **environment)
    lines = ended.out.splitlines()
    assert 'database = "postgresql://***@db/jobs"  # set' in lines
    assert "stages.metadata.max_attempts = 5" in lines
    told = json.loads(command_here("jobs", "settings", "--json", **environment).out)
    assert told["api.tokens"] == "1 hidden" and told["topics.processing"] == "job-processing"
    assert command_here("jobs", "settings").out.startswith('url = "memory://"\n')
    assert SECRET not in ended.out + json.dumps(told)
