"""A JetStream server's own words, past everything of ours but the connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.brokers.nats.aio.connection import Connection, NatsOptions


@asynccontextmanager
async def jetstream_api(url: str) -> AsyncIterator[Any]:
    """A function that makes requests: `await request("STREAM.INFO.orders")`."""
    connection = Connection(NatsOptions.of(url))
    await connection.open()
    try:
        yield connection.request
    finally:
        await connection.close()
