"""What is entered and left: `async with`, written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


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
