"""Errors as problem details (RFC 9457), which say what was wrong and never repeat what was sent."""

from __future__ import annotations

import logging
from http import HTTPStatus
from traceback import walk_tb
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.exceptions.http_exceptions import ClientException

from penstock.errors import PenstockError
from penstock.jobs.model.codec import without_input

_log = logging.getLogger("penstock.web")

# gRPC's codes, as HTTP says them.
_STATUS = {3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 409, 12: 501, 14: 503, 16: 401}
_UNREADABLE = "The request cannot be read: send JSON as the API's page describes it"
_INCOMPLETE = "Something that is required is missing: /docs says what this address is asked with"
_RETRY_AFTER = {429, 503}
_ANSWERING = ("penstock.web.", "penstock.jobs.", "penstock.media.")


def problem(
    status: int, detail: str = "", headers: dict[str, str] | None = None
) -> Response[dict[str, Any]]:
    title = HTTPStatus(status).phrase
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
    if detail:
        body["detail"] = detail
    sent = dict(headers or {})
    if status in _RETRY_AFTER:
        sent.setdefault("Retry-After", "1")
    return Response(body, status_code=status, media_type="application/problem+json", headers=sent)


def on_penstock_error(_: Request[Any, Any, Any], error: PenstockError) -> Response[dict[str, Any]]:
    status = _STATUS.get(error.code, 500)
    if not _is_answer(error) and status not in (400, 500):
        # Of broker and database: their words name hosts and tables, and are for those who run them.
        _log.warning("A request failed, because a part of the API does: %s", error)
        return problem(503, "A part that this API stands on does not work; try again later")
    if status == 500 or not _is_answer(error):
        _log.error("A request failed: %s", type(error).__name__, exc_info=error)
        return problem(500)
    return problem(status, str(error))


def _is_answer(error: PenstockError) -> bool:
    """Whether the API or the jobs say it, to whoever asks; all else is raised further down."""
    raised_in = ""
    for frame, _ in walk_tb(error.__traceback__):
        raised_in = frame.f_globals.get("__name__", "")
    return raised_in.startswith(_ANSWERING)


def on_http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    return problem(error.status_code, _detail(error), error.headers)


def on_deep_nesting(_: Request[Any, Any, Any], __: RecursionError) -> Response[dict[str, Any]]:
    """Nothing of ours goes that deep: it is the request's JSON that does."""
    return problem(400, _UNREADABLE)


def on_error(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    _log.error("A request failed: %s", type(error).__name__, exc_info=error)
    return problem(500)


def _detail(error: HTTPException) -> str:
    """Texts of ours are for people; those of the framework may quote the request."""
    if isinstance(error, ValidationException):
        extra: Any = error.extra
        places = [
            f"{item.get('key', 'body')}: {without_input(item.get('message', ''))}"
            for item in (extra if isinstance(extra, list) else [])
            if isinstance(item, dict)
        ]
        return "; ".join(places[:5]) or _INCOMPLETE
    if isinstance(error, ClientException) and error.status_code == 400:
        return _UNREADABLE
    return error.detail if error.status_code in (401, 403, 415, 429) else ""
