"""What handlers work with: opened once a process, as their pipeline says, while its stages run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.jobs.pipeline.stage import Stage
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


@runtime_checkable
class Checked(Protocol):
    """Tools that can tell beforehand whether a stage can work with them."""

    async def check_ready(self, stage: str) -> None:
        """Raise what keeps the stage of that name from working here, if anything does."""
        ...


async def check_ready(stage: Stage, tools: object) -> None:
    """Raise what keeps a stage from working here, as far as its tools can tell: before it takes a
    job, for which it would be too late to say so."""
    if stage.takes_tools and isinstance(tools, Checked):
        await tools.check_ready(stage.name)


def open_tools(
    settings: JobSettings, store: ProcessingJobStore
) -> AbstractAsyncContextManager[Any]:
    """The tools of the pipeline that the settings are for; enter them before its stages."""
    return (settings.pipeline.tools or plain_tools)(settings, store)
