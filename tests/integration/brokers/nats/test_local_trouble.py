"""`local://` when its server dies or is slow, a user is killed, or the folder is a strange one."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from penstock import PubSub
from penstock.brokers.nats.local import process as server
from penstock.brokers.nats.local.folder import LocalServer
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PenstockError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.testing import eventually
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time


@contextlib.contextmanager
def a_process(code, *words):
    """Another Python, which has said that it is ready; it is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


USER = """
    import sys
    from pathlib import Path
    from penstock.brokers.nats.local.folder import LocalServer
    local = LocalServer(Path(sys.argv[1]))
    local.enter()
    print("ready", flush=True)
    sys.stdin.read()
"""


def publishing(topic, numbers):
    """Publish, again where the server was away."""

    async def publish():
        for number in numbers:
            while True:
                with contextlib.suppress(UnavailableError):
                    await topic.publish_message(b"%d" % number, message_id=f"m{number}")
                    break

    return asyncio.ensure_future(publish())


async def test_a_server_that_died_is_started_again_and_everything_goes_on(tmp_path):
    received = []
    async with PubSub(f"local://{tmp_path}") as pubsub:
        topic = await pubsub.topic("orders").create()
        sub = await topic.subscription("billing").create()

        @sub.on("message")
        def handle(message):
            received.append(message.id)
            message.ack()

        sub.on("error", lambda error: None)
        sub.open()
        local = (await pubsub.broker()).server
        for kill in range(3):
            pid = local.state().pid
            sent = publishing(topic, range(kill * 100, kill * 100 + 100))
            await eventually(lambda least=kill * 100 + 10: len(set(received)) > least)
            os.kill(pid, signal.SIGKILL)
            await sent
            # All may have been sent before that.
            await eventually(lambda before=pid: is_another(local.state(), before))
        await eventually(lambda: len(set(received)) == 300)
        await sub.close()


def is_another(state, pid):
    return state is not None and state.pid != pid


async def test_a_server_that_had_to_take_another_port_is_found(tmp_path):
    async with PubSub(f"local://{tmp_path}") as pubsub:
        topic = await pubsub.topic("orders").create()
        old = (await pubsub.broker()).server.state()
        with (tmp_path / "lock").open("a") as lock, socket.socket() as stranger:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.kill(old.pid, signal.SIGKILL)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await eventually(lambda: binds(stranger, old.port))
            fcntl.flock(lock, fcntl.LOCK_UN)
            await publishing(topic, range(1))
            assert (await pubsub.broker()).server.state().port != old.port


def binds(probe, port):
    with contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        probe.listen()
        return True
    return False


async def test_a_server_that_was_stopped_stays_so_until_somebody_starts_it(tmp_path, caplog):
    async with PubSub(f"local://{tmp_path}") as pubsub:
        topic = await pubsub.topic("orders").create()
        operator = LocalServer(tmp_path)
        assert operator.stop()
        await eventually(lambda: "was stopped" in caplog.text)
        assert operator.state() is None
        await asyncio.to_thread(operator.keep)
        await publishing(topic, range(1))
    assert operator.stop(), "it is kept"


SLOW = """\
#!/bin/sh
for part in 1 2 3 4 5 6 7 8; do
  echo "recovering part $part"
  sleep 0.2
done
exec {binary} "$@"
"""


@pytest.fixture
def slow_server(tmp_path, monkeypatch):
    """A server that recovers its store for longer than one may be silent."""
    script = tmp_path / "slow-server"
    script.write_text(SLOW.format(binary=server.find_binary()))
    script.chmod(0o700)
    monkeypatch.setattr(server, "find_binary", lambda: str(script))
    monkeypatch.setattr(server, "_PATIENCE", 1.2)
    monkeypatch.setattr(server, "_TELL_EVERY", 0.3)
    return script


async def test_a_server_that_gets_on_is_waited_for_and_told_of(tmp_path, slow_server, caplog):
    async with PubSub(f"local://{tmp_path / 'data'}") as pubsub:
        await pubsub.topic("orders").create()
    told = [record for record in caplog.records if "reading its store" in record.message]
    assert len(told) > 1
    assert all(record.levelno == logging.WARNING for record in told)


async def test_who_comes_meanwhile_is_told_that_another_waits(
    tmp_path, slow_server, caplog, monkeypatch
):
    monkeypatch.setattr("penstock.brokers.nats.local.folder._TELL_EVERY", 0.3)
    both = [PubSub(f"local://{tmp_path / 'data'}") for _ in range(2)]
    brokers = await asyncio.gather(*(pubsub.broker() for pubsub in both))
    assert len({broker.server.state().pid for broker in brokers}) == 1
    assert "Waiting for another process" in caplog.text
    await asyncio.gather(*(pubsub.aclose() for pubsub in both))


