"""`local://`: one server for all who open the folder, gone with the last of them."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from penstock import PubSub
from penstock.brokers.nats.local import process as server
from penstock.brokers.nats.local.folder import LocalServer
from penstock.errors import UnavailableError
from penstock.testing import eventually

pytestmark = pytest.mark.real_time

USER = """
    import asyncio, sys
    from penstock import PubSub
    async def main():
        async with PubSub(f"local://{sys.argv[1]}") as pubsub:
            print("ready", (await pubsub.broker()).server.state().pid, flush=True)
            sys.stdin.readline()
    asyncio.run(main())
"""


def another_process(folder):
    """A process that uses the folder until it is told to end; returns it and the server's pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(USER), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ready, pid = process.stdout.readline().split()
    assert ready == "ready"
    return process, int(pid)


def end(process):
    process.communicate("\n", timeout=240)
    assert process.returncode == 0


async def test_every_process_finds_the_same_server_and_the_last_stops_it(tmp_path):
    first, pid = another_process(tmp_path)
    second, same = another_process(tmp_path)
    assert pid == same
    async with PubSub(f"local://{tmp_path}") as pubsub:
        await pubsub.topic("orders").create()
        end(first)
        assert server.alive(pid)
        assert await pubsub.topics() == ["orders"]
    assert server.alive(pid)
    end(second)
    assert not server.alive(pid)
    assert LocalServer(tmp_path).state() is None


