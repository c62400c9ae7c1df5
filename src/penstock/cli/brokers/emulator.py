"""`penstock emulator`: Google Pub/Sub's protocol in front of a broker.

Made of the standard library alone: tests wait for it, and what the other commands are made of
takes longer to load than the emulator itself.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.exit_codes import code_of
from penstock.cli.plain_text import one_line
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.emulator import Emulator

_LOCAL = "local://"


def emulator() -> None:
    """Serve Google Pub/Sub's protocol, for any client of it."""
    options = _parser().parse_args(sys.argv[2:])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        from penstock.emulator import Emulator
    except ImportError as error:
        sys.exit(
            f"penstock: The emulator needs {error.name}: pip install 'penstock[emulator,local]'"
        )
    host, port = options.host_port or (options.host, options.port)
    served = Emulator(
        options.broker,
        host=host,
        port=port,
        project=options.project,
        folder=options.folder or _folder(options.broker),
        config=options.config,
    )
    try:
        asyncio.run(_serve(served))
    except PenstockError as error:
        sys.stderr.write(f"penstock: {one_line(str(error))}\n")
        sys.exit(code_of(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock emulator", description=emulator.__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    add("--port", type=_port, default=8085, help="0: a free one (default: %(default)s)")
    add("--host-port", type=_host_port, help="both at once, as Google's emulator takes them")
    add(
        "--broker",
        default="memory://",
        help="memory:// forgets; local://DIR keeps everything in a folder (default: %(default)s)",
    )
    add(
        "--project",
        default="penstock",
        help="the project whose names the broker knows without a prefix (default: %(default)s)",
    )
    add(
        "--folder",
        type=Path,
        help="where labels, policies, schemas and push configurations are kept (default: in the "
        "folder of local://DIR, and nowhere for other brokers)",
    )
    add("--config", type=Path, help="topics, subscriptions and schemas to make (TOML or YAML)")
    return parser


async def _serve(served: Emulator) -> None:
    """Until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with served:
        say = sys.stdout.write
        say(f"Server started, listening on {served.port}\n")
        say(f"export PUBSUB_EMULATOR_HOST={served.address}\n")
        sys.stdout.flush()
        await stop.wait()


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", _port(port)


def _folder(broker: str) -> Path | None:
    """Beside a broker that keeps what it is told, in its folder."""
    if broker.startswith(_LOCAL):
        return Path(broker.removeprefix(_LOCAL)).expanduser().absolute() / "emulator"
    return None
