"""A subscription sees what its filter lets through."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgumentError
from penstock.testing.conformance.harness import Scene, behaviour


class Filtering:
    @behaviour("filters")
    async def test_only_messages_that_match_arrive(self, scene: Scene) -> None:
        topic = await scene.topic()
        queued = await scene.subscription(topic, filter='attributes.stage = "Queued"')
        others = await scene.subscription(topic, filter='attributes.stage != "Queued"')
        first, second = scene.receive(queued), scene.receive(others)
        for n, stage in enumerate(["Queued", "MetadataReady", "Queued", None]):
            await topic.publish_message(b"%d" % n, {"stage": stage} if stage else None)
        await scene.eventually(lambda: len(first) == 2 and len(second) == 2)
        await scene.seconds(0.2)
        assert sorted(m.data for m in first) == [b"0", b"2"]
        assert sorted(m.data for m in second) == [b"1", b"3"]

    @behaviour("filters", "backlog")
    async def test_messages_that_do_not_match_count_as_acked(self, scene: Scene) -> None:
        topic, sub = await scene.pair(filter="attributes:wanted")
        await topic.publish_message(b"no")
        await topic.publish_message(b"yes", {"wanted": ""})
        [delivery] = await scene.pull(sub)
        assert delivery.record.data == b"yes"
        await scene.backlog_becomes(sub, 1)

    @behaviour("filters")
    async def test_a_filter_that_does_not_parse_creates_nothing(self, scene: Scene) -> None:
        topic = await scene.topic()
        sub = topic.subscription(scene.name("sub"), filter="attributes.stage == 1")
        with pytest.raises(InvalidArgumentError, match="column"):
            await sub.create()
        assert not await sub.exists()

    @behaviour("filters")
    async def test_routed_attributes_filter_as_any_other(self, scene: Scene) -> None:
        topic = await scene.topic(routed_attributes=("stage", "kind"))
        filters = {
            'attributes.stage = "Queued"': ["a", "b"],
            'attributes.stage = "Queued" AND attributes.kind = "x.y *>"': ["b"],
            'attributes.stage = "Done" OR attributes.stage = "Queued"': ["a", "b", "c"],
            'attributes.kind = "x" AND NOT attributes:other': ["a", "c"],
            'attributes.stage != "Queued"': ["c", "d", "e"],
            "attributes:kind": ["a", "b", "c", "e"],
            'attributes.kind = ""': ["e"],
        }
        received = {
            text: scene.receive(await scene.subscription(topic, filter=text)) for text in filters
        }
        for name, attributes in (
            ("a", {"stage": "Queued", "kind": "x"}),
            ("b", {"stage": "Queued", "kind": "x.y *>"}),
            ("c", {"stage": "Done", "kind": "x"}),
            ("d", {}),
            ("e", {"kind": "", "other": "_"}),
        ):
            await topic.publish_message(name.encode(), attributes)
        await scene.eventually(
            lambda: all(len(received[text]) == len(names) for text, names in filters.items())
        )
        await scene.seconds(0.2)
        for text, names in filters.items():
            assert sorted(m.data.decode() for m in received[text]) == names, text
