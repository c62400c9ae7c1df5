"""The same streams with the Ruby implementation at the other end, byte for byte as it speaks."""

import asyncio
import json

import nats
import pytest

from penstock import Bridge
from penstock.dead_letters import Selection
from penstock.testing import eventually

pytestmark = pytest.mark.real_time


def peers_envelope(event_id, app):
    return json.dumps(
        {
            "event_id": event_id,
            "schema_version": 1,
            "event_type": "user.created",
            "producer": app,
            "resource_id": "1",
            "occurred_at": "2024-01-01T00:00:00Z",
            "trace_id": "1f2e3d4c5b6a7988",
            "resource_type": "user",
            "payload": {"id": 1},
        },
        separators=(",", ":"),
    ).encode()


class Peer:
    """What the other implementation does, with a plain client."""

    def __init__(self, client, names):
        self.client, self.js, self.names = client, client.jetstream(), names

    async def publish(self, event_id, data=None):
        body = data or peers_envelope(event_id, self.names.app_name)
        headers = {"nats-msg-id": event_id}
        return await self.js.publish(self.names.source_subject, body, headers=headers)

    async def fetch(self, count=1):
        sub = await self.js.pull_subscribe_bind(
            durable=self.names.durable, stream=self.names.stream_name
        )
        return await sub.fetch(count, timeout=20)

    async def give_up(self, message):
        """Its dead letters: the bytes, every header, and its own."""
        context = {
            "event_id": (message.headers or {}).get("Nats-Msg-Id"),
            "reason": "unrecoverable",
            "error_class": "ArgumentError",
            "error_message": "wrong",
            "deliveries": 1,
            "original_subject": message.subject,
            "sequence": {"stream": message.metadata.sequence.stream, "consumer": 1},
            "consumer": self.names.durable,
            "stream": self.names.stream_name,
            "published_at": "2024-01-01T00:00:00Z",
        }
        headers = {
            **(message.headers or {}),
            "x-dead-letter": "true",
            "x-dlq-reason": "unrecoverable",
            "x-deliveries": "1",
            "x-dlq-context": json.dumps(context),
        }
        ack = await self.js.publish(self.names.dlq_subject, message.data, headers=headers)
        await message.ack()
        return ack


async def peer_of(server, bridge, clients):
    client = await nats.connect(server.url)
    clients.append(client)
    names = bridge.names
    other = Bridge(
        names.destination_app, names.app_name, url=server.url, stream_name=names.stream_name
    )
    # Streams and consumers are made from our side.
    await other.provision()
    await other.aclose()
    return Peer(client, other.names)


async def close(clients):
    for client in clients:
        await client.close()


async def test_what_a_peer_publishes_is_received_and_what_it_repeats_is_known(nats_server, pair):
    heard, clients = [], []

    async def handle(event):
        heard.append(event)

    async with Bridge(**pair, url=nats_server.url) as bridge:
        peer = await peer_of(nats_server, bridge, clients)
        async with bridge.consumer(handle):
            await peer.publish("e-1")
            # Its header is not one the server deduplicates by.
            assert not (await peer.publish("e-1")).duplicate
            await eventually(lambda: len(heard) == 2, within=30)
        await close(clients)
    assert {event.event_id for event in heard} == {"e-1"}
    assert heard[0].occurred_at is not None and heard[0].schema_version == 1
    assert heard[0].producer == pair["destination_app"]


async def test_a_peer_reads_what_we_publish(nats_server, pair):
    clients = []
    async with Bridge(**pair, url=nats_server.url) as bridge:
        peer = await peer_of(nats_server, bridge, clients)
        result = await bridge.publish(event_type="user.created", payload={"id": 1})
        [message] = await peer.fetch()
        await message.ack()
        await close(clients)
    body = json.loads(message.data)
    assert body["event_id"] == result.event_id == message.headers["Nats-Msg-Id"]
    assert body["schema_version"] == 1 and body["occurred_at"].endswith("Z")
    assert message.subject == bridge.names.source_subject


