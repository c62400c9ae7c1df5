"""What YouTube's Data API says about a video."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Annotated

import httpx
import msgspec
from msgspec import Meta, Struct, field

from penstock.errors import InvalidArgumentError
from penstock.lifetime import AsyncClosing
from penstock.media.errors import MediaError
from penstock.media.video_ids import video_id_of

_DURATION = re.compile(
    r"P(?:(\d{1,4})W)?(?:(\d{1,4})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,8})S)?)?"
)
_UNITS = (604_800, 86_400, 3600, 60, 1)
_LARGEST_ANSWER = 1 << 20
_QUOTA = frozenset(
    {
        "quotaExceeded",
        "dailyLimitExceeded",
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "RATE_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
    }
)
# Quota of the day comes back at midnight Pacific time; asking once an hour is often enough.
_DAILY = frozenset({"quotaExceeded", "dailyLimitExceeded"})
_WAIT_DAILY, _WAIT_RATE, _WAIT_SERVER = 3600.0, 30.0, 10.0


class YouTubeVideo(Struct, frozen=True, kw_only=True):
    """`live` is true while a broadcast runs or is announced: there is no recording yet."""

    id: str
    channel_id: str
    title: str
    published_at: datetime
    duration: float
    live: bool
    caption: bool
    privacy: str
    embeddable: bool


def parse_video_id(url_or_id: str) -> str:
    """The 11 characters of a video, from itself or an address of YouTube; MediaError otherwise."""
    try:
        return video_id_of(url_or_id)
    except InvalidArgumentError as error:
        raise MediaError("bad_reference", str(error)) from None


def parse_duration(text: str) -> float:
    """Seconds of an ISO 8601 duration such as `P1DT2H3M4S`."""
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError(f"Not a duration: {text[:40]!r}")
    return float(sum(int(n) * unit for n, unit in zip(match.groups(), _UNITS, strict=True) if n))


class _Snippet(Struct):
    channel_id: str = field(name="channelId")
    title: Annotated[str, Meta(max_length=1000)]
    published_at: Annotated[datetime, Meta(tz=True)] = field(name="publishedAt")
    live: str = field(name="liveBroadcastContent", default="none")


class _Content(Struct):
    # A broadcast that has not begun has no duration.
    duration: str = "PT0S"
    caption: str = "false"


class _Status(Struct):
    privacy: str = field(name="privacyStatus", default="unknown")
    embeddable: bool = False


class _Item(Struct):
    id: str
    snippet: _Snippet
    content: _Content = field(name="contentDetails", default_factory=_Content)
    status: _Status = field(default_factory=_Status)


class _Answer(Struct):
    items: list[_Item] = field(default_factory=list)


class _Problem(Struct):
    reason: str = ""


class _Error(Struct):
    errors: list[_Problem] = field(default_factory=list)
    details: list[_Problem] = field(default_factory=list)
    status: str = ""


class _Refusal(Struct):
    error: _Error


class YouTubeClient(AsyncClosing):
    """Asks the Data API. The key goes in a header, so it is in no address, log or error.

    It never retries by itself: errors say whether and when to.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str = "https://www.googleapis.com/youtube/v3",
        *,
        timeout: float = 10.0,
    ) -> None:
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise MediaError("configuration", "The YouTube API key is missing or damaged")
        self._timeout = timeout
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/") + "/",
            headers={"X-Goog-Api-Key": api_key, "Accept-Encoding": "identity"},
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def video(self, video_id: str) -> YouTubeVideo:
        """What is known about one video, named by its id or an address of it."""
        wanted = parse_video_id(video_id)
        parameters = {"part": "snippet,contentDetails,status", "id": wanted, "maxResults": "1"}
        status, headers, body = await self._get("videos", parameters)
        if status != 200:
            raise _refused(status, headers, body)
        try:
            items = msgspec.json.decode(body, type=_Answer).items
            found = [_video(item) for item in items if item.id == wanted]
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            text = "YouTube's answer is not what its API describes"
            raise MediaError("unavailable", text, permanent=False) from None
        if not found:
            raise MediaError("not_found", f"YouTube has no video {wanted}, or it is private")
        return found[0]

    async def _get(self, path: str, parameters: dict[str, str]) -> tuple[int, httpx.Headers, bytes]:
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream("GET", path, params=parameters) as response,
            ):
                body = b""
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _LARGEST_ANSWER:
                        text = "YouTube's answer is too large"
                        raise MediaError("unavailable", text, permanent=False)
                return response.status_code, response.headers, body
        except (TimeoutError, httpx.TimeoutException):
            text = "YouTube did not answer in time"
            raise MediaError("timeout", text, permanent=False, retry_after=_WAIT_SERVER) from None
        except httpx.HTTPError as error:
            text = f"YouTube cannot be reached ({type(error).__name__})"
            raise MediaError("network", text, permanent=False, retry_after=_WAIT_SERVER) from None


def _video(item: _Item) -> YouTubeVideo:
    return YouTubeVideo(
        id=item.id,
        channel_id=item.snippet.channel_id,
        title=item.snippet.title,
        published_at=item.snippet.published_at,
        duration=parse_duration(item.content.duration),
        live=item.snippet.live in ("live", "upcoming"),
        caption=item.content.caption == "true",
        privacy=item.status.privacy,
        embeddable=item.status.embeddable,
    )


def _refused(status: int, headers: httpx.Headers, body: bytes) -> MediaError:
    reasons = _reasons(body)
    if status == 429 or (status == 403 and reasons & _QUOTA):
        usual = _WAIT_DAILY if reasons & _DAILY else _WAIT_RATE
        wait = retry_after(headers.get("retry-after"), usual)
        text = "YouTube's quota is used up for now"
        return MediaError("quota", text, permanent=False, retry_after=wait)
    if status >= 500 or status == 408:
        wait = retry_after(headers.get("retry-after"), _WAIT_SERVER)
        text = f"YouTube answered {status}"
        return MediaError("unavailable", text, permanent=False, retry_after=wait)
    if status == 404:
        return MediaError("not_found", "YouTube has no such video")
    if status in (400, 401, 403):
        text = f"YouTube refuses our key or request ({status}); check the API key and its rights"
        return MediaError("configuration", text)
    return MediaError("unavailable", f"YouTube answered {status}")


def _reasons(body: bytes) -> frozenset[str]:
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return frozenset()
    return frozenset({error.status, *(p.reason for p in (*error.errors, *error.details))})


def retry_after(value: str | None, usual: float, *, now: datetime | None = None) -> float:
    """Seconds a `Retry-After` header asks for, at most a day; `usual` when it says nothing."""
    if value is None:
        return usual
    if value.isdecimal() and len(value) < 10:
        return min(float(value), 86_400.0)
    try:
        moment = parsedate_to_datetime(value)
        since = now or datetime.now(moment.tzinfo)
        return min(max(0.0, (moment - since).total_seconds()), 86_400.0)
    except (ValueError, TypeError):
        return usual
