"""A web server on loopback that behaves as each path says."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


class WebServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str = "127.0.0.1") -> None:
        if ":" in address:
            import socket

            self.address_family = socket.AF_INET6
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.stopping = threading.Event()
        super().__init__((address, 0), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave early are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((self.path, dict(self.headers)))
        self.close_connection = True
        if path.startswith("/endless"):
            self._head(200, {})
            while not self.server.stopping.is_set():
                self.wfile.write(b"x" * 65536)
        elif path.startswith("/slow"):
            self._head(200, {"Content-Length": "1000"})
            while not self.server.stopping.is_set():
                self.wfile.write(b"x")
                time.sleep(0.02)
        elif path.startswith("/hang"):
            self.server.stopping.wait(30)
        else:
            status, headers, body = self.server.answers.get(path, (404, {}, b""))
            self._head(status, {"Content-Length": str(len(body)), **headers})
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(
    context: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> Iterator[WebServer]:
    server = WebServer(address)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
