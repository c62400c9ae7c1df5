"""What handlers work with: opened once a process, as their pipeline says, while its stages run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from penstock.jobs.settings import JobSettings
from penstock.jobs.store.job_store import ProcessingJobStore


@dataclass(frozen=True, slots=True)
class Tools:
    """What handlers get that want a second argument, unless their pipeline opens something else."""

    settings: JobSettings
    store: ProcessingJobStore


@asynccontextmanager
async def plain_tools(settings: JobSettings, store: ProcessingJobStore) -> AsyncIterator[Tools]:
    yield Tools(settings, store)


def open_tools(
    settings: JobSettings, store: ProcessingJobStore
) -> AbstractAsyncContextManager[Any]:
    """The tools of the pipeline that the settings are for; enter them before its stages."""
    return (settings.pipeline.tools or plain_tools)(settings, store)
