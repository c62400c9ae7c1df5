"""A Google that does as it is told: for what the real one does once in a while."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from penstock.googlepubsub.calls import RPCS, Travel

Serve = Callable[..., Awaitable[Any]]


class ScriptedGoogle:
    """Each call is answered by the function of its name; `calls` keeps what was asked."""

    def __init__(self, **serves: Serve) -> None:
        self._serves = serves
        self.calls: list[tuple[str, Any]] = []
        self.port = 0

    def named(self, name: str) -> list[Any]:
        return [request for called, request in self.calls if called == name]

    def _handler(self, rpc: Any, serve: Serve) -> Any:
        async def unary(request: Any, context: Any) -> Any:
            self.calls.append((rpc.name, request))
            return await serve(request, context)

        async def stream(requests: AsyncIterator[Any], context: Any) -> None:
            first = await anext(requests)
            self.calls.append((rpc.name, first))
            await serve(first, requests, context)

        if rpc.travel is Travel.STREAM:
            make, function = grpc.stream_stream_rpc_method_handler, stream
        else:
            make, function = grpc.unary_unary_rpc_method_handler, unary
        return make(
            function,
            request_deserializer=rpc.request.FromString,
            response_serializer=rpc.response.SerializeToString,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The address of a broker that leads here."""
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        for service in {rpc.service for rpc in RPCS}:
            handlers = {
                rpc.name: self._handler(rpc, self._serves[rpc.method])
                for rpc in RPCS
                if rpc.service == service and rpc.method in self._serves
            }
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"pubsub://project-one?emulator=127.0.0.1:{self.port}"
        finally:
            await server.stop(None)


async def refuse_ack_ids(context: Any, reasons: dict[str, str]) -> None:
    """As Google refuses ack ids with exactly-once delivery."""
    info = error_details_pb2.ErrorInfo(
        reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=reasons
    )
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(code=3, message="Some ack ids failed", details=[detail])
    trailing = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Some ack ids failed", trailing)


async def for_ever(*_: Any) -> None:
    await asyncio.Event().wait()
