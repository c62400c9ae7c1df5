"""Whatever happens in a guarded child, the caller gets a result or a MediaError."""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from penstock.media import GuardPool, Limits, MediaError
from penstock.media.guard.confine import landlock_version
from penstock.testing.waiting import eventually
from tests.support import media_misbehaviour as bad

# Long enough for a busy machine; who never ends is given less.
PATIENT = Limits(seconds=30, memory_bytes=256 << 20, output_bytes=10_000)
SHORT = msgspec.structs.replace(PATIENT, seconds=1)


@pytest.fixture
def pool():
    pool = GuardPool(2)
    yield pool
    pool.close()


def reason_of(pool, function, *args, limits=PATIENT, **options):
    with pytest.raises(MediaError) as caught:
        pool.run_blocking(function, *args, limits=limits, **options)
    # A failure never spoils the next call.
    assert pool.run_blocking(bad.echo, "fine") == "fine"
    return caught.value.reason, caught.value.permanent


def test_a_call_returns_what_the_function_returns(pool, tmp_path):
    path = tmp_path / "words"
    path.write_text("some words")
    assert pool.run_blocking(bad.read, media=path) == "some words"
    with path.open("rb") as file:
        assert pool.run_blocking(bad.read, media=file.fileno()) == "some words"


def test_a_warm_child_is_used_again(pool):
    assert pool.run_blocking(bad.own_pid) == pool.run_blocking(bad.own_pid) != os.getpid()


