"""The last messages of a topic, and what comes: read from its log, taken from nobody."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import typer

from penstock.broker import Extent, Log
from penstock.capabilities import log_of
from penstock.cli.brokers.broker import print_json, printable, with_pubsub
from penstock.cli.plain_text import safe
from penstock.client import PubSub
from penstock.clock import PreciseTime
from penstock.message import Record

# How often a log is asked whether there is more.
_LOOK_AGAIN = 0.5
_FIRST_LOOK = 1000


async def tail(
    pubsub: PubSub,
    topic: str,
    last: int,
    follow: bool,
    since: datetime | None,
    where: str,
    bodies: bool,
    json: bool,
) -> None:
    """Show the last of a topic, and with `follow` what comes."""
    log = log_of(await pubsub.broker(), f"Reading topic {topic!r}")
    extent = await log.extent(topic)
    for record in await _last(log, topic, extent, last, since, where):
        _show_record(record, bodies, json)
    at = extent.last
    while follow:
        await asyncio.sleep(_LOOK_AGAIN)
        extent = await log.extent(topic)
        async for record in _records(log, topic, at + 1, extent.last, where):
            _show_record(record, bodies, json)
        at = max(at, extent.last)


async def _last(
    log: Log, topic: str, extent: Extent, count: int, since: datetime | None, where: str
) -> list[Record]:
    """The last so many that match, looked for from the end: a log may be long."""
    found: list[Record] = []
    last, step = extent.last, max(count, _FIRST_LOOK)
    while last >= extent.first and len(found) < count:
        first = max(extent.first, last - step + 1)
        looked_at = [record async for record in _records(log, topic, first, last, where)]
        found = [record for record in looked_at if _is_since(record, since)] + found
        if looked_at and not _is_since(looked_at[0], since):
            break
        last, step = first - 1, step * 4
    return found[len(found) - min(count, len(found)) :]


def _is_since(record: Record, since: datetime | None) -> bool:
    return since is None or PreciseTime.from_ns(record.publish_time_ns) >= since


async def _records(
    log: Log, topic: str, first: int, last: int, where: str
) -> AsyncIterator[Record]:
    if first > last:
        return
    async for batch in log.read(topic, first, last, where):
        for record in batch:
            yield record


def _show_record(record: Record, bodies: bool, json: bool) -> None:
    time = PreciseTime.from_ns(record.publish_time_ns)
    if json:
        about = {
            "sequence": record.sequence,
            "message_id": record.message_id,
            "time": time.isoformat(),
            "subject": record.subject,
            "ordering_key": record.ordering_key,
            "attributes": dict(record.attributes),
            "bytes": len(record.data),
        }
        print_json({**about, "data": record.data} if bodies else about)
        return
    attributes = " ".join(f"{key}={value}" for key, value in record.attributes.items())
    said = f"{record.sequence} {time:%Y-%m-%d %H:%M:%S} {record.message_id} {attributes}".rstrip()
    typer.echo(typer.style(safe(said), bold=True))
    if bodies:
        typer.echo(f"{printable(record.data)}\n")
    sys.stdout.flush()


def until_interrupted(url: str | None, work: Any) -> None:
    try:
        with_pubsub(url, work)
    except KeyboardInterrupt:
        typer.echo("")
