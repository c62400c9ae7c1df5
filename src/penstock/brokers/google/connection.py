"""The connection to Google, or to an emulator: one channel, and the calls on it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio

from penstock.brokers.google.faults import fault_of
from penstock.brokers.google.options import GoogleOptions
from penstock.errors import (
    ClosedError,
    InvalidArgumentError,
    PenstockError,
    UnauthenticatedError,
)
from penstock.googlepubsub.calls import RPCS, Rpc, Travel

_SCOPES = (
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/pubsub",
)
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # With exactly-once delivery a call that fails says why of each ack id, in its trailers.
    ("grpc.max_metadata_size", 4 * 2**20),
    ("grpc.absolute_max_metadata_size", 4 * 2**20),
    ("grpc.keepalive_time_ms", 30_000),
    # Each connection its own: two brokers of a process must not share a broken channel.
    ("grpc.use_local_subchannel_pool", 1),
]
_CALLS = {rpc.name: rpc for rpc in RPCS}
# The field that says whom a call is about: what has to be there. A name is that of something new.
_ABOUT = ("topic", "subscription", "snapshot", "name", "project")
# The field by which Google routes a call.
_ROUTES = ("name", "topic", "subscription", "snapshot", "project")
_WITHIN = 60.0


class Connection:
    def __init__(self, options: GoogleOptions) -> None:
        self.options = options
        self._channel: Any = None
        self._methods = cache(self._method)

    async def open(self) -> None:
        """Nothing is sent yet: a call that cannot reach Google says so."""
        options = self.options
        compression = grpc.Compression.Gzip if options.compression else None
        if options.plain:
            self._channel = grpc.aio.insecure_channel(
                options.endpoint, options=_CHANNEL, compression=compression
            )
            return
        # Looking for credentials reads files and may ask a metadata server.
        credentials = await asyncio.to_thread(_credentials, options.credentials)
        self._channel = grpc.aio.secure_channel(
            options.endpoint, credentials, options=_CHANNEL, compression=compression
        )

    async def call(self, name: str, request: Any, within: float = _WITHIN) -> Any:
        """The answer to one call; an error of ours when it fails."""
        rpc = _CALLS[name]
        resource = _about(request)
        try:
            return await self._methods(name)(request, timeout=within, metadata=_metadata(request))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                resource = getattr(request, "name", resource)
            raise fault_of(error, rpc, resource) from error
        except asyncio.CancelledError:
            # A channel that is closed cancels its calls; whoever made them was not.
            task = asyncio.current_task()
            if self._channel is None and task is not None and not task.cancelling():
                raise _closed() from None
            raise

    def check_open(self) -> None:
        if self._channel is None:
            raise _closed()

    def stream(self, resource: str) -> Any:
        """An open StreamingPull, to be read, written and cancelled."""
        return self._methods("StreamingPull")(
            metadata=(("x-goog-request-params", f"subscription={quote(resource, safe='')}"),)
        )

    def stream_fault(self, error: Any, resource: str) -> PenstockError:
        return fault_of(error, _CALLS["StreamingPull"], resource)

    def _method(self, name: str) -> Any:
        self.check_open()
        rpc: Rpc = _CALLS[name]
        kind = (
            self._channel.stream_stream
            if rpc.travel is Travel.STREAM
            else self._channel.unary_unary
        )
        return kind(
            f"/{rpc.service}/{rpc.name}",
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        self._methods.cache_clear()
        if channel is not None:
            await channel.close()


def _closed() -> ClosedError:
    return ClosedError("This connection to Google Pub/Sub is closed; connect again")


def _about(request: Any) -> str:
    """The resource that has to be there."""
    for field in _ABOUT:
        value = getattr(request, field, "")
        if value:
            return value if isinstance(value, str) else str(value.name)
    return ""


def _metadata(request: Any) -> tuple[tuple[str, str], ...]:
    field = next(field for field in _ROUTES if getattr(request, field, ""))
    value = getattr(request, field)
    if not isinstance(value, str):
        field, value = f"{field}.name", value.name
    return (("x-goog-request-params", f"{field}={quote(value, safe='')}"),)


def _credentials(file: str | None) -> Any:
    import google.auth
    import google.auth.exceptions
    from google.auth.transport.grpc import AuthMetadataPlugin
    from google.auth.transport.requests import Request

    try:
        if file is not None:
            found, _ = google.auth.load_credentials_from_file(  # type: ignore[no-untyped-call]
                file, scopes=_SCOPES
            )
        else:
            found, _ = google.auth.default(scopes=_SCOPES)
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise UnauthenticatedError(
            f"No credentials for Google Pub/Sub: {error}; for an emulator set PUBSUB_EMULATOR_HOST"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"Credentials {file!r} cannot be read: {error}") from None
    plugin = AuthMetadataPlugin(found, Request())  # type: ignore[no-untyped-call]
    return grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(plugin)
    )