async def test_a_server_that_does_nothing_is_given_up_and_ended(tmp_path, slow_server):
    slow_server.write_text("#!/bin/sh\nexec sleep 1000\n")
    with pytest.raises(UnavailableError, match="done nothing"):
        async with PubSub(f"local://{tmp_path / 'data'}"):
            pass
    pid = json.loads((tmp_path / "data" / "server.json").read_text())["pid"]
    assert not server.alive(pid)


async def test_opening_that_is_cancelled_need_not_wait_for_the_store(tmp_path, slow_server):
    slow_server.write_text("#!/bin/sh\nwhile true; do echo more; sleep 0.1; done\n")
    opening = asyncio.ensure_future(PubSub(f"local://{tmp_path / 'data'}").broker())
    state = tmp_path / "data" / "server.json"
    await eventually(state.exists)
    pid = json.loads(state.read_text())["pid"]
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not server.alive(pid)


STARTS_SLOWLY = """
    import sys, threading
    from pathlib import Path
    from penstock.brokers.nats.local import process
    from penstock.brokers.nats.local.folder import LocalServer
    process.find_binary = lambda: sys.argv[2]
    local = LocalServer(Path(sys.argv[1]))
    threading.Thread(target=local.enter, daemon=True).start()
    while not (Path(sys.argv[1]) / "server.json").exists():
        pass
    print("ready", flush=True)
    sys.stdin.read()
"""


async def test_whose_starter_was_killed_is_waited_for_by_the_next(tmp_path, slow_server):
    folder = tmp_path / "data"
    with a_process(STARTS_SLOWLY, folder, slow_server) as starter:
        pid = json.loads((folder / "server.json").read_text())["pid"]
        starter.kill()
    async with PubSub(f"local://{folder}") as pubsub:
        assert (await pubsub.broker()).server.state().pid == pid