HOLDER = """
    import sys
    from penstock.connect import hold_server
    hold = hold_server(f"local://{sys.argv[1]}")
    print("ready", flush=True)
    if sys.stdin.readline():
        hold.close()
        hold.close()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_server_is_held_until_its_holder_lets_go_or_is_killed(tmp_path, killed):
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "ready\n"
    user, pid = another_process(tmp_path)
    end(user)
    assert server.alive(pid), "another user has left, and it is held"
    if killed:
        holder.kill()
        holder.communicate()
        while server.alive(pid):
            time.sleep(0.02)
    else:
        end(holder)
        assert not server.alive(pid)
    assert LocalServer(tmp_path).state() is None


async def test_what_was_acknowledged_is_there_after_everybody_was_killed(tmp_path):
    async with PubSub(f"local://{tmp_path}") as pubsub:
        topic = await pubsub.topic("orders").create()
        await topic.subscription("billing").create()
        sent = [await topic.publish_message(b"%d" % n) for n in range(20)]
    process, pid = another_process(tmp_path)
    os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    received = []
    async with PubSub(f"local://{tmp_path}") as pubsub:
        async for message in pubsub.subscription("billing"):
            received.append(message.id)
            message.ack()
            if len(received) == 20:
                break
    # Several pulls wait at once and the server feeds them in turn: without an ordering key there
    # is no order among what it sends.
    assert sorted(received) == sorted(sent)


async def test_a_killed_user_leaves_the_server_to_the_next(tmp_path):
    process, pid = another_process(tmp_path)
    process.kill()
    process.communicate()
    assert server.alive(pid)
    async with PubSub(f"local://{tmp_path}") as pubsub:
        assert (await pubsub.broker()).server.state().pid == pid
    assert not server.alive(pid)


async def test_a_state_file_of_a_server_that_is_gone_is_taken_over(tmp_path):
    process, pid = another_process(tmp_path)
    process.kill()
    process.communicate()
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not server.alive(pid))
    assert (tmp_path / "server.json").exists()
    async with PubSub(f"local://{tmp_path}") as pubsub:
        assert (await pubsub.broker()).server.state().pid != pid


async def test_many_that_open_at_once_start_one_server(tmp_path):
    clients = [PubSub(f"local://{tmp_path}") for _ in range(8)]
    brokers = await asyncio.gather(*(client.broker() for client in clients))
    assert len({broker.server.state().pid for broker in brokers}) == 1
    pid = brokers[0].server.state().pid
    await asyncio.gather(*(client.aclose() for client in clients))
    assert not server.alive(pid)


async def test_secrets_are_for_the_owner_alone_and_not_on_the_command_line(tmp_path):
    folder = tmp_path / "data"
    async with PubSub(f"local://{folder}") as pubsub:
        state = (await pubsub.broker()).server.state()
        assert folder.stat().st_mode & 0o077 == 0
        for name in ("server.json", "server.conf"):
            assert (folder / name).stat().st_mode & 0o077 == 0
        command = await asyncio.to_thread(Path(f"/proc/{state.pid}/cmdline").read_bytes)
        assert state.password.encode() not in command
        with pytest.raises(Exception, match="refused"):
            async with PubSub(f"nats://penstock:wrong@127.0.0.1:{state.port}"):
                pass


async def test_a_kept_server_runs_on_until_it_is_stopped(tmp_path):
    local = LocalServer(tmp_path)
    state = local.keep()
    async with PubSub(f"local://{tmp_path}") as pubsub:
        assert (await pubsub.broker()).server.state() == state
    assert state.running
    assert local.stop()
    assert not state.running
    assert not local.stop()


async def test_without_a_server_to_start_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.process.shutil.which", lambda name: None)
    monkeypatch.setattr(
        "penstock.brokers.nats.local.process.sys.executable", str(tmp_path / "python")
    )
    with pytest.raises(UnavailableError, match=r"penstock\[local\]"):
        async with PubSub(f"local://{tmp_path}"):
            pass


@pytest.mark.parametrize("exists", [False, True])
async def test_without_a_server_to_start_nothing_is_made(tmp_path, monkeypatch, exists):
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "new" / "data"
    if exists:
        folder.mkdir(parents=True)
    before = [*tmp_path.rglob("*")]
    with pytest.raises(UnavailableError, match="no nats-server"):
        async with PubSub(f"local://{folder}"):
            pass
    with pytest.raises(UnavailableError, match="no nats-server"):
        LocalServer(folder).keep()
    assert [*tmp_path.rglob("*")] == before
    assert not LocalServer(folder).stop()


async def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.local.state._CONFIG", "nonsense {{ {run}")
    with pytest.raises(UnavailableError, match=r"did not start.*server\.log"):
        async with PubSub(f"local://{tmp_path}"):
            pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_the_messages_of_ten_megabytes_fit(tmp_path):
    async with PubSub(f"local://{tmp_path}") as pubsub:
        topic = await pubsub.topic("large").create()
        sub = await topic.subscription("large-sub").create()
        data = os.urandom(10 * 2**20)
        await topic.publish_message(data, {"k": "v" * 1024})
        async for message in sub:
            assert message.data == data
            message.ack()
            break


async def test_the_last_to_leave_need_not_be_the_one_who_started_it(tmp_path):
    async with PubSub(f"local://{tmp_path}") as pubsub:
        await pubsub.topic("orders").create()
        process, pid = another_process(tmp_path)
    assert server.alive(pid)
    end(process)
    assert not server.alive(pid)


async def test_a_server_that_died_is_found_again_by_its_users(tmp_path):
    async with PubSub(f"local://{tmp_path}") as old:
        topic = await old.topic("orders").create()
        pid = (await old.broker()).server.state().pid
        os.kill(pid, signal.SIGKILL)
        async with PubSub(f"local://{tmp_path}") as new:
            assert (await new.broker()).server.state().pid != pid
            for _ in range(50):
                try:
                    await topic.publish_message(b"x")
                    break
                except UnavailableError:
                    await asyncio.sleep(0.2)
            else:
                raise AssertionError("never found again")


async def test_an_open_that_is_cancelled_leaves_no_server_behind(tmp_path):
    pubsub = PubSub(f"local://{tmp_path}")
    opening = asyncio.ensure_future(pubsub.broker())
    await asyncio.sleep(0.01)
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):  # it may just have been done
        await opening
    await pubsub.aclose()
    assert LocalServer(tmp_path).state() is None


def test_a_password_does_not_show_in_a_repr(tmp_path):
    state = LocalServer(tmp_path).keep()
    try:
        assert state.password not in repr(state)
    finally:
        LocalServer(tmp_path).stop()
