"""The emulator: a gRPC server of Google's protocol, on loopback, in front of a broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.connect import connect
from penstock.emulator.backend import Backend
from penstock.emulator.completing import completed
from penstock.emulator.completing.passing import PassingOn
from penstock.emulator.iam import IamPolicy
from penstock.emulator.introspection import add_health, add_reflection
from penstock.emulator.publisher import Publisher
from penstock.emulator.pushing.pushers import Pushers
from penstock.emulator.pushing.tokens import Tokens
from penstock.emulator.receiving import Receiving
from penstock.emulator.refusals import DETAILS, details_of, text_of
from penstock.emulator.schemas.definitions import Definitions
from penstock.emulator.schemas.revisions import Revisions
from penstock.emulator.schemas.service import SchemaService
from penstock.emulator.schemas.topics import TopicSchemas
from penstock.emulator.snapshots import Snapshots
from penstock.emulator.store import Store
from penstock.emulator.subscriptions import Subscriptions
from penstock.errors import InternalError, InvalidArgumentError, PenstockError, UnavailableError
from penstock.googlepubsub.calls import IAM, PUBLISHER, RPCS, SCHEMAS, SUBSCRIBER, Rpc, Travel
from penstock.googlepubsub.messages import Topic
from penstock.googlepubsub.names import Names

_LOOPBACK = "127.0.0.1"
# Requests over Google's limit are to be refused by name, not by a broken stream.
_MAX_REQUEST_BYTES = 64 * 2**20
_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # Clients ping to keep idle streams alive, some of them often.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
]

_log = logging.getLogger("penstock")
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Emulator:
    """Use it with `async with`; `address` is what clients are told, in PUBSUB_EMULATOR_HOST.

    `broker` is an address or a broker that is open already, which stays open. `port` 0 takes a
    free one. `folder`: where labels, policies and schemas are kept across restarts.
    """

    def __init__(
        self,
        broker: str | Broker = "memory://",
        *,
        host: str = _LOOPBACK,
        port: int = 0,
        project: str = "penstock",
        folder: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = broker
        self._host = host
        self.port = port
        self._names = Names(project)
        self._folder = folder
        self._clock = clock or Clock()
        self._server: Any = None
        self._broker: Broker | None = None
        self._pushers: Pushers | None = None

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        if isinstance(self._given, str):
            self._broker = await connect(self._given, clock=self._clock)
        else:
            self._broker = self._given
        self._broker.project = self._names.project
        self._broker = completed(self._broker, self._clock)
        file = self._folder / "emulator" if self._folder is not None else None
        backend = Backend(self._broker, self._names, Store(file), self._clock)
        self._pushers = Pushers(backend, Tokens(self._clock))
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers(_handlers(_services(backend, self._pushers)))
        await add_health(self._server)
        add_reflection(self._server)
        try:
            self.port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            await self.aclose()
            raise UnavailableError(
                f"Cannot listen on {self.address}: {error}; choose another port"
            ) from None
        await self._server.start()
        await self._pushers.start()

    async def aclose(self) -> None:
        """Streams end at once: what their clients have not seen goes back. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace=None)
        if self._pushers is not None:
            await self._pushers.aclose()
        broker, self._broker = self._broker, None
        if broker is not None and isinstance(self._given, str):
            await broker.aclose()
        elif isinstance(broker, PassingOn):
            await broker.stop()


def _services(backend: Backend, pushers: Pushers) -> dict[str, tuple[object, ...]]:
    """Who serves what: the first of a service's objects that has a method of the call's name."""
    definitions = Definitions()
    revisions = Revisions(backend.store, backend.names, backend.clock)

    def settings_of(topic: str) -> Any:
        kept = backend.kept(Topic, topic)
        return kept.schema_settings if kept.HasField("schema_settings") else None

    schemas = TopicSchemas(revisions, definitions, settings_of)
    return {
        PUBLISHER: (Publisher(backend, schemas),),
        SUBSCRIBER: (
            Subscriptions(backend, pushers),
            Receiving(backend, pushers.is_pushed),
            Snapshots(backend),
        ),
        SCHEMAS: (SchemaService(backend, revisions, definitions),),
        IAM: (IamPolicy(backend, revisions),),
    }


def _handlers(services: dict[str, tuple[object, ...]]) -> tuple[Any, ...]:
    by_service: dict[str, dict[str, Any]] = {}
    for rpc in RPCS:
        [serve] = [getattr(o, rpc.method) for o in services[rpc.service] if hasattr(o, rpc.method)]
        by_service.setdefault(rpc.service, {})[rpc.name] = _handler(rpc, serve)
    return tuple(
        grpc.method_handlers_generic_handler(service, handlers)
        for service, handlers in by_service.items()
    )


def _handler(rpc: Rpc, serve: Callable[..., Awaitable[Any]]) -> Any:
    """Requests are read here, so that what cannot be read is answered like any other mistake."""

    async def unary(request: bytes, context: Any) -> Any:
        try:
            return await serve(_read(rpc, request))
        except Exception as error:
            await _abort(rpc, error, context)

    async def waiting(request: bytes, context: Any) -> Any:
        try:
            return await serve(_read(rpc, request), context.time_remaining())
        except Exception as error:
            await _abort(rpc, error, context)

    async def stream(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await serve((_read(rpc, request) async for request in requests), context)
        except Exception as error:
            await _abort(rpc, error, context)

    make, function = {
        Travel.UNARY: (grpc.unary_unary_rpc_method_handler, unary),
        Travel.WAITING: (grpc.unary_unary_rpc_method_handler, waiting),
        Travel.STREAM: (grpc.stream_stream_rpc_method_handler, stream),
    }[rpc.travel]
    return make(function, response_serializer=rpc.response.SerializeToString)


def _read(rpc: Rpc, request: bytes) -> Any:
    try:
        return rpc.request.FromString(request)
    except DecodeError:
        raise InvalidArgumentError(
            f"The request of {rpc.name} is not a {rpc.request.DESCRIPTOR.full_name}"
        ) from None


async def _abort(rpc: Rpc, error: Exception, context: Any) -> None:
    if not isinstance(error, PenstockError):
        _log.error("%s failed", rpc.name, exc_info=error)
        error = InternalError(f"{rpc.name} failed in the emulator; its log says more")
    details = details_of(error)
    trailing = ((DETAILS, details),) if details is not None else ()
    await context.abort(_CODES[error.code], text_of(error), trailing)
