"""google.pubsub.v1.Publisher: topics, and publishing to them."""

from __future__ import annotations

from typing import Any

from penstock.broker import TopicStatus
from penstock.capabilities import detach_subscription, update_topic
from penstock.emulator.administering.pages import page_of, page_of_project
from penstock.emulator.administering.resources import merged, topic_of
from penstock.emulator.backend import Backend
from penstock.emulator.messages import check_publish, drafts_of
from penstock.emulator.refusals import already_exists
from penstock.emulator.schemas.topics import TopicSchemas
from penstock.errors import AlreadyExistsError, NotFoundError
from penstock.googlepubsub.messages import Empty, PublishResponse, Topic, message
from penstock.googlepubsub.names import SNAPSHOTS, SUBSCRIPTIONS, TOPICS
from penstock.googlepubsub.resources import read_topic
from penstock.message import PublishFault

_Listed = message("ListTopicsResponse")
_ListedSubscriptions = message("ListTopicSubscriptionsResponse")
_ListedSnapshots = message("ListTopicSnapshotsResponse")
_Detached = message("DetachSubscriptionResponse")


class Publisher:
    def __init__(self, backend: Backend, schemas: TopicSchemas) -> None:
        self._backend = backend
        self._admin = backend.admin
        self._names = backend.names
        self._schemas = schemas

    async def create_topic(self, topic: Any) -> Any:
        config = read_topic(topic, self._names)
        self._schemas.check(topic)
        async with self._backend.changing:
            if await self._exists(config.name):
                raise AlreadyExistsError(already_exists(topic.name.rpartition("/")[2]))
            async with self._backend.creating(topic.name, topic):
                await self._admin.create_topic(config)
        self._schemas.forget(topic.name)
        return await self._described(config.name)

    async def update_topic(self, request: Any) -> Any:
        name = self._names.of(TOPICS, request.topic.name, "topic.name")
        async with self._backend.changing:
            status = await self._admin.describe_topic(name)
            topic = merged(self._of(status), request.topic, request.update_mask)
            self._schemas.check(topic)
            config = read_topic(topic, self._names, status.config)
            if config != status.config:
                await update_topic(self._backend.broker, config)
            self._backend.keep(topic.name, topic)
            self._schemas.forget(topic.name)
            return await self._described(name)

    async def publish(self, request: Any) -> Any:
        name = self._names.of(TOPICS, request.topic, "topic")
        check_publish(request)
        schema = await self._schemas.of(request.topic)
        added = schema.checked(request.messages) if schema is not None else None
        answers = await self._backend.broker.publish(name, drafts_of(request.messages, added))
        ids = []
        for answer in answers:
            if isinstance(answer, PublishFault):
                raise answer.error
            ids.append(answer.message_id)
        return PublishResponse(message_ids=ids)

    async def get_topic(self, request: Any) -> Any:
        return await self._described(self._names.of(TOPICS, request.topic, "topic"))

    async def list_topics(self, request: Any) -> Any:
        known = await self._admin.list_topics()
        found, token = await page_of_project(request, self._names, known, self._described)
        return _Listed(topics=found, next_page_token=token)

    async def list_topic_subscriptions(self, request: Any) -> Any:
        names = await self._admin.list_subscriptions(self._names.of(TOPICS, request.topic, "topic"))
        found = (self._names.resource(SUBSCRIPTIONS, name) for name in names)
        page, token = page_of(found, request.page_size, request.page_token)
        return _ListedSubscriptions(subscriptions=page, next_page_token=token)

    async def list_topic_snapshots(self, request: Any) -> Any:
        names = await self._admin.list_snapshots(self._names.of(TOPICS, request.topic, "topic"))
        found = (self._names.resource(SNAPSHOTS, name) for name in names)
        page, token = page_of(found, request.page_size, request.page_token)
        return _ListedSnapshots(snapshots=page, next_page_token=token)

    async def delete_topic(self, request: Any) -> Any:
        await self._admin.delete_topic(self._names.of(TOPICS, request.topic, "topic"))
        self._backend.forget(request.topic)
        self._schemas.forget(request.topic)
        return Empty()

    async def detach_subscription(self, request: Any) -> Any:
        name = self._names.of(SUBSCRIPTIONS, request.subscription, "subscription")
        await detach_subscription(self._backend.broker, name)
        return _Detached()

    async def _exists(self, name: str) -> bool:
        try:
            await self._admin.describe_topic(name)
        except NotFoundError:
            return False
        return True

    async def _described(self, name: str) -> Any:
        return self._of(await self._admin.describe_topic(name))

    def _of(self, status: TopicStatus) -> Any:
        resource = self._names.resource(TOPICS, status.config.name)
        topic = topic_of(status, self._backend.kept(Topic, resource), self._names)
        self._schemas.show(topic)
        return topic
