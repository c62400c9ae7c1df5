"""Publishing: what waits together goes together, and the messages of a key one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from penstock.brokers.google.connection import Connection
from penstock.brokers.google.records import refusal_of, size_of, write_draft
from penstock.errors import (
    ClosedError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    UnavailableError,
)
from penstock.googlepubsub.messages import PublishRequest
from penstock.googlepubsub.names import TOPICS, Names
from penstock.message import Draft, PublishFault, Receipt
from penstock.optional_verbs import OnSent

Answer = Receipt | PublishFault
_MOST_MESSAGES = 1000
# Google takes 10 MB; the topic's name and the lengths of things need a little of that.
_MOST_BYTES = 9_900_000
# Calls of one topic under way at once. Messages with a key wait for the call before.
_AT_ONCE, _KEYED_AT_ONCE = 8, 1


class Publishing:
    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._queues: dict[tuple[str, bool], Queue] = {}

    async def publish(
        self, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None = None
    ) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(drafts)
        plain: list[int] = []
        keyed: list[int] = []
        for at, draft in enumerate(drafts):
            refusal = refusal_of(topic, draft)
            if refusal is not None:
                answers[at] = PublishFault(refusal)
            else:
                (plain if draft.ordering_key is None else keyed).append(at)
        jobs = []
        for places, has_key in ((plain, False), (keyed, True)):
            if places:
                queue = self._queue(topic, has_key=has_key)
                tell = None if on_sent is None else partial(_tell, on_sent, places)
                jobs.append((places, queue.add([drafts[at] for at in places], tell)))
        for places, job in jobs:
            for at, answer in zip(places, await job, strict=True):
                answers[at] = answer
        return [_answered(answer) for answer in answers]

    def _queue(self, topic: str, *, has_key: bool) -> Queue:
        queue = self._queues.get((topic, has_key))
        if queue is None:
            resource = self._names.resource(TOPICS, topic)
            queue = Queue(self._connection, topic, resource, has_key=has_key)
            self._queues[topic, has_key] = queue
        return queue

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()
        self._queues.clear()


class _Job:
    """The drafts of one call of ours, answered as the calls to Google that carry them are."""

    __slots__ = ("answers", "done", "drafts", "on_sent", "open")

    def __init__(self, drafts: list[Draft], on_sent: OnSent | None) -> None:
        self.drafts = drafts
        self.on_sent = on_sent
        self.answers: list[Answer | None] = [None] * len(drafts)
        self.open = len(drafts)
        self.done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def answer(self, at: int, answer: Answer) -> None:
        self.answers[at] = answer
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result([_answered(answer) for answer in self.answers])


_Place = tuple[_Job, int]
_job = itemgetter(0)


class Queue:
    """What waits to be published to one topic. A lone message goes at once; what comes while
    calls are under way goes together."""

    def __init__(self, connection: Connection, topic: str, resource: str, *, has_key: bool) -> None:
        self._connection = connection
        self._topic = topic
        self._resource = resource
        self._at_once = _KEYED_AT_ONCE if has_key else _AT_ONCE
        self._waiting: deque[_Place] = deque()
        self._sending: set[asyncio.Task[None]] = set()

    def add(
        self, drafts: list[Draft], on_sent: OnSent | None = None
    ) -> asyncio.Future[list[Answer]]:
        job = _Job(drafts, on_sent)
        self._waiting.extend((job, at) for at in range(len(drafts)))
        self._go_on()
        return job.done

    def _go_on(self) -> None:
        while self._waiting and len(self._sending) < self._at_once:
            # One a call, however many messages it carries; `close` ends them.
            task = asyncio.get_running_loop().create_task(self._send(self._take()))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._go_on()

    def _take(self) -> list[_Place]:
        """As much as one call may carry, in order."""
        batch: list[_Place] = []
        room = _MOST_BYTES
        waiting = self._waiting
        while waiting and len(batch) < _MOST_MESSAGES:
            job, at = waiting[0]
            room -= size_of(job.drafts[at])
            if room < 0 and batch:
                break
            batch.append(waiting.popleft())
        return batch

    async def _send(self, batch: list[_Place]) -> None:
        """Google stores all messages of a call or none. Where it refuses a call for what is in it,
        each half is sent by itself, until what it refuses is alone."""
        calls = [batch]
        try:
            while calls:
                call = calls[0]
                try:
                    ids = await self._stored(call)
                except InvalidArgumentError as error:
                    if len(call) > 1:
                        half = len(call) // 2
                        calls[:1] = [call[:half], call[half:]]
                    else:
                        calls = self._fail(call, error, calls[1:])
                else:
                    for (job, at), message_id in zip(calls.pop(0), ids, strict=True):
                        job.answer(at, Receipt(job.drafts[at].message_id or message_id, 0))
        except BaseException as error:
            self._fail([place for call in calls for place in call], _told(error, self._topic))
            if not isinstance(error, PenstockError):
                raise

    async def _stored(self, call: list[_Place]) -> Sequence[str]:
        """One call of Google's; its messages' ids."""
        request = PublishRequest(topic=self._resource)
        add = request.messages.add
        for job, at in call:
            write_draft(add(), job.drafts[at], self._topic)
        for job, places in groupby(call, _job):
            if job.on_sent is not None:
                job.on_sent([at for _, at in places])
        ids: Sequence[str] = (await self._connection.call("Publish", request)).message_ids
        if len(ids) != len(call):
            raise InternalError(
                f"Google answered {len(ids)} of {len(call)} messages to {self._topic!r}"
            )
        return ids

    def _fail(
        self, failed: list[_Place], error: PenstockError, behind: Sequence[list[_Place]] = ()
    ) -> list[list[_Place]]:
        """What waits behind a message of its key must not overtake it: its publisher is told, and
        begins again from the first. Returns what is left of the calls `behind` it."""
        keys = {job.drafts[at].ordering_key for job, at in failed} - {None}
        for job, at in failed:
            job.answer(at, PublishFault(error))
        self._waiting = deque(self._others(self._waiting, keys, error))
        left = [self._others(call, keys, error) for call in behind]
        return [call for call in left if call]

    def _others(
        self, places: Iterable[_Place], keys: set[str | None], error: PenstockError
    ) -> list[_Place]:
        """Those of other keys."""
        others: list[_Place] = []
        for job, at in places:
            if job.drafts[at].ordering_key in keys:
                job.answer(at, PublishFault(_overtaking(error, self._topic)))
            else:
                others.append((job, at))
        return others

    async def close(self) -> None:
        """Whoever waits is told that we cannot know."""
        waiting, self._waiting = self._waiting, deque()
        closed = ClosedError("This connection to Google Pub/Sub was closed; connect again")
        for job, at in waiting:
            job.answer(at, PublishFault(closed))
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


def _tell(on_sent: OnSent, places: list[int], sent: Sequence[int]) -> None:
    """Of the drafts in these places, some were sent."""
    on_sent([places[at] for at in sent])


def _told(error: BaseException, topic: str) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return UnavailableError(f"Publishing to {topic!r} was broken off; it may be stored or not")


def _overtaking(error: PenstockError, topic: str) -> PenstockError:
    return UnavailableError(
        f"Not sent to {topic!r}: an earlier message of its ordering key failed ({error}); publish "
        "that one again first"
    )


def _answered(answer: Answer | None) -> Answer:
    if answer is None:
        raise InternalError("A message was neither stored nor refused")
    return answer
