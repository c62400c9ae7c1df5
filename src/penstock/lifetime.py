"""What is entered and left: `async with`, written once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self


@asynccontextmanager
async def running_beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Work that goes on while this is entered; leaving ends it and waits until it has."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


class AsyncClosing(ABC):
    """Leaving it closes it, however the block ended. Override `__aenter__` to open it."""

    __slots__ = ()

    @abstractmethod
    async def aclose(self) -> None:
        """Release everything. Idempotent, and safe before it was opened."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
