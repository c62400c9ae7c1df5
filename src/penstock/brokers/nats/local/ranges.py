"""The range log of `local://DIR`."""

from __future__ import annotations

from penstock.brokers.nats.local.folder import LocalServer, folder_of
from penstock.brokers.nats.local.state import ServerState
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.sync.ranges import NatsRangeLog
from penstock.errors import InvalidArgumentError


class LocalRangeLog(NatsRangeLog):
    """Keeps the server running while it is open, and starts it again when it has died."""

    def __init__(self, url: str) -> None:
        self._folder = folder_of(url)
        self._entered: LocalServer | None = None
        super().__init__(self._options)

    def _options(self) -> NatsOptions:
        if not (self._folder / "data").is_dir():
            raise InvalidArgumentError(
                f"There is no local server in {self._folder} on this machine; create its topics "
                "first. With readers on other machines use nats://HOST"
            )
        return NatsOptions.of(self._server().address)

    def _server(self) -> ServerState:
        if self._entered is not None:
            state = self._entered.revive()
            if state is not None:
                return state
            # It was stopped, and we are still here.
            self._entered.leave()
        entering = LocalServer(self._folder)
        state = entering.enter()
        self._entered = entering
        return state

    def close(self) -> None:
        super().close()
        if self._entered is not None:
            self._entered.leave()
            self._entered = None
