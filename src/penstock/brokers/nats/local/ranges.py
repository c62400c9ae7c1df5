"""The range log of `local://DIR`."""

from __future__ import annotations

from penstock.brokers.nats.local.folder import LocalServer, folder_of
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.sync.ranges import NatsRangeLog
from penstock.errors import InvalidArgumentError


class LocalRangeLog(NatsRangeLog):
    """Keeps the server running while it is open, and starts it again when it has died."""

    def __init__(self, url: str) -> None:
        self._folder = folder_of(url)
        self._entered: list[LocalServer] = []
        super().__init__(self._options)

    def _options(self) -> NatsOptions:
        if not (self._folder / "data").is_dir():
            raise InvalidArgumentError(
                f"There is no local server in {self._folder} on this machine; create its topics "
                "first. With readers on other machines use nats://HOST"
            )
        state = self._entered[-1].state() if self._entered else None
        if state is None:
            # What has entered stays: leaving would forget the port others know.
            self._entered.append(LocalServer(self._folder))
            state = self._entered[-1].enter()
        return NatsOptions.of(state.address)

    def close(self) -> None:
        super().close()
        for local in self._entered:
            local.leave()
        self._entered.clear()
