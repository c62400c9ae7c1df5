"""What comes for one request after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from penstock.brokers.nats.aio.quiet import QUIET
from penstock.brokers.nats.protocol.headers import IDLE, pending_of, status_of
from penstock.brokers.nats.protocol.records import Raw, is_last

# A server that has missed so many signs gives none, or somebody on the way does not pass them on.
_SILENCE = 2

HandOver: TypeAlias = Callable[[list[Raw]], bool]
"""Called with what came together, in the turn of the event loop it came in; whether somebody took
it. If not, nobody is asked again."""


class Inbox:
    """Subjects of our own, one a request, and what came in since the last request.

    A pulled message comes with the subject it was published on, so only the subscription says
    that it is ours; a status comes on the subject of the request that it ends.
    """

    def __init__(self, subject: str) -> None:
        self._prefix = subject.encode()
        self._requests = 0
        self.subject = b""
        self.messages: list[Raw] = []
        """Those that nobody has taken."""
        self.came = 0
        """How many came, taken or not."""
        self.asked: Sequence[tuple[bytes, bytes]] = ()
        """Where the last request went, and its payloads."""
        self.wanted = 0
        self.lent = True
        self.status = (0, "")
        self.done: asyncio.Future[None] | None = None
        self.heartbeat = 0.0
        """Seconds after which the server is to say that it has nothing yet; 0: it is not to."""
        self.signs = 0
        """How often it has said so."""
        self.on_sign: Callable[[], None] | None = None
        self.lent_since = 0.0
        """What came last was lent at this time of the event loop or later."""
        self.late_after = 0.0
        """Seconds after that from which on it may be another's; 0: that does not matter."""
        self.quiet_after: float | None = None
        """Seconds without a message after which those that came are enough; None: never."""
        self._watching: asyncio.TimerHandle | None = None
        self.is_cut_short = False
        """The server still has the last request."""
        self.hand_over: HandOver | None = None
        self.is_taken = False
        """Of what came for the last request something was handed over."""
        self._is_due = False
        self.is_caught_up: bool | None = None
        """What came for it to be handed over was one message, and the last there is; None: nothing
        was to be."""
        self.afterwards: Callable[[Callable[[], None]], None] = lambda act: act()
        self.unsubscribe: Callable[[], None] | None = None
        self.on_stray: Callable[[bytes], None] | None = None

    def expect(self, count: int) -> asyncio.Future[None]:
        self._requests += 1
        self.subject = b"%b.%d" % (self._prefix, self._requests)
        self.messages = []
        self.came = 0
        self.wanted = count
        self.status = (0, "")
        self.is_taken = False
        self.is_caught_up = None
        loop = asyncio.get_running_loop()
        self.lent_since = loop.time()
        self.done = loop.create_future()
        return self.done

    def receive(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        done = self.done
        if block and not payload and not reply:
            status = status_of(block)
            if status[0]:
                if done is not None and not done.done() and subject == self.subject:
                    if status[0] == IDLE:
                        # The first so long after the request, and each so long after another: the
                        # server cannot have sent it, or what comes behind it, any earlier.
                        self.lent_since += self.heartbeat
                        self.signs += 1
                        if self.on_sign is not None:
                            self.on_sign()
                    else:
                        self._end(status, pending_of(block), done)
                return
        if done is None or (done.done() and not self._is_about_to_leave):
            if self.on_stray is not None and reply:
                self.on_stray(reply)
            return
        self.messages.append((subject, reply, block, payload))
        self.came += 1
        if done.done():
            return
        if self.hand_over is not None:
            if not self._is_due:
                # Whoever waits for `done` is a turn of the loop away, and perhaps many messages.
                self._is_due = True
                self.afterwards(self._hand_over)
        elif self.came == self.wanted:
            done.set_result(None)
        elif self.quiet_after is not None and self.came == 1:
            self._watch(done, self.quiet_after, lambda: self.came)

    @property
    def _is_about_to_leave(self) -> bool:
        """Whoever waited was cancelled, and has not done yet what there is to do then."""
        return self.done is not None and self.done.cancelled() and self.unsubscribe is not None

    def gather(self) -> asyncio.Future[None]:
        """Keep what still comes, for nobody; until it has all come."""
        self.hand_over = None
        if self.done is None or self.done.cancelled():
            self.done = asyncio.get_running_loop().create_future()
        return self.done

    def leave(self) -> None:
        """Hear of nothing more but what was sent before the server knew."""
        unsubscribe, self.unsubscribe = self.unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def watch_for_signs(self) -> None:
        """Take what came for enough when the server falls silent: whoever asked can ask again, and
        what comes late is not taken for old because nobody said when it was not there yet."""
        if self.done is not None:
            seconds = _SILENCE * self.heartbeat
            self._watch(self.done, seconds, lambda: self.came + self.signs)

    @property
    def is_being_answered(self) -> bool:
        """The server may be about to send for the last request, or have sent only a part."""
        if self.status[0] or self.came >= self.wanted:
            return False
        return bool(self.came) or asyncio.get_running_loop().time() - self.lent_since < QUIET

    @property
    def is_late(self) -> bool:
        """What comes now may have been under way for so long that it is another's."""
        if not self.late_after:
            return False
        return asyncio.get_running_loop().time() - self.lent_since >= self.late_after

    def stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _watch(
        self, done: asyncio.Future[None], seconds: float, progress: Callable[[], int]
    ) -> None:
        """Look now and then whether more has come."""
        seen = progress()

        def look() -> None:
            if done.done():
                return
            if progress() > seen:
                self._watch(done, seconds, progress)
            else:
                self.is_cut_short = True
                done.set_result(None)

        self.stop_watching()
        self._watching = asyncio.get_running_loop().call_later(seconds, look)

    def _end(
        self, status: tuple[int, str], pending: int | None, done: asyncio.Future[None]
    ) -> None:
        """No more will be sent. What was may come later than this all the same: a consumer with
        replicas sends a message once most of them know of it, and a status at once."""
        self.status = status
        self.wanted -= self.wanted if pending is None else pending
        if self.came >= self.wanted and not self._is_due:
            done.set_result(None)

    def _hand_over(self) -> None:
        self._is_due = False
        done, hand_over = self.done, self.hand_over
        if done is None or done.done() or hand_over is None:
            return  # It has ended meanwhile, and who waited for it has what came.
        part, self.messages = self.messages, []
        try:
            if hand_over(part):
                self.is_taken = True
            else:
                self.messages, self.hand_over = part, None
            # Not when several came: then more come at a time, and one by one they would take more
            # requests.
            self.is_caught_up = self.came == 1 and is_last(part[0][1])
        except Exception as error:
            self.fail(error)
        finally:
            if self.came >= self.wanted and not done.done():
                done.set_result(None)

    def fail(self, error: Exception) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # Seen: whoever waits for it is told, if anybody does.
