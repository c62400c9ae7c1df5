"""The processes of `test_promises.py`: a producer or a consumer that writes down what it saw.

`python -m chaos.promises produce|consume URL DIARY NAME`. A line of a diary is complete or was
never written: a process that is killed has not said what it did not finish. SIGTERM ends them in
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

from penstock import AckResponse, Flight, ManagedPublisher, Message, PublishRetry, PubSub
from penstock.errors import PenstockError

KEYS = 8
PAUSE = 0.02
RETRY = PublishRetry(attempts=1000, backoff=0.05, maximum_backoff=0.5, deadline=90)


class Diary:
    """Lines of `moment what who`, and what else there is to say, appended in one write each."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, who: str, about: str = "") -> None:
        os.write(self._file, f"{time.monotonic_ns()} {what} {who} {about}\n".encode())


async def produce(url: str, diary: Diary, name: str, stopped: asyncio.Event) -> None:
    async with PubSub(url) as pubsub:
        publisher = ManagedPublisher(
            pubsub, max_in_flight=50, refill_allowed_at=49, retry=RETRY, wait_timeout=5
        )
        born = time.monotonic_ns()
        waiting: set[asyncio.Task[None]] = set()
        async with publisher:
            number = 0
            while not stopped.is_set():
                who = f"{name}-{born}-{number}"
                flight = await publisher.publish_async(
                    "promised", who.encode(), ordering_key=f"{name}-{number % KEYS}", message_id=who
                )
                diary.note("sent", who)
                waiting.add(task := asyncio.ensure_future(_note_ack(flight, diary, who)))
                task.add_done_callback(waiting.discard)
                number += 1
                await asyncio.sleep(PAUSE)
            await publisher.drain(timeout=90)
            await asyncio.gather(*waiting)


async def _note_ack(flight: Flight, diary: Diary, who: str) -> None:
    try:
        await flight.ack
        diary.note("acked", who)
    except PenstockError as error:
        diary.note(f"failed:{type(error).__name__}", who)


async def consume(url: str, diary: Diary, name: str, stopped: asyncio.Event) -> None:
    async with PubSub(url) as pubsub:
        sub = pubsub.subscription("promised-sub")

        async def handle(message: Message) -> None:
            who = message.data.decode()
            diary.note("begun", who, message.ack_id)
            await asyncio.sleep(0.001)
            answer = await message.ack_with_response()
            diary.note("done" if answer is AckResponse.SUCCESS else answer.name, who)

        sub.on("message", handle)
        sub.on("error", lambda error: diary.note("error", type(error).__name__))
        sub.open()
        await stopped.wait()
        await sub.close(timeout=10)


async def main(role: str, url: str, path: str, name: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    work = produce if role == "produce" else consume
    diary = Diary(path)
    # The server may be away when we begin.
    while not stopped.is_set():
        with contextlib.suppress(PenstockError):
            await work(url, diary, name, stopped)
            break
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