async def test_a_store_is_never_opened_by_two_servers(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.folder._LETS_GO_WITHIN", 0.1)
    async with PubSub(f"local://{tmp_path}") as pubsub:
        state = tmp_path / "server.json"
        known = state.read_text()
        state.unlink()
        with pytest.raises(UnavailableError, match="not started from here"):
            async with PubSub(f"local://{tmp_path}"):
                pass
        state.write_text(known)
        assert await pubsub.topics() == []


@pytest.mark.parametrize("name", ["jürgen grüße", "日本", 'a "b" $HOME #c \\d', "tab\tand\nline"])
async def test_a_folder_may_have_any_name(tmp_path, name):
    folder = tmp_path / name
    async with PubSub(f"local://{folder}") as pubsub:
        topic = await pubsub.topic("orders").create()
        await topic.publish_message(b"x")
    assert (folder / "data" / "jetstream").is_dir()
    async with PubSub(f"local://{folder}") as pubsub:
        assert await pubsub.topics() == ["orders"]


INNOCENT = """
    import sys
    print("ready", flush=True)
    sys.stdin.read()
"""


async def test_a_process_that_got_the_number_of_a_server_is_left_alone(tmp_path):
    with a_process(INNOCENT) as innocent, NatsServer(tmp_path / "other") as other:
        folder = tmp_path / "data"
        folder.mkdir()
        stale = {"pid": innocent.pid, "port": other.port, "password": "x"}
        (folder / "server.json").write_text(json.dumps(stale))
        assert LocalServer(folder).state() is None
        async with PubSub(f"local://{folder}") as pubsub:
            assert (await pubsub.broker()).server.state().pid != innocent.pid
        (folder / "server.json").write_text(json.dumps(stale))
        assert not LocalServer(folder).stop()
        assert innocent.poll() is None


async def test_a_folder_that_was_moved_from_under_its_server_says_so(tmp_path):
    old, new = tmp_path / "old", tmp_path / "a new one"
    with a_process(USER, old) as user:
        pid = LocalServer(old).state().pid
        user.kill()
    old.rename(new)
    with pytest.raises(FailedPreconditionError, match=r"moved.*\n?penstock server stop") as told:
        async with PubSub(f"local://{new}"):
            pass
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(f"penstock server stop '{new}'")
    assert LocalServer(new).stop()
    assert not server.alive(pid)
    async with PubSub(f"local://{new}") as pubsub:
        assert await pubsub.topics() == []


@pytest.mark.parametrize("what", ["moved", "removed"])
async def test_whoever_loses_the_folder_stops_the_server_all_the_same(tmp_path, what, caplog):
    folder = tmp_path / "data"
    async with PubSub(f"local://{folder}") as pubsub:
        pid = (await pubsub.broker()).server.state().pid
        lose(folder, what)
    assert not server.alive(pid)
    assert "is gone: it was moved or removed" in caplog.text


async def test_a_copy_of_a_folder_has_a_server_of_its_own(tmp_path):
    async with PubSub(f"local://{tmp_path / 'one'}") as one:
        await one.topic("orders").create()
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        async with PubSub(f"local://{tmp_path / 'two'}") as two:
            states = [(await pubsub.broker()).server.state() for pubsub in (one, two)]
            assert states[0].pid != states[1].pid
            await two.topic("others").create()
            assert await one.topics() == ["orders"]


@pytest.mark.parametrize(
    ("folder", "kind", "says"),
    [
        ("{tmp}/file", InvalidArgumentError, "is not a folder"),
        ("{tmp}/file/below", InvalidArgumentError, "is not a folder"),
        ("/sys/penstock", PenstockError, "may write to"),
        ("/sys/kernel", PenstockError, "may write to"),
    ],
)
async def test_what_cannot_be_a_folder_is_told_in_one_line(tmp_path, folder, kind, says):
    (tmp_path / "file").touch()
    with pytest.raises(kind, match=says) as told:
        async with PubSub(f"local://{folder.format(tmp=tmp_path)}"):
            pass
    assert "\n" not in str(told.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_without_permission_is_told_in_one_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionDeniedError, match="may write to"):
        async with PubSub(f"local://{tmp_path}"):
            pass


async def test_the_log_begins_anew_when_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.state._LOG_SIZE", 2000)
    async with PubSub(f"local://{tmp_path}") as pubsub:
        port = (await pubsub.broker()).server.state().port
        for _ in range(60):
            with pytest.raises(PenstockError):
                async with PubSub(f"nats://penstock:wrong@127.0.0.1:{port}"):
                    pass
    logs = list(tmp_path.glob("server.log*"))
    assert 1 < len(logs) <= 4
    assert sum(log.stat().st_size for log in logs) < 12_000


async def test_a_server_ends_soon_after_its_last_user_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.watch.GRACE", 0.3)
    local = LocalServer(tmp_path)
    pid = local.enter().pid
    with a_process(USER, tmp_path) as user:
        local.leave()
        assert server.alive(pid), "it is used"
        await asyncio.sleep(0.8)
        assert server.alive(pid), "it is used"
        user.kill()
    await eventually(lambda: not server.alive(pid))
    await eventually(lambda: not (tmp_path / "server.json").exists())


@pytest.mark.parametrize("what", ["removed", "moved"])
async def test_a_server_ends_soon_after_its_last_user_was_killed_and_its_folder_lost(
    tmp_path, monkeypatch, what
):
    monkeypatch.setattr("penstock.brokers.nats.local.watch.GRACE", 0.3)
    folder = tmp_path / "data"
    async with used_by_another(folder) as (pid, _):
        lose(folder, what)
    await eventually(lambda: not server.alive(pid))


@pytest.mark.parametrize("killed", ["before", "after"])
async def test_the_server_of_a_folder_that_was_made_again_is_not_taken_for_the_one_before(
    tmp_path, monkeypatch, killed
):
    # It is looked at every second.
    monkeypatch.setattr("penstock.brokers.nats.local.watch.GRACE", 2.5)
    folder = tmp_path / "data"
    other = LocalServer(folder)
    async with used_by_another(folder) as (pid, user):
        lose(folder, "removed")
        if killed == "before":
            user.kill()
        state = other.enter()
    assert state.pid != pid
    await eventually(lambda: not server.alive(pid))
    assert state.lives
    other.leave()
    assert not state.lives


async def test_nothing_is_written_into_a_folder_in_whose_place_a_server_was(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.watch.GRACE", 0.3)
    folder = tmp_path / "data"
    async with used_by_another(folder) as (pid, _):
        lose(folder, "removed")
        folder.mkdir()
    await eventually(lambda: not server.alive(pid))
    assert not list(folder.iterdir())


@contextlib.asynccontextmanager
async def used_by_another(folder):
    """The server's process, and the one that alone uses it, which is killed in the end."""
    local = LocalServer(folder)
    pid = local.enter().pid
    with a_process(USER, folder) as user:
        local.leave()
        await eventually(lambda: is_watched(folder))
        await asyncio.sleep(0.5)  # It is looked at before.
        yield pid, user


def lose(folder, what):
    if what == "moved":
        folder.rename(folder.with_name("elsewhere"))
    else:
        shutil.rmtree(folder)


async def test_a_kept_server_outlives_users_that_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.watch.GRACE", 0.1)
    local = LocalServer(tmp_path)
    pid = local.keep().pid
    with a_process(USER, tmp_path) as user:
        user.kill()
    local.enter()
    local.leave()
    await eventually(lambda: not is_watched(tmp_path))
    assert server.alive(pid)
    assert local.stop()


def is_watched(folder):
    with (folder / "watched").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
