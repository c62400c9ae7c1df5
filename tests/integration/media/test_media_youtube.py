"""The YouTube client against a server that speaks its answers and its errors."""

import logging
from datetime import UTC, datetime

import msgspec
import pytest

from penstock.media import MediaError, YouTubeClient
from tests.support.media_server import serving

pytestmark = pytest.mark.real_time
KEY = "SECRET-key-0123456789"
ID = "dQw4w9WgXcQ"


@pytest.fixture
def server():
    with serving() as server:
        yield server


def item(**changes):
    made = {
        "kind": "youtube#video",
        "id": ID,
        "snippet": {
            "publishedAt": "2024-05-06T07:08:09Z",
            "channelId": "UC_x5XG1OV2P6uZZ5FSM9Ttw",
            "title": "A talk",
            "description": "ignored",
            "liveBroadcastContent": "none",
        },
        "contentDetails": {"duration": "P1DT2H3M4S", "caption": "true", "definition": "hd"},
        "status": {"privacyStatus": "public", "embeddable": True, "license": "youtube"},
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(value, dict) else value
    return made


def answer(server, body, status=200, headers=None):
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    server.answers["/youtube/v3/videos"] = (status, headers or {}, data)


def refusal(status, reason):
    errors = [{"message": f"about {KEY}", "domain": "youtube", "reason": reason}]
    return {"error": {"code": status, "message": f"about {KEY}", "errors": errors}}


async def ask(server, **options):
    url = f"http://127.0.0.1:{server.port}/youtube/v3"
    async with YouTubeClient(KEY, url, **options) as client:
        return await client.video(ID)


async def error_of(server, **options):
    with pytest.raises(MediaError) as caught:
        await ask(server, **options)
    assert KEY not in f"{caught.value!r} {caught.value.__cause__!r}"
    return caught.value


async def test_a_video_is_described(server):
    answer(server, {"items": [item()]})
    video = await ask(server)
    assert (video.id, video.channel_id, video.title) == (ID, "UC_x5XG1OV2P6uZZ5FSM9Ttw", "A talk")
    assert video.duration == 86_400 + 2 * 3600 + 3 * 60 + 4
    assert video.published_at == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert (video.live, video.caption, video.privacy, video.embeddable) == (
        *(False, True, "public", True),
    )


@pytest.mark.parametrize(("state", "live"), [("live", True), ("upcoming", True), ("none", False)])
async def test_a_broadcast_is_live_until_it_is_a_recording(server, state, live):
    answer(server, {"items": [item(snippet={"liveBroadcastContent": state})]})
    assert (await ask(server)).live is live


async def test_the_key_is_in_a_header_and_nowhere_else(server, caplog):
    caplog.set_level(logging.DEBUG)
    answer(server, {"items": [item()]})
    await ask(server)
    (path, headers), *_ = server.requests
    assert headers["X-Goog-Api-Key"] == KEY
    assert KEY not in path and KEY not in caplog.text


@pytest.mark.parametrize(
    ("status", "why", "reason", "permanent", "wait"),
    [
        (404, "videoNotFound", "not_found", True, None),
        (403, "quotaExceeded", "quota", False, 3600),
        (403, "dailyLimitExceeded", "quota", False, 3600),
        (403, "rateLimitExceeded", "quota", False, 30),
        (403, "userRateLimitExceeded", "quota", False, 30),
        (429, "whatever", "quota", False, 30),
        (403, "forbidden", "configuration", True, None),
        (403, "accessNotConfigured", "configuration", True, None),
        (400, "keyInvalid", "configuration", True, None),
        (401, "authError", "configuration", True, None),
        (500, "backendError", "unavailable", False, 10),
        (503, "backendError", "unavailable", False, 10),
        (418, "teapot", "unavailable", True, None),
        (302, "", "unavailable", True, None),
    ],
)
async def test_a_refusal_says_whether_to_try_again(server, status, why, reason, permanent, wait):
    answer(server, refusal(status, why), status)
    error = await error_of(server)
    assert (error.reason, error.permanent, error.retry_after) == (reason, permanent, wait)


async def test_the_wait_the_server_asks_for_is_passed_on(server):
    answer(server, b"", 503, {"Retry-After": "120"})
    assert (await error_of(server)).retry_after == 120
    answer(server, b"", 429, {"Retry-After": "999999999"})
    assert (await error_of(server)).retry_after == 86_400


async def test_no_items_or_another_video_is_not_found(server):
    for items in ([], [item(id="aaaaaaaaaaa")]):
        answer(server, {"items": items})
        error = await error_of(server)
        assert (error.reason, error.permanent) == ("not_found", True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b'{"items": [{}]}',
        b'{"items": 1}',
        msgspec.json.encode({"items": [item(contentDetails={"duration": "tomorrow"})]}),
        msgspec.json.encode({"items": [item(snippet={"publishedAt": "yesterday"})]}),
        b" " * (2 << 20),
    ],
)
async def test_an_answer_that_makes_no_sense_is_tried_again_later(server, body):
    answer(server, body)
    error = await error_of(server)
    assert (error.reason, error.retryable) == ("unavailable", True)


async def test_a_server_that_hangs_trickles_or_is_gone_is_tried_again_later(server):
    for path in ("hang", "slow"):
        url = f"http://127.0.0.1:{server.port}/{path}"
        async with YouTubeClient(KEY, url, timeout=0.3) as client:
            with pytest.raises(MediaError) as caught:
                await client.video(ID)
        assert (caught.value.reason, caught.value.retry_after) == ("timeout", 10)
    async with YouTubeClient(KEY, "http://127.0.0.1:1") as client:
        with pytest.raises(MediaError) as caught:
            await client.video(ID)
    assert (caught.value.reason, caught.value.retryable) == ("network", True)
