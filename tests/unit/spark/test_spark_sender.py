"""Publishing in a task: what is sent first is stored first."""

import asyncio

from penstock.errors import UnavailableError
from penstock.message import Draft, PublishFault, Receipt
from penstock.spark.options import SinkOptions
from penstock.spark.sink.sender import Sender

OPTIONS = SinkOptions.of({"url": "nats://nowhere"})


class Broker:
    """Stores what it is given when it is given it, and takes its time to say so. `refuses`: rows
    that it does not take the first time."""

    def __init__(self, *refuses):
        self.stored = {}
        self.calls = 0
        self.refuses = set(refuses)

    async def publish(self, topic, drafts):
        self.calls += 1
        answers = [self._take(topic, draft) for draft in drafts]
        await asyncio.sleep(1)
        return answers

    def _take(self, topic, draft):
        if draft.data in self.refuses:
            self.refuses.remove(draft.data)
            return PublishFault(UnavailableError("not now"))
        self.stored.setdefault(topic, []).append(int(draft.data))
        return Receipt(str(draft.message_id), len(self.stored[topic]))


async def send(broker, rows):
    sender = Sender(broker, OPTIONS)
    for at in range(0, len(rows), 10):
        await sender.send(rows[at : at + 10])
    await sender.finish()


def rows(count, topics):
    return [(topics[n % len(topics)], Draft(b"%d" % n)) for n in range(count)]


async def test_rows_of_several_topics_keep_their_order_on_the_way_to_each():
    broker = Broker()
    await send(broker, rows(200, ["a", "b"]))
    assert broker.stored == {"a": list(range(0, 200, 2)), "b": list(range(1, 200, 2))}
    assert broker.calls == 40


async def test_what_was_refused_is_sent_again_before_anything_new():
    broker, sent = Broker(b"8", b"9"), rows(20, ["a"])
    sender = Sender(broker, OPTIONS)
    await sender.send(sent[:10])
    await asyncio.sleep(2)  # Its answer has come.
    await sender.send(sent[10:])
    await sender.finish()
    assert broker.stored == {"a": list(range(20))}


async def test_what_was_refused_is_sent_again_to_its_own_topic():
    broker = Broker(b"3", b"14")
    await send(broker, rows(20, ["a", "b"]))
    assert sorted(broker.stored["a"]) == list(range(0, 20, 2))
    assert sorted(broker.stored["b"]) == list(range(1, 20, 2))
