"""What is said of jobs: the messages that a change of a job adds to its transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.jobs.model.codec import encode_event, encode_job
from penstock.jobs.settings import Topics
from penstock.jobs.store.records import JobRecord
from penstock.message import Draft
from penstock.transactional import Outbox


class Said(Struct, frozen=True):
    """A message, where it goes, and after how many seconds."""

    topic: str
    draft: Draft
    after: float = 0.0


def of_stage(record: JobRecord, topics: Topics) -> list[Said]:
    """What a job says when it has reached its stage: an event, and work for the next stage if
    there is one."""
    said = [Said(topics.events, encode_event(record.event()))]
    if not record.job.stage.terminal:
        said.append(Said(topics.of(record.job.media_type), encode_job(record.job)))
    return said


def again(record: JobRecord, topics: Topics, after: float) -> Said:
    """The job's message once more. The number is the record's, so that whoever sends it, a person
    or a runner, no two of them are the same message."""
    topic = topics.of(record.job.media_type)
    return Said(topic, encode_job(record.job, record.version), after)


async def say(outbox: Outbox, connection: AsyncConnection, messages: Iterable[Said]) -> None:
    """Add messages to the transaction of `connection`, those of a kind together."""
    kinds: defaultdict[tuple[str, float], list[Draft]] = defaultdict(list)
    for one in messages:
        kinds[one.topic, one.after].append(one.draft)
    for (topic, after), drafts in kinds.items():
        await outbox.add(connection, topic, drafts, after=after)
