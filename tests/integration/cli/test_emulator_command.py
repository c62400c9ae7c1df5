"""`penstock emulator`, as a process."""

import signal
import subprocess
import sys

import pytest

from penstock.cli.exit_codes import UNAVAILABLE, WRONG_USE
from tests.support.google_clients import Google
from tests.support.processes import command_here


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "emulator"]
    return subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_says_where_it_listens_serves_and_ends_when_asked():
    process = start("--port", "0", "--project", "shop")
    assert process.stdout is not None
    ready, export = process.stdout.readline(), process.stdout.readline()
    address = export.strip().partition("PUBSUB_EMULATOR_HOST=")[2]
    assert ready == f"Server started, listening on {address.rpartition(':')[2]}\n"
    assert address.startswith("127.0.0.1:")
    google = Google(address, "shop")
    topic, sub = google.pair()
    google.publish(topic, "hello")
    assert [m.message.data for m in google.pull(sub)] == [b"hello"]
    google.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_a_port_that_is_taken_is_said_in_one_line():
    first = start("--host-port", "127.0.0.1:0")
    assert first.stdout is not None
    port = first.stdout.readline().split()[-1]
    second = start("--port", port)
    _, said = second.communicate(timeout=20)
    assert second.returncode == UNAVAILABLE
    assert said.splitlines()[-1].startswith(f"penstock: Cannot listen on 127.0.0.1:{port}")
    first.terminate()
    first.communicate(timeout=20)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--broker", "nobody://"), WRONG_USE),
        (("--config", "nowhere.toml"), WRONG_USE),
        (("--port", "many"), WRONG_USE),
        (("--broker", "nats://127.0.0.1:9"), UNAVAILABLE),
    ],
)
def test_what_is_wrong_is_said_by_its_exit_code_as_of_other_commands(words, code):
    ended = command_here("emulator", "--port", "0", *words)
    assert ended.code == code and ended.err.splitlines()[-1].startswith("penstock")


def test_what_only_google_knows_is_kept_where_it_is_told(tmp_path):
    process = start("--port", "0", "--broker", f"local://{tmp_path}/a", "--folder", f"{tmp_path}/b")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=20)
    assert (tmp_path / "b" / "emulator.lock").exists()
