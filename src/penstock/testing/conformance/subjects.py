"""Topics with subjects of any name, subscriptions that see some of them, and work queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.client import Topic
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.message import Draft, PublishFault, Verb
from penstock.testing.conformance.harness import Scene, behaviour


class Subjects:
    @behaviour("subjects")
    async def test_a_topic_stores_the_subjects_it_has_and_no_others(self, scene: Scene) -> None:
        one, other = scene.name("a"), scene.name("b")
        topic = await scene.topic(subjects=[f"{one}.sync.{other}", f"{other}.*"])
        sub = await scene.subscription(topic)
        subjects = [f"{one}.sync.{other}", f"{other}.x", f"{one}.sync", None]
        answers = await scene.broker.publish(
            topic.name, [Draft(b"%d" % n, subject=one) for n, one in enumerate(subjects)]
        )
        refused = [answer for answer in answers if isinstance(answer, PublishFault)]
        assert [isinstance(answer, PublishFault) for answer in answers] == [False] * 2 + [True] * 2
        assert all(isinstance(fault.error, InvalidArgumentError) for fault in refused)
        received = await scene.pull(sub)
        assert {delivery.record.subject for delivery in received} == set(subjects[:2])

    @behaviour("subjects")
    async def test_a_subscription_sees_its_subjects_only(self, scene: Scene) -> None:
        name = scene.name("app")
        topic = await scene.topic(subjects=[f"{name}.>"])
        sub = await scene.subscription(topic, subjects=(f"{name}.in", f"{name}.*.x"))
        assert (await sub.describe()).config.subjects == (f"{name}.in", f"{name}.*.x")
        wanted = [f"{name}.in", f"{name}.a.x"]
        for subject in [f"{name}.out", *wanted, f"{name}.a.y"]:
            await topic.publish_message(subject.encode(), subject=subject)
        received = scene.receive(sub)
        await scene.eventually(lambda: len(received) == 2)
        # Nothing is said about the order of messages without a key.
        assert sorted(str(message.subject) for message in received) == sorted(wanted)

    @behaviour("subjects", "updates")
    async def test_a_topic_can_get_more_subjects(self, scene: Scene) -> None:
        name = scene.name("app")
        topic = await scene.topic(subjects=[f"{name}.a"], message_retention=3600)
        config = (await topic.describe()).config
        assert config.subjects == (f"{name}.a",)
        more = replace(config, subjects=(*config.subjects, f"{name}.b"))
        await scene.broker.admin.update_topic(more)
        assert (await topic.describe()).config == more
        await topic.publish_message(b"x", subject=f"{name}.b")

    @behaviour("work_queues")
    async def test_a_work_queue_keeps_what_came_before_its_subscription(self, scene: Scene) -> None:
        topic = await scene.topic(work_queue=True)
        for n in range(3):
            await topic.publish_message(b"%d" % n)
        sub = await scene.subscription(topic)
        received = scene.receive(sub)
        await scene.eventually(lambda: len(received) == 3)
        assert sorted(message.data for message in received) == [b"0", b"1", b"2"]
        assert (await topic.describe()).config.work_queue

    @behaviour("work_queues")
    async def test_what_is_acked_is_gone_and_what_is_not_is_left_for_the_next(
        self, scene: Scene
    ) -> None:
        topic = await scene.topic(work_queue=True)
        first = await scene.subscription(topic)
        for n in range(2):
            await topic.publish_message(b"%d" % n)
        done, _ = await scene.pull(first)
        await scene.settle(first, done, Verb.ACK)
        await scene.backlog_becomes(first, 1)
        await first.delete()
        received = scene.receive(await scene.subscription(topic))
        await scene.eventually(lambda: len(received) == 1)
        assert [message.data for message in received] == [b"1"]

    @behaviour("work_queues", "subjects")
    async def test_of_a_work_queue_a_message_goes_to_one_subscription(self, scene: Scene) -> None:
        name = scene.name("app")
        topic = await scene.topic(work_queue=True, subjects=[f"{name}.*"])
        await scene.subscription(topic, subjects=(f"{name}.a",))
        received = scene.receive(await scene.subscription(topic, subjects=(f"{name}.b",)))
        for subject in (f"{name}.a", f"{name}.b"):
            await topic.publish_message(b"x", subject=subject)
        await scene.eventually(lambda: len(received) == 1)
        overlapping = topic.subscription(scene.name("sub"), subjects=(f"{name}.*",))
        with pytest.raises(FailedPreconditionError):
            await overlapping.create()

    @behaviour("work_queues", "updates")
    async def test_what_a_topic_is_kept_by_stays(self, scene: Scene) -> None:
        topic = await scene.topic(work_queue=True)
        config = (await topic.describe()).config
        with pytest.raises(InvalidArgumentError, match="work_queue"):
            await scene.broker.admin.update_topic(replace(config, work_queue=False))

    @behaviour("subjects")
    async def test_subjects_that_are_none_are_refused(self, scene: Scene) -> None:
        for wrong in (["a b"], ["a.>.b"], [""], [5]):
            topic: Topic = scene.pubsub.topic(scene.name("topic"))
            with pytest.raises(InvalidArgumentError):
                await topic.create(subjects=wrong)  # type: ignore[arg-type]
            with pytest.raises(NotFoundError):
                await topic.describe()
