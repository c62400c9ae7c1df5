"""What handlers work with is opened as their pipeline says, and no earlier."""

import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.errors import InvalidArgumentError
from penstock.jobs import MEDIA, load_settings
from penstock.jobs.pipeline.declaration import tools_at
from penstock.jobs.tools import Tools, open_tools


@asynccontextmanager
async def hammer(settings, store):
    yield f"hammer for {store}"


def settings_with(tools):
    return load_settings(environ={}, pipeline=replace(MEDIA, name="tooled", tools=tools))


@pytest.mark.parametrize("tools", [hammer, tools_at("tests.unit.jobs.test_tools:hammer")])
async def test_tools_are_given_or_named(tools):
    async with open_tools(settings_with(tools), "a store") as opened:
        assert opened == "hammer for a store"


async def test_handlers_of_a_pipeline_without_tools_get_its_settings_and_its_store():
    settings = settings_with(None)
    async with open_tools(settings, "a store") as opened:
        assert opened == Tools(settings, "a store")


def test_tools_that_are_not_there_are_an_error_that_says_so():
    with pytest.raises(InvalidArgumentError, match="Tools 'nowhere:hammer' cannot be found"):
        open_tools(settings_with(tools_at("nowhere:hammer")), "a store")


def test_whoever_asks_for_jobs_loads_nothing_that_works_on_media():
    heavy = "av faster_whisper pypdf httpx penstock.jobs.media_tools"
    program = (
        f"import sys, penstock.jobs; print([m for m in '{heavy}'.split() if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.strip() == b"[]"
