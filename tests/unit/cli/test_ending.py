"""Commands that keep running end when they are told to, whatever holds them up."""

import signal
import subprocess
import sys

import pytest

RUN = """
import asyncio, hashlib, os, signal, sys, threading, time
from penstock.cli.jobs.process import run_until_stopped

async def work(stop):
    print("began", flush=True)
    {work}

run_until_stopped(work)
print("in order", flush=True)
"""
WAITS = "await stop.wait()"
DOES_NOT_LISTEN = "await asyncio.sleep(600)"
BLOCKS = "time.sleep(600)"
# Where no Python runs in between, so that only the system hears of a signal. Nobody else is let in
# before that.
COMPUTES = """
    sys.setswitchinterval(600)
    threading.Thread(target=lambda: print("computes", flush=True), daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
REFUSES = """
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass
"""
OTHERS = """
    # Not with `print`, which may be what is interrupted.
    heard = lambda: os.write(1, b"heard\\n")
    {listens}
    print("listens", flush=True)
    await stop.wait()
"""


def started(work, program=RUN):
    words = [sys.executable, "-c", program.format(work=work)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    assert process.stdout.readline() == "began\n"
    return process


def said_by(process):
    try:
        return process.communicate(timeout=60)[0]
    finally:
        process.kill()


def test_one_signal_ends_it_in_order():
    process = started(WAITS)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=120)[0] == "in order\n"
    assert process.returncode == 0


@pytest.mark.parametrize("work", [DOES_NOT_LISTEN, BLOCKS, REFUSES])
def test_two_signals_end_it_whatever_it_does(work):
    process = started(work)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    [line] = said_by(process).splitlines()
    assert line.endswith("Stopped at once: what was in hand will be delivered again")
    assert process.returncode == 1


def test_two_signals_end_it_when_only_the_system_hears_them():
    process = started(COMPUTES)
    assert process.stdout.readline() == "computes\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert "Stopped at once" in said_by(process)
    assert process.returncode == 1


@pytest.mark.parametrize(
    "listens",
    [
        "asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard)",
        "signal.signal(signal.SIGUSR1, lambda *_: heard())",
    ],
)
def test_what_listens_to_other_signals_hears_them_while_nothing_else_happens(listens):
    process = started(OTHERS.format(listens=listens))
    assert process.stdout.readline() == "listens\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGTERM)
    assert said_by(process) == "in order\n"


NO_LOOP = """
import logging, threading, time
from penstock.cli.ending import Ending

logging.basicConfig()
stop = threading.Event()
with Ending(drain=None, code=1) as ending:
    ending.attach_calls(stop=stop.set, cancel=stop.set)
    print("began", flush=True)
    {work}
print("in order", flush=True)
"""


def test_without_an_event_loop_signals_are_heard_as_well():
    process = started("stop.wait()", NO_LOOP)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=120)[0] == "in order\n"
    assert process.returncode == 0
    process = started("time.sleep(600)", NO_LOOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert "Stopped at once" in process.communicate(timeout=120)[0]
    assert process.returncode == 1
