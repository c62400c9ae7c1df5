"""Servers that Penstock runs itself: what operators, and those who need one, may ask of them."""

from __future__ import annotations

from typing import Protocol


class ServerState(Protocol):
    """Where a server that runs is."""

    @property
    def pid(self) -> int: ...
    @property
    def port(self) -> int: ...


class Hold(Protocol):
    """Keeps a server running until it is closed or its process has ended, however that ends."""

    def close(self) -> None: ...


class OwnServer(Protocol):
    """A server that Penstock itself runs behind an address, for who operates it. It blocks."""

    def keep(self) -> ServerState:
        """Start it, or find it running, and let it run on when nobody uses it."""
        ...

    def stop(self) -> bool:
        """Stop it, whoever uses it; False when it was not running."""
        ...

    def state(self) -> ServerState | None:
        """The running server; None when it does not run."""
        ...

    def hold(self) -> Hold:
        """Start it, or find it running, and keep it running for as long as this process lives."""
        ...
