"""The way to the server from one of Spark's processes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from penstock.brokers.nats.aio.connection import NatsOptions
from penstock.brokers.nats.local.folder import LocalServer
from penstock.brokers.nats.sync.connection import Reconnecting
from penstock.errors import InvalidArgumentError
from penstock.spark.session.keeper import Keeper


class Door:
    """A blocking connection to what `url` names, made when first used.

    For `local://DIR` it keeps the server running while it is open, and starts it again when it
    has died. `first` is for those who may meet a server that is away for a moment: executors.
    `keep`: for those who may be killed.
    """

    def __init__(
        self, url: str, patience: float, *, first: bool = False, keep: bool = False
    ) -> None:
        self._url = url
        self._keep = keep
        self._keeper: Keeper | None = None
        self._local: list[LocalServer] = []
        self.connection = Reconnecting(self._options, patience, first=first)

    def _options(self) -> NatsOptions:
        if urlsplit(self._url).scheme != "local":
            return NatsOptions.of(self._url)
        folder = Path(self._url.partition("://")[2]).expanduser()
        if not (folder / "data").is_dir():
            raise InvalidArgumentError(
                f"There is no local server in {folder} on this machine; create its topics first. "
                "With executors on other machines use nats://HOST"
            )
        state = self._local[-1].state() if self._local else None
        if state is None:
            # What has entered stays: leaving would forget the port others know.
            self._local.append(LocalServer(folder))
            state = self._local[-1].enter()
        if self._keep and self._keeper is None:
            self._keeper = Keeper(folder)
        return NatsOptions.of(f"nats://penstock:{state.password}@127.0.0.1:{state.port}")

    def close(self) -> None:
        self.connection.close()
        for local in self._local:
            local.leave()
        self._local.clear()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
