"""Sending settlements: in batches, in order, retried while it makes sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.batching import GroupCommit
from penstock.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from penstock.message import AckResponse, Settlement
from penstock.retrying import Persistence, retry
from penstock.subscribing.source import Source

_BATCH = 1000


class Settler(GroupCommit[Settlement, AckResponse]):
    """Sends the settlements that have gathered whenever the last call has returned.

    A call that fails for a passing reason is repeated as long as `persistence` says; what is
    given up is reported and answered with a code that says why. `on_answers` is told every
    batch with its answers.
    """

    def __init__(
        self,
        source: Source,
        persistence: Persistence,
        on_answers: Callable[[Sequence[Settlement], Sequence[AckResponse]], None],
    ) -> None:
        super().__init__(self._send, most=_BATCH, repeatable=True)
        self._source = source
        self._on_answers = on_answers
        self.persistence = persistence

    async def _send(self, batch: Sequence[Settlement]) -> Sequence[AckResponse]:
        """One answer each, whatever happens."""

        async def settle() -> Sequence[AckResponse]:
            answers = await self._source.settle(batch)
            if len(answers) != len(batch):
                raise InternalError(
                    f"The broker answered {len(answers)} of {len(batch)} settlements of "
                    f"subscription {self._source.name!r}"
                )
            return answers

        try:
            answers = await retry(settle, self.persistence)
        except Exception as error:
            self._source.report(error)
            answers = [_response_to(error)] * len(batch)
        self._on_answers(batch, answers)
        return answers


def _response_to(error: Exception) -> AckResponse:
    match error:
        case PermissionDeniedError():
            return AckResponse.PERMISSION_DENIED
        case InvalidArgumentError():
            return AckResponse.INVALID
        case NotFoundError() | FailedPreconditionError():
            return AckResponse.FAILED_PRECONDITION
        case _:
            return AckResponse.OTHER
