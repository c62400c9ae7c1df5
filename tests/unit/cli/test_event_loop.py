"""Commands that keep running take the quicker event loop where there is one."""

import asyncio
import sys

import pytest

from penstock.cli.event_loop import run


async def kind_of_loop():
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_they_run_on_uvloop():
    pytest.importorskip("uvloop")
    assert run(kind_of_loop()) == "uvloop"


def test_without_uvloop_they_run_on_asyncio(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(kind_of_loop()) == "asyncio"
