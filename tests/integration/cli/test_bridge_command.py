"""`penstock bridge`, as a person types it, and consumers that are told to end."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from penstock import Bridge, errors
from penstock.cli.bridge.bridge import bridge
from penstock.message import Draft
from penstock.transactional import Arrival, Database, Inbox, Outbox
from tests.support.processes import Running
from tests.support.servers import NatsServer

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


class Commands:
    """The commands of a bridge, told by variables which one it is."""

    def __init__(self, url, database, number):
        self.apps = (f"api{number}", f"worker{number}")
        self.settings = {"url": url, "database_url": database, "stream_name": f"bridge{number}"}
        said = {"app_name": self.apps[0], "destination_app": self.apps[1], **self.settings}
        self.environment = {f"PENSTOCK_BRIDGE_{name.upper()}": said[name] for name in said}

    def __call__(self, *words):
        """In this process: starting another costs more than all that the command does."""
        ran = CliRunner().invoke(bridge, list(words), env={"COLUMNS": "200", **self.environment})
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.exit_code, ran.output

    def bridge(self, **options):
        return Bridge(*self.apps, **self.settings, **options)


@pytest.fixture
def commands(server, tmp_path):
    return Commands(server.url, f"sqlite:///{tmp_path}/app.db", next(_numbers))


def test_provisioning_is_validated_and_repeated_without_a_change(commands):
    code, said = commands("validate")
    assert code == 1 and "problem:" in said
    code, said = commands("provision")
    assert code == 0 and said.count("changed") == 3
    code, said = commands("provision")
    assert code == 0 and "changed" not in said and said.count("as it was") == 3
    code, said = commands("validate")
    assert code == 0 and "everything is there" in said


def test_health_debug_and_a_connection_are_shown_without_secrets(commands):
    code, said = commands("test-connection")
    assert code == 0 and "ms there and back" in said
    code, said = commands("debug")
    assert (
        code == 0 and f"{commands.apps[0]}.sync.{commands.apps[1]}" in said and "connection" in said
    )
    code, said = commands("health")
    assert (code == 0) is json.loads(said)["healthy"]
    commands("provision")
    code, said = commands("health")
    assert code == 0 and json.loads(said)["config"]["app_name"] == commands.apps[0]


def test_a_server_that_is_away_is_an_error_that_says_so(commands):
    with pytest.raises(errors.UnavailableError):
        commands("test-connection", "--url", "nats://127.0.0.1:1")


def test_a_misspelt_variable_is_named(commands):
    commands.environment["PENSTOCK_BRIDGE_STREEM"] = "x"
    with pytest.raises(errors.InvalidArgumentError, match="PENSTOCK_BRIDGE_STREEM"):
        commands("validate")


def test_a_relay_publishes_until_it_is_told_to_end(commands, tmp_path, monkeypatch):
    for name, value in commands.environment.items():
        monkeypatch.setenv(name, value)

    async def publish():
        made = commands.bridge(use_outbox=True, relay=False, lazy_connect=True)
        async with made:
            await made.publish(event_type="user.created", payload={"id": 1}, event_id="e-1")

    asyncio.run(publish())
    code, said = commands("outbox", "list", "--status", "pending")
    assert code == 0 and "e-1" in said
    with Running(tmp_path, "bridge", "relay") as relay:
        relay.wait_for(lambda said: "Publishing to api" in said)
        asyncio.run(_until(commands, "sent"))
        assert relay.end() == 0
        assert "Traceback" not in relay.said
    code, said = commands("outbox", "list", "--status", "sent")
    assert code == 0 and "e-1" in said
    assert commands("outbox", "purge", "--older-than", "1h")[1] == "Deleted 0.\n"
    with pytest.raises(errors.InvalidArgumentError, match="--all"):
        commands("outbox", "retry")
    assert commands("outbox", "retry", "--all")[1] == "0 will be published again.\n"


async def _until(commands, status):
    made = commands.bridge(use_outbox=True, relay=False, lazy_connect=True)
    async with made, asyncio.timeout(120):
        while not await made.outbox.rows(status, limit=1):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "words", [("health",), ("outbox", "list"), ("inbox", "list"), ("outbox", "purge")]
)
def test_what_only_looks_makes_no_database_of_a_misspelt_path(commands, tmp_path, words):
    commands.environment["PENSTOCK_BRIDGE_USE_OUTBOX"] = "yes"
    commands.environment["PENSTOCK_BRIDGE_USE_INBOX"] = "yes"
    with pytest.raises(errors.NotFoundError, match="is that the right path"):
        commands(*words)
    assert list(tmp_path.glob("app.db*")) == []
    (tmp_path / "app.db").touch()
    with pytest.raises(errors.NotFoundError, match="penstock db upgrade --part"):
        commands(*words)


def test_all_that_failed_is_published_again_however_much_it_is(commands):
    async def fail(count):
        async with Database(commands.settings["database_url"]) as database:
            outbox = Outbox(database)
            await outbox.create()
            async with database.transaction() as connection:
                drafts = [Draft(b"{}") for _ in range(count)]
                await outbox.add(connection, commands.settings["stream_name"], drafts)
                await connection.execute(text("UPDATE penstock_outbox SET state = 'dead'"))

    asyncio.run(fail(1500))
    assert commands("outbox", "retry", "--all") == (0, "1,500 will be published again.\n")


def test_the_inbox_is_listed_and_never_purged_within_its_horizon(commands):
    async def receive():
        async with Database(commands.settings["database_url"]) as database:
            inbox = Inbox(database, f"{commands.apps[0]}-workers")
            await inbox.create()
            async with inbox.once(Arrival(event_id="e-7", event_type="user.created")):
                pass

    asyncio.run(receive())
    code, said = commands("inbox", "list")
    assert code == 0 and "e-7" in said and "processed" in said
    with pytest.raises(errors.InvalidArgumentError, match="may be delivered again"):
        commands("inbox", "purge", "--older-than", "1s")
    assert commands("inbox", "purge", "--older-than", "40d") == (0, "Deleted 0.\n")


CONSUMER = """
import asyncio, sys
from penstock import Bridge

async def handle(event):
    print("began", event.event_id, flush=True)
    await asyncio.sleep(0.5)
    print("ended", event.event_id, flush=True)

async def main():
    here, there, url, stream = sys.argv[1:]
    async with Bridge(here, there, url=url, stream_name=stream) as bridge:
        await bridge.consumer(handle).run()
        print("stopped", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_consumer_that_is_told_to_end_finishes_what_it_began(commands, number):
    async def tell():
        made = Bridge(*reversed(commands.apps), **(commands.settings | {"database_url": None}))
        async with made:
            for n in range(3):
                await made.publish(event_type="user.created", payload={"id": n}, event_id=str(n))

    assert commands("provision")[0] == 0
    asyncio.run(tell())
    where = (commands.settings["url"], commands.settings["stream_name"])
    with subprocess.Popen(
        [sys.executable, "-c", CONSUMER, *commands.apps, *where], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "began 0\n"
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert rest == "ended 0\nstopped\n"
