"""Which network addresses media may be fetched from."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Awaitable[list[str]]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")


async def resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_allowed(text: str, *, allow_loopback: bool) -> bool:
    """Public unicast, whatever it is wrapped in; loopback when asked for."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    inner = _unwrapped(address)
    if inner is None:
        return False
    if inner.is_loopback:
        return allow_loopback
    return (
        inner.is_global
        and not inner.is_multicast
        and not inner.is_reserved
        and not inner.is_unspecified
        and not inner.is_link_local
    )


def _unwrapped(address: Address) -> Address | None:
    """The IPv4 address that an IPv6 one stands for, if it does; None for tunnels of unknown ends.

    A mapped, translated or tunnelled address reaches the inner one, so that is what counts.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None or address in _NAT64_LOCAL:
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _COMPATIBLE and int(address) > 1:
        return ipaddress.IPv4Address(int(address))
    return address
