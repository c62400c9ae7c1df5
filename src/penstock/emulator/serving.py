"""The services over gRPC."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from penstock.emulator.introspection import add_health, add_reflection
from penstock.emulator.refusals import DETAILS, details_of, text_of
from penstock.emulator.services import Serve
from penstock.errors import InternalError, InvalidArgumentError, PenstockError
from penstock.googlepubsub.calls import RPCS, Rpc, Travel

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


async def grpc_server(serves: Mapping[str, Serve]) -> Any:
    """A server that has to be given a port and started."""
    server = grpc.aio.server(options=_OPTIONS)
    by_service: dict[str, dict[str, Any]] = {}
    for rpc in RPCS:
        by_service.setdefault(rpc.service, {})[rpc.name] = _handler(rpc, serves[rpc.name])
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(service, handlers)
            for service, handlers in by_service.items()
        )
    )
    await add_health(server)
    add_reflection(server)
    return server


def as_ours(call: str, error: Exception) -> PenstockError:
    """What callers are told; of what they should not see, only that there is a log."""
    if isinstance(error, PenstockError):
        return error
    _log.error("%s failed", call, exc_info=error)
    return InternalError(f"{call} failed in the emulator; its log says more")


def _handler(rpc: Rpc, serve: Serve) -> Any:
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
        except grpc.aio.InternalError:
            _log.debug("%s: a client is gone", rpc.name)
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
    told = as_ours(rpc.name, error)
    details = details_of(told)
    trailing = ((DETAILS, details),) if details is not None else ()
    await context.abort(_CODES[told.code], text_of(told), trailing)
