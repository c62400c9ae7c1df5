"""The few pages a process serves about itself."""

import asyncio

import pytest

from penstock.cli.apps.pages import serving
from penstock.errors import UnavailableError


async def ask(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer.decode()


@pytest.mark.real_time
async def test_pages_answer_with_their_status_and_others_are_named():
    pages = {"/live": lambda: (200, "alive\n"), "/ready": lambda: (503, "not ready\n")}
    async with serving(pages, "127.0.0.1", 0) as port:
        live = await ask(port, b"GET /live?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert live.startswith("HTTP/1.1 200 OK\r\n") and live.endswith("\r\n\r\nalive\n")
        assert "503" in await ask(port, b"GET /ready HTTP/1.1\r\n\r\n")
        head = await ask(port, b"HEAD /live HTTP/1.1\r\n\r\n")
        assert "Content-Length: 6" in head and not head.endswith("alive\n")
        assert "There are /live, /ready" in await ask(port, b"GET / HTTP/1.1\r\n\r\n")
        assert "405" in await ask(port, b"POST /live HTTP/1.1\r\n\r\n")


@pytest.mark.real_time
async def test_nonsense_is_not_answered_and_stops_nothing():
    async with serving({"/live": lambda: (200, "alive\n")}, "127.0.0.1", 0) as port:
        assert await ask(port, b"x" * 100_000 + b"\r\n") == ""
        assert "404" in await ask(port, b"GET\r\n")
        assert "405" in await ask(port, b"\r\n")
        assert "alive" in await ask(port, b"GET /live HTTP/1.1\r\n\r\n")


@pytest.mark.real_time
async def test_a_port_that_is_taken_is_told():
    async with serving({}, "127.0.0.1", 0) as port:
        with pytest.raises(UnavailableError, match=f"Cannot listen on 127.0.0.1:{port}"):
            async with serving({}, "127.0.0.1", port):
                pass
