"""A small client of the ingestion API, for the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    UnauthenticatedError,
    UnavailableError,
)

_ERRORS: dict[int, type[PenstockError]] = {
    400: InvalidArgumentError,
    401: UnauthenticatedError,
    403: UnauthenticatedError,
    404: NotFoundError,
    409: FailedPreconditionError,
    413: InvalidArgumentError,
}
_PIECE = 256 * 1024


class Api:
    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url = url
        self._client = httpx.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def upload(self, path: Path, on_bytes: Callable[[int], None]) -> str:
        """Send a file; returns what to call it in a job."""

        def pieces() -> Iterator[bytes]:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    yield piece
                    on_bytes(len(piece))

        answer = self._ask(
            "POST",
            "/uploads",
            params={"extension": path.suffix.lstrip(".")},
            content=pieces(),
            headers={"Content-Length": str(path.stat().st_size)},
            timeout=httpx.Timeout(30.0, write=None),
        )
        return str(answer["uploadId"])

    def submit(self, body: dict[str, Any], key: str | None) -> dict[str, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        return self._ask("POST", "/jobs", json=body, headers=headers)

    def job(self, job_id: str) -> dict[str, Any]:
        return self._ask("GET", f"/jobs/{_id(job_id)}")

    def jobs(self, **filters: Any) -> dict[str, Any]:
        wanted = {name: value for name, value in filters.items() if value is not None}
        return self._ask("GET", "/jobs", params=wanted)

    def transcript(self, job_id: str) -> dict[str, Any]:
        return self._ask("GET", f"/jobs/{_id(job_id)}/transcript")

    def change(self, job_id: str, verb: str) -> dict[str, Any]:
        return self._ask("POST", f"/jobs/{_id(job_id)}/{verb}")

    def events(self) -> Iterator[dict[str, Any] | None]:
        """Changes of jobs as they come; None when everything should be looked at again."""
        timeout = httpx.Timeout(30.0, read=60.0)
        try:
            with self._client.stream("GET", "/events", timeout=timeout) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise self._error(answer)
                yield None
                kind = ""
                for line in answer.iter_lines():
                    name, _, value = line.partition(":")
                    if name == "event":
                        kind = value.strip()
                    elif name == "data" and kind:
                        yield json.loads(value) if kind == "job" else None
                        kind = ""
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, **more)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if answer.is_success:
            found: dict[str, Any] = answer.json()
            return found
        raise self._error(answer)

    def _error(self, answer: httpx.Response) -> PenstockError:
        try:
            body = answer.json()
            detail = body.get("detail") or body.get("title") or ""
        except ValueError:
            detail = ""
        kind = _ERRORS.get(answer.status_code, UnavailableError)
        return kind(detail or f"The API answered {answer.status_code}")

    def _unreachable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"The API at {self._url} cannot be reached ({type(error).__name__}); start it with "
            "`penstock jobs serve`, or say where it is with --api"
        )


def _id(job_id: str) -> str:
    if not job_id.startswith("job_") or not job_id[4:].isalnum():
        raise InvalidArgumentError(
            "A job's id looks like job_0123…; `penstock jobs status` lists them"
        )
    return job_id