async def test_a_peers_dead_letter_of_our_event_is_kept_listed_and_replayed(nats_server, pair):
    clients = []
    async with Bridge(**pair, url=nats_server.url) as bridge:
        peer = await peer_of(nats_server, bridge, clients)
        result = await bridge.publish(event_type="user.created", payload={"id": 1})
        [message] = await peer.fetch()
        ack = await peer.give_up(message)
        # In the stream of events it would have vanished: it has our message id.
        assert not ack.duplicate and ack.stream == bridge.names.dlq_stream
        letters = (await bridge.connection.pubsub()).dead_letters(bridge.names.dlq_stream)
        [letter] = [letter async for letter in letters.read()]
        assert letter.reason == "unrecoverable" and letter.error == "ArgumentError: wrong"
        assert letter.origin.subscription == peer.names.durable
        assert letter.origin.message_id == result.event_id
        replay = await letters.replay(Selection(reason="unrecoverable"))
        assert (replay.replayed, replay.failed) == (1, {})
        [again] = await peer.fetch()
        assert json.loads(again.data)["event_id"] == result.event_id
        assert again.subject == bridge.names.source_subject
        assert "x-dead-letter" not in again.headers
        assert await letters.count() == 0
        await again.ack()
        await close(clients)


async def test_our_dead_letters_say_what_a_peers_tools_look_for(nats_server, pair):
    clients = []

    async def handle(event):
        raise TypeError("wrong ✗ \r\nNats-Rollup: all")

    async with Bridge(**pair, url=nats_server.url) as bridge:
        peer = await peer_of(nats_server, bridge, clients)
        async with bridge.consumer(handle):
            await peer.publish("e-1")
            await peer.publish("e-2", b"{")
            sub = await peer.js.subscribe(
                bridge.names.dlq_subject, stream=bridge.names.dlq_stream, ordered_consumer=True
            )
            first = await sub.next_msg(timeout=30)
            second = await sub.next_msg(timeout=30)
        await close(clients)
    assert first.subject == f"{pair['app_name']}.sync.dlq"
    assert first.data == peers_envelope("e-1", peer.names.app_name)
    assert first.headers["x-dlq-reason"] == "unrecoverable"
    assert "Nats-Rollup" not in first.headers
    context = json.loads(first.headers["x-dlq-context"])
    assert context["event_id"] == "e-1" and context["error_class"] == "TypeError"
    assert context["error_message"].startswith("wrong ✗")
    assert second.data == b"{" and second.headers["x-dlq-reason"] == "malformed_json"
    assert json.loads(second.headers["x-dlq-context"])["event_id"] == "e-2"


@pytest.mark.parametrize("room", [400, 20])
async def test_a_large_event_is_given_up_with_fewer_headers_rather_than_not(
    nats_server, pair, room
):
    async def handle(event):
        raise TypeError("x" * 500)

    async with Bridge(**pair, url=nats_server.url) as bridge, bridge.consumer(handle):
        broker = await bridge.connection.broker()
        from penstock.message import Draft

        head = b'{"event_type":"a.b","payload":{"x":"'
        body = head + b"x" * (2**20 - len(head) - room) + b'"}}'
        draft = Draft(body, subject=bridge.names.destination_subject)
        [receipt] = await broker.publish(pair["stream_name"], [draft])
        assert receipt.sequence
        letters = (await bridge.connection.pubsub()).dead_letters(bridge.names.dlq_stream)
        async with asyncio.timeout(60):
            while not await letters.count():
                await asyncio.sleep(0.05)
        [letter] = [letter async for letter in letters.read()]
        assert letter.data == body
        if room == 400:
            assert letter.reason == "unrecoverable"
            assert letter.origin.subject == bridge.names.destination_subject


async def test_push_delivers_to_the_subject_of_the_specification(nats_server, pair):
    heard = []

    async def handle(event):
        heard.append(event.payload["n"])

    options = {"consumer_mode": "push", "url": nats_server.url}
    other = Bridge(
        pair["destination_app"],
        pair["app_name"],
        stream_name=pair["stream_name"],
        url=nats_server.url,
    )
    async with Bridge(**pair, **options) as bridge, other, bridge.consumer(handle):
        for n in range(30):
            await other.publish(event_type="a.b", payload={"n": n})
        await eventually(lambda: len(heard) == 30, within=30)
    assert heard == list(range(30))