def test_a_child_is_retired_after_its_jobs():
    pool = GuardPool(1, jobs_per_child=2)
    pids = [pool.run_blocking(bad.own_pid) for _ in range(4)]
    pool.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_a_child_finds_modules_where_its_parent_does(pool, tmp_path, monkeypatch):
    (tmp_path / "a_module_of_the_folder.py").write_text("def answer() -> int:\n    return 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    import a_module_of_the_folder

    assert pool.run_blocking(a_module_of_the_folder.answer) == 42


@pytest.mark.parametrize("program", ["/bin/false", "/none"])
def test_a_child_that_does_not_start_is_not_the_files_fault(pool, program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(MediaError) as caught:
        pool.run_blocking(bad.own_pid)
    assert (caught.value.reason, caught.value.retryable) == ("guard_unavailable", True)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (bad.segfault, ("crashed", True)),
        (bad.abort, ("crashed", True)),
        (bad.leave, ("crashed", True)),
        (bad.killed, ("out_of_memory", False)),
        (bad.hoard, ("out_of_memory", True)),
        (bad.wrong_type, ("malformed", True)),
        (bad.garbage, ("crashed", True)),
        (bad.huge_frame, ("crashed", True)),
        (bad.unknown_error, ("malformed", True)),
        (bad.known_error, ("protected", True)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_end_of_a_child_has_a_reason(pool, function, expected):
    assert reason_of(pool, function) == expected


@pytest.mark.parametrize("function", [bad.forever, bad.spin])
def test_a_child_that_does_not_end_is_ended(pool, function):
    assert reason_of(pool, function, limits=SHORT) == ("timeout", False)


def test_a_child_stops_itself_when_nobody_waits_for_it(pool):
    limits = Limits(seconds=20, cpu_seconds=0)
    assert reason_of(pool, bad.spin, limits=limits) == ("timeout", False)


def test_a_result_larger_than_its_limit_is_refused(pool):
    assert reason_of(pool, bad.long_winded, 10_001) == ("too_large", True)


def test_the_text_of_a_librarys_error_is_not_passed_on(pool):
    with pytest.raises(MediaError) as caught:
        pool.run_blocking(bad.unknown_error)
    assert "secret" not in str(caught.value)
    assert "KeyError" in str(caught.value)


@pytest.mark.real_time
async def test_what_a_dead_child_started_dies_with_it(pool):
    stream = pool.stream(bad.leaves_a_process_behind)
    pid = int(next(stream))
    assert alive(pid)
    with pytest.raises(MediaError, match="crashed"):
        next(stream)
    await eventually(lambda: not alive(pid))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_has_no_environment_and_no_descriptors_but_its_own(pool, monkeypatch, tmp_path):
    monkeypatch.setenv("A_SECRET", "x")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert pool.run_blocking(bad.environment) == []
        # Standard input, output and errors (all of them nowhere) and the socket.
        assert len(pool.run_blocking(bad.descriptors)) == 4


def test_a_child_cannot_write_files_or_leave_a_core(pool, tmp_path):
    assert pool.run_blocking(bad.limits) == [0, 0, 64]
    assert reason_of(pool, bad.writes_a_file, str(tmp_path / "x"))[0] == "malformed"
    assert not (tmp_path / "x").exists() or (tmp_path / "x").stat().st_size == 0


def test_a_child_reads_and_runs_nothing_else_where_the_kernel_allows_it(pool, tmp_path):
    if not landlock_version():
        pytest.skip("this kernel does not let us close files off")
    secret = tmp_path / "secret"
    secret.write_text("x")
    for place in (secret, "/etc/passwd", "/proc/self/environ"):
        assert reason_of(pool, bad.reads, str(place)) == ("malformed", True)
    assert pool.run_blocking(bad.reads, os.__file__) > 1000
    assert reason_of(pool, bad.executes, "/bin/true") == ("malformed", True)


def test_a_child_has_no_network_where_the_kernel_allows_it(pool):
    code = (
        "import sys; from tests.support.media_misbehaviour import can_unshare; "
        "sys.exit(not can_unshare())"
    )
    if subprocess.run([sys.executable, "-c", code], check=False).returncode:
        pytest.skip("this kernel does not let us have a network namespace")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert bad.connects(port)
        assert not pool.run_blocking(bad.connects, port)


def test_a_missing_file_a_pipe_and_a_device_are_refused(pool, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert reason_of(pool, bad.read, media=tmp_path / "none")[0] == "not_found"
    assert reason_of(pool, bad.read, media=tmp_path / "pipe")[0] == "forbidden"
    assert reason_of(pool, bad.read, media="/dev/zero")[0] == "forbidden"
    assert reason_of(pool, bad.read, media=tmp_path)[0] == "forbidden"


def test_a_stream_arrives_whole_and_in_order(pool):
    received = b"".join(pool.stream(bad.blocks, 300, 100_000))
    assert received == b"".join(bad.blocks(300, 100_000))


def test_a_stream_waits_for_whoever_reads_it(pool):
    """Longer than its limit, because waiting for the reader is not the child's time."""
    stream = pool.stream(bad.blocks, 50, 100_000, limits=Limits(seconds=1))
    got = len(next(stream))
    time.sleep(2)
    assert got + sum(len(block) for block in stream) == 50 * 100_000


@pytest.mark.parametrize(
    ("function", "args", "limits", "reason"),
    [
        (bad.blocks_then_crash, (3,), PATIENT, "crashed"),
        (bad.blocks_then_hang, (), SHORT, "timeout"),
        (bad.blocks_then_error, (), PATIENT, "malformed"),
    ],
)
def test_a_stream_that_breaks_says_why(pool, function, args, limits, reason):
    with pytest.raises(MediaError) as caught:
        for _ in pool.stream(function, *args, limits=limits):
            pass
    assert caught.value.reason == reason


def test_a_stream_left_early_ends_its_child(pool):
    stream = pool.stream(bad.blocks, 1000, 100_000)
    next(stream)
    stream.close()
    assert pool.run_blocking(bad.echo, "fine") == "fine"


@pytest.mark.real_time
async def test_calls_run_side_by_side_up_to_the_size_of_the_pool():
    pool = GuardPool(2)
    pids = await asyncio.gather(*(pool.run(bad.own_pid) for _ in range(20)))
    pool.close()
    assert 1 <= len(set(pids)) <= 2


@pytest.mark.real_time
async def test_cancelling_a_call_kills_its_child(pool):
    pid = await pool.run(bad.own_pid)
    task = asyncio.create_task(pool.run(bad.forever, limits=Limits(seconds=600)))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not alive(pid))
    assert await pool.run(bad.echo, "fine") == "fine"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_does_not_share_children(pool):
    before = pool.run_blocking(bad.own_pid)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        told = str(pool.run_blocking(bad.own_pid)).encode()
        pool.close()
        os.write(write, told)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        inside = int(file.read())
    os.waitpid(pid, 0)
    assert inside != before == pool.run_blocking(bad.own_pid)


def test_a_media_error_survives_pickling():
    error = MediaError("quota", "later", permanent=False, retry_after=5)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.reason, copy.message, copy.permanent, copy.retry_after) == (
        *("quota", "later", False, 5),
    )
    assert copy.retryable and copy.code == 8
