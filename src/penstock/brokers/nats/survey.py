"""The survey of an ordered subscription: which keys have messages that are with somebody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.keeping import Keeping
from penstock.brokers.nats.key_book import KeyBook
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.errors import PenstockError
from penstock.retrying import Failures, Persistence, keep_doing
from penstock.rules.backoff import Backoff

# How often the server is asked whether what keys wait for is settled.
_ASK_EVERY = 0.5
# What may be with somebody else is looked up by key; beyond so many messages all keys wait.
_MOST_SUSPECTS = 5_000
_UNTIL_ANSWERED = Persistence(
    backoff=Backoff(initial=_ASK_EVERY, maximum=4 * _ASK_EVERY),
    worth_it=lambda error: getattr(error, "retryable", True),
)

_log = logging.getLogger("penstock")


class Survey:
    """Asks the server who has what, and writes it into the book: now if that is not known, and
    again while keys wait for something. A question that is not answered is asked again: until it
    is, keys wait. `on_news` is called when the book may have changed, `on_failure` with what will
    not pass.
    """

    def __init__(
        self,
        consumer: Consumer,
        catalogue: Catalogue,
        log: NatsLog,
        book: KeyBook,
        keeping: Keeping,
        *,
        on_news: Callable[[], object],
        on_failure: Callable[[PenstockError], object],
    ) -> None:
        self.consumer = consumer
        self.needed = True
        """What others have is not known."""
        self._catalogue = catalogue
        self._log = log
        self._book = book
        self._keeping = keeping
        self._on_news = on_news
        self._on_failure = on_failure
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def halt(self) -> None:
        """Until it is known what others have, nobody gets anything with a key."""
        self._book.halted = True
        self._book.doubt_lent()
        self.needed = True

    def rest(self) -> None:
        """Nobody receives: what others have is found out when somebody does."""
        self.needed = True
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def begin(self) -> None:
        """Ask, unless that is being done."""
        if self._asking is None and not self._closed:
            # Owned here: `close` ends it.
            self._asking = asyncio.get_running_loop().create_task(self._ask_until_known())

    def close(self) -> None:
        self._closed = True
        self.rest()

    async def _ask_until_known(self) -> None:
        try:
            await keep_doing(
                self._ask,
                Failures(_UNTIL_ANSWERED),
                until=lambda: self._closed or not (self.needed or self._book.waits),
                on_failure=lambda error, _: _log.debug(
                    "Asking who has messages of %r: %s", self.consumer.name, error
                ),
            )
        except PenstockError as error:
            self._on_failure(error)
        finally:
            # Now, and not a turn of the loop later: what comes meanwhile may need another survey.
            if self._asking is asyncio.current_task():
                self._asking = None
            self._on_news()

    async def _ask(self) -> None:
        if self.needed:
            self.needed, self._book.halted = False, True
            try:
                await self._look_up()
            except BaseException:
                self.needed = True
                raise
            news = True
        else:
            before, away = self._book.ours(), self._book.away
            info = await self._catalogue.info(self.consumer)
            floor = info["ack_floor"]["stream_seq"]
            if not self.needed:
                self._book.compare(info["num_ack_pending"], floor, before)
            news = self._book.away != away
        if news:
            self._on_news()
        if self._book.waits and not self.needed:
            patient = not (self._book.halted or self._book.suspects)
            await asyncio.sleep(10 * _ASK_EVERY if patient else _ASK_EVERY)

    async def _look_up(self) -> None:
        before = self._book.ours()
        question = self._keeping.hearing(asyncio.get_running_loop().time())
        info = await self._catalogue.info(self.consumer)
        self._keeping.heard(question)
        floor, last = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
        if not self._book.is_all(info["num_ack_pending"], before):
            if last - floor > _MOST_SUSPECTS:
                return  # All keys wait until the server knows of no more than we do.
            async for records in self._log.read(self.consumer.config.topic, floor + 1, last):
                for record in records:
                    if record.ordering_key is not None:
                        self._book.suspect(record.sequence, record.ordering_key)
        if not self.needed:
            self._book.go_on()
