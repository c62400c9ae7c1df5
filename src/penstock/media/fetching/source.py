"""Where media comes from: files below a folder, or named hosts on the web.

A reference is data from a message, so it is not trusted: it cannot leave the folder, name a device,
reach a private address (by name, redirect or rebinding), or take more bytes or time than allowed.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.parse import unquote

import httpx

from penstock.media.errors import MediaError, cannot_open
from penstock.media.fetching.addresses import Resolver, is_allowed, resolve

MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PIECE = 1 << 20
_LONGEST_REFERENCE = 2048
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MOST_ADDRESSES = 4
_PORTS = {"http": 80, "https": 443}


class MediaSource:
    """Opens references as local files.

    `root` None refuses files; no `hosts` refuses the web. A host stands for its default port;
    `"media.example:8443"` allows another. `timeout` is for a whole download. `verify` is what
    httpx takes: a TLS context for hosts with a private authority. `reserved`: folders in the root
    that are out of bounds.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        hosts: frozenset[str] | set[str] = frozenset(),
        *,
        max_bytes: int = 2 << 30,
        timeout: float = 600.0,
        allow_loopback: bool = False,
        allow_http: bool = False,
        resolver: Resolver = resolve,
        folder: Path | str | None = None,
        verify: ssl.SSLContext | bool = True,
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self._root = Path(root).resolve() if root is not None else None
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._allow_loopback = allow_loopback
        self._schemes = frozenset({"https", "http"} if allow_http else {"https"})
        self._resolver = resolver
        self._folder = folder
        self._verify = verify
        self._reserved = reserved

    @property
    def is_closed(self) -> bool:
        """Neither files nor the web may be read."""
        return self._root is None and not self._hosts

    def check_ready(self, folder: str = "") -> None:
        """`MediaError` of the reason `configuration` when nothing can come from here: nothing is
        allowed, or the root, or a folder in it, is none that this process can read."""
        if self.is_closed:
            text = "Media can be had from nowhere; set media.root (--media DIR), or media.hosts"
            raise MediaError("configuration", text)
        if self._root is None and not folder:
            return
        if self._root is None or not _is_readable(self._root / folder):
            place = "not set" if self._root is None else f"{self._root / folder}"
            text = f"The media folder is {place}, which cannot be read here"
            raise MediaError(
                "configuration", f"{text}; set media.root (--media DIR) to one that can"
            )

    @asynccontextmanager
    async def open(self, reference: str) -> AsyncIterator[Path]:
        """A path by which this process can read the media until the block ends."""
        kind, place = self.parse(reference)
        if kind == "file":
            descriptor = await asyncio.to_thread(self._open_file, place)
            with _closing(descriptor):
                yield _path_of(descriptor)
            return
        with self._temporary() as file:
            await self._download(httpx.URL(place), file)
            yield Path(file.name)

    def _temporary(self) -> IO[bytes]:
        return tempfile.NamedTemporaryFile(prefix="penstock-media-", dir=self._folder)

    def parse(self, reference: str) -> tuple[str, str]:
        """("file" or "web", where), without touching either; MediaError when it is neither."""
        if not reference or len(reference) > _LONGEST_REFERENCE:
            raise MediaError("bad_reference", "A reference has 1 to 2048 characters")
        if _NOT_IN_NAMES.search(reference):
            raise MediaError("bad_reference", "A reference has no control characters")
        scheme, colon, rest = reference.partition(":")
        if not colon or "/" in scheme:
            return "file", reference
        scheme = scheme.lower()
        if scheme == "file":
            return "file", _file_path(rest)
        if scheme not in _PORTS:
            raise MediaError("bad_reference", "A reference is a file or an https address")
        self._check_url(_url(reference))
        return "web", reference

    def check(self, reference: str) -> None:
        """`MediaError` when `open` refuses it, as far as can be told without looking: whether it is
        there is not asked."""
        kind, place = self.parse(reference)
        if kind == "file":
            self._check_parts(self._inside(place)[1].parts)

    def _inside(self, place: str) -> tuple[Path, Path]:
        """The root, and where in it a place is, by its name alone."""
        root = self._root
        if root is None:
            raise MediaError("forbidden", "Files are not read here: no root is set")
        relative = Path(place)
        if relative.is_absolute() and relative.is_relative_to(root):
            relative = relative.relative_to(root)
        if relative.is_absolute() or ".." in relative.parts:
            raise MediaError("forbidden", "The file is outside the media folder")
        return root, relative

    def _check_parts(self, parts: tuple[str, ...]) -> None:
        if parts and parts[0] in self._reserved:
            raise MediaError("forbidden", "The file is in a folder that is not for everybody")

    def _open_file(self, place: str) -> int:
        root, relative = self._inside(place)
        try:
            real = (root / relative).resolve(strict=True)
        except FileNotFoundError:
            # Of a folder that is gone no file can be missing.
            self.check_ready()
            raise MediaError("not_found", "There is no such file in the media folder") from None
        except (OSError, RuntimeError, ValueError):
            raise MediaError("forbidden", "The file cannot be reached") from None
        if not real.is_relative_to(root):
            raise MediaError("forbidden", "The file is outside the media folder")
        parts = real.relative_to(root).parts
        self._check_parts(parts)
        return self._walk(root, parts)

    def _walk(self, root: Path, parts: tuple[str, ...]) -> int:
        """Step by step without following links: what was resolved may have been swapped since."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            for part in parts:
                parent = descriptor
                try:
                    descriptor = os.open(part, flags, dir_fd=parent)
                finally:
                    os.close(parent)
        except OSError as error:
            raise cannot_open(error) from None
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= self._max_bytes:
            return descriptor
        os.close(descriptor)
        if stat.S_ISREG(status.st_mode):
            raise MediaError("too_large", f"The file is larger than {self._max_bytes:,} bytes")
        raise MediaError("forbidden", "Only regular files are read")

    async def _download(self, url: httpx.URL, file: IO[bytes]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._follow(url, file)
        except (TimeoutError, httpx.TimeoutException):
            text = f"The download took longer than {self._timeout:g} s"
            raise MediaError("timeout", text, permanent=False) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            # Its text may hold the address, and an address may hold a signature.
            text = f"The download failed ({type(error).__name__})"
            raise MediaError("network", text, permanent=False) from None

    async def _follow(self, url: httpx.URL, file: IO[bytes]) -> None:
        # The transport rather than a client: a client follows, decodes, and logs whole addresses.
        async with httpx.AsyncHTTPTransport(verify=self._verify, trust_env=False) as transport:
            for _ in range(MOST_REDIRECTS + 1):
                response = await self._get(transport, url)
                try:
                    if response.status_code not in _REDIRECTS:
                        await self._save(response, file)
                        return
                    url = self._next(url, response)
                finally:
                    await response.aclose()
        raise MediaError("forbidden", f"More than {MOST_REDIRECTS} redirects")

    async def _get(self, transport: httpx.AsyncHTTPTransport, url: httpx.URL) -> httpx.Response:
        """To the very addresses that were checked, with the name where names belong."""
        self._check_url(url)
        addresses = await self._addresses(url)
        for address in addresses[:_MOST_ADDRESSES]:
            request = httpx.Request(
                "GET",
                url.copy_with(host=address, fragment=None),
                headers={
                    "Host": url.netloc.decode("ascii"),
                    "Accept": "*/*",
                    "Accept-Encoding": "identity",
                    "User-Agent": "penstock",
                },
                extensions={
                    "sni_hostname": url.raw_host.decode("ascii"),
                    "timeout": httpx.Timeout(min(30.0, self._timeout)).as_dict(),
                },
            )
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await transport.handle_async_request(request)
        raise MediaError("network", "The host cannot be connected to", permanent=False)

    async def _addresses(self, url: httpx.URL) -> list[str]:
        port = url.port or _PORTS[url.scheme]
        try:
            found = await self._resolver(url.raw_host.decode("ascii"), port)
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise MediaError("network", "The host has no address", permanent=False)
        # One private address among public ones is refused too: it would be a coin toss.
        if not all(is_allowed(a, allow_loopback=self._allow_loopback) for a in found):
            raise MediaError("forbidden", "The host has an address that is not public")
        return found

    def _next(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        target = response.headers.get("location", "")
        if not target or len(target) > _LONGEST_REFERENCE:
            raise MediaError("network", "A redirect leads nowhere", permanent=False)
        following = _url(str(url.join(_url(target))))
        if url.scheme == "https" and following.scheme != "https":
            raise MediaError("forbidden", "A redirect gives up encryption")
        return following

    def _check_url(self, url: httpx.URL) -> None:
        if url.scheme not in self._schemes:
            raise MediaError("forbidden", "Only https addresses are fetched")
        if url.userinfo:
            raise MediaError("forbidden", "An address holds no user name or password")
        port = url.port or _PORTS[url.scheme]
        host = url.raw_host.decode("ascii").lower()
        plain = port == _PORTS[url.scheme] and host in self._hosts
        if not host or not (plain or f"{host}:{port}" in self._hosts):
            raise MediaError("forbidden", "The host is not on the list of media hosts")

    async def _save(self, response: httpx.Response, file: IO[bytes]) -> None:
        status = response.status_code
        if status != 200:
            raise _status_error(status)
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise MediaError("unsupported", "The server compresses what was asked for plain")
        declared = response.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        size = 0
        async for piece in response.aiter_raw(_PIECE):
            size += len(piece)
            if size > self._max_bytes:
                raise self._too_large()
            await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(file.flush)

    def _too_large(self) -> MediaError:
        return MediaError("too_large", f"The media is larger than {self._max_bytes:,} bytes")


def _url(text: str) -> httpx.URL:
    try:
        return httpx.URL(text)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise MediaError("bad_reference", "The address does not parse") from None


def _is_readable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)


def _file_path(rest: str) -> str:
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise MediaError("bad_reference", "A file reference names no host")
        rest = "/" + path
    path = unquote(rest)
    if not path or "\x00" in path or any(ord(c) < 32 for c in path):
        raise MediaError("bad_reference", "A file reference has no control characters")
    return path


def _status_error(status: int) -> MediaError:
    if status in (404, 410):
        return MediaError("not_found", f"The server answered {status}")
    if status in (401, 403):
        return MediaError("forbidden", f"The server answered {status}")
    if status in (408, 425, 429) or status >= 500:
        return MediaError("unavailable", f"The server answered {status}", permanent=False)
    return MediaError("unavailable", f"The server answered {status}")


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _path_of(descriptor: int) -> Path:
    """The file itself rather than its name, which could be pointed elsewhere meanwhile."""
    if sys.platform == "linux":
        return Path(f"/proc/self/fd/{descriptor}")
    return Path(f"/dev/fd/{descriptor}")
