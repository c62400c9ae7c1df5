"""Dead letters as a table: what `penstock dead list` says, in SQL."""

import asyncio

import pytest

from penstock import Draft, PubSub
from penstock.dead_letters import Selection
from penstock.dead_letters.letter import Origin, letter_of
from penstock.spark.dead_letters import read_dead_letters
from tests.support.servers import NatsServer

pytestmark = pytest.mark.timeout(300)


async def bury(url):
    """Three letters of ours, one that a broker moved; one is discarded and one replayed."""
    async with PubSub(url) as pubsub:
        for name in ("orders", "orders-dead"):
            await pubsub.topic(name).create(message_retention=3600)
        broker = await pubsub.broker()
        ours = [
            letter_of(
                f"order {n}".encode(),
                {"region": "eu"},
                origin=Origin(topic="orders", subscription="billing", message_id=f"m-{n}"),
                attempt=n,
                reason="refused" if n < 3 else "decode",
                error=ValueError(f"no {n}"),
                time_ns=1_767_225_600_000_000_000,
                ordering_key="key",
            )
            for n in (1, 2, 3)
        ]
        moved = {
            "CloudPubSubDeadLetterSourceSubscription": "billing",
            "CloudPubSubDeadLetterSourceDeliveryCount": "7",
        }
        await broker.publish("orders-dead", [*ours, Draft.of(b"moved", moved)])
        letters = pubsub.dead_letters("orders-dead")
        await letters.discard(Selection(sequences=frozenset({1})))
        await letters.replay(Selection(sequences=frozenset({2})))


def test_letters_of_all_origins_are_rows_that_say_what_was_done_about_them(spark, tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as server:
        asyncio.run(bury(server.url))
        found = read_dead_letters(spark, server.url, "orders-dead").orderBy("sequence")
        rows = found.collect()
        found.createOrReplaceTempView("letters")
        counted = spark.sql("SELECT reason, count(*) AS n FROM letters GROUP BY 1").collect()
    assert [(row.sequence, row.reason, row.settled) for row in rows] == [
        (1, "refused", "discarded"),
        (2, "refused", "replayed"),
        (3, "decode", None),
        (4, "max-delivery-attempts", None),
    ]
    assert [row.attempt for row in rows] == [1, 2, 3, 7]
    third = rows[2]
    assert (third.origin_topic, third.origin_subscription) == ("orders", "billing")
    assert (third.origin_message_id, third.error) == ("m-3", "ValueError: no 3")
    assert (third.attributes, third.ordering_key) == ({"region": "eu"}, "key")
    assert bytes(third.data) == b"order 3"
    assert {row.reason: row.n for row in counted}["refused"] == 2
