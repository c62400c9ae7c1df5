"""Which topics to read: named, assigned, or by a pattern, as readers of Kafka write it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable

from penstock.config import check_name
from penstock.connect import connect
from penstock.errors import InvalidArgumentError


def one(text: str) -> tuple[str, ...]:
    return (check_name("Topic", text),)


def several(text: str) -> tuple[str, ...]:
    """With commas between."""
    return _topics(name.strip() for name in text.split(","))


def assigned(text: str) -> tuple[str, ...]:
    """Partitions by topic, of which there is one: number 0."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidArgumentError(
            f'must be partitions by topic, as in {{"orders": [0]}}, not {text!r}'
        )
    for topic, partitions in found.items():
        if partitions != [0]:
            raise InvalidArgumentError(
                f"a topic has one partition, and its number is 0: write {{{topic!r}: [0]}}"
            )
    return _topics(found)


def pattern(text: str) -> str:
    """A regular expression that the whole name of a topic matches."""
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidArgumentError(f"is no regular expression: {error}") from None
    return text


def is_matched(topic: str, pattern: str) -> bool:
    return re.fullmatch(pattern, topic) is not None


def matching(url: str, pattern: str) -> tuple[str, ...]:
    """The topics that there are now and that a pattern matches."""
    return asyncio.run(_matching(url, pattern))


async def _matching(url: str, pattern: str) -> tuple[str, ...]:
    broker = await connect(url)
    try:
        topics = await broker.admin.list_topics()
    finally:
        await broker.aclose()
    return tuple(sorted(topic for topic in topics if is_matched(topic, pattern)))


def _topics(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({check_name("Topic", name) for name in names}))
