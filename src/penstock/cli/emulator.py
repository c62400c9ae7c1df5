"""`penstock emulator`: Google Pub/Sub's protocol in front of a broker."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.emulator import Emulator

_LOCAL = "local://"


def emulator(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 8085,
    host_port: Annotated[
        str | None, typer.Option(help="Both at once, as Google's emulator takes them.")
    ] = None,
    broker: Annotated[
        str, typer.Option(help="memory:// forgets; local://DIR keeps everything in a folder.")
    ] = "memory://",
    project: Annotated[
        str, typer.Option(help="The project whose names the broker knows without a prefix.")
    ] = "penstock",
) -> None:
    """Serve Google Pub/Sub's protocol, for any client of it."""
    try:
        from penstock.emulator import Emulator
    except ImportError as error:
        sys.exit(f"The emulator needs {error.name}: pip install 'penstock[cli,emulator,local]'")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if host_port is not None:
        host, port = _split(host_port)
    served = Emulator(broker, host=host, port=port, project=project, folder=_folder(broker))
    asyncio.run(_serve(served))


async def _serve(served: Emulator) -> None:
    """Until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with served:
        typer.echo(f"Server started, listening on {served.port}")
        typer.echo(f"export PUBSUB_EMULATOR_HOST={served.address}")
        await stop.wait()


def _split(host_port: str) -> tuple[str, int]:
    host, _, port = host_port.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgumentError(f"--host-port takes HOST:PORT or PORT, not {host_port!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _folder(broker: str) -> Path | None:
    """Beside a broker that keeps what it is told, in its folder."""
    if broker.startswith(_LOCAL):
        return Path(broker.removeprefix(_LOCAL)).expanduser().absolute() / "emulator"
    return None
