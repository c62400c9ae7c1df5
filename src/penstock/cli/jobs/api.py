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
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.media import MEDIA

_ERRORS: dict[int, type[PenstockError]] = {
    400: InvalidArgumentError,
    401: UnauthenticatedError,
    403: UnauthenticatedError,
    404: NotFoundError,
    409: FailedPreconditionError,
    413: InvalidArgumentError,
}
_PIECE = 256 * 1024
_JOB = ("jobId", "mediaType", "stage", "updatedAt")


class Api:
    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {_sendable('A token', token)}"} if token else {}
        self.reached = False
        """It has answered before, so when it does not it may come back."""
        self._url = _address(url)
        self._client = httpx.Client(
            base_url=self._url, headers=headers, timeout=30.0, trust_env=False
        )

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

        try:
            answer = self._ask(
                "POST",
                "/uploads",
                needs=("uploadId",),
                params={"extension": path.suffix.lstrip(".")},
                content=pieces(),
                headers={"Content-Length": str(path.stat().st_size)},
                timeout=httpx.Timeout(30.0, write=None),
            )
        except OSError as error:
            if isinstance(error, PenstockError):
                raise
            raise InvalidArgumentError(f"Cannot read {path}: {error.strerror}") from None
        return str(answer["uploadId"])

    def submit(self, body: dict[str, Any], key: str | None) -> dict[str, Any]:
        headers = {"Idempotency-Key": _sendable("A key", key)} if key else {}
        return self._ask("POST", "/jobs", needs=_JOB, json=body, headers=headers)

    def job(self, job_id: str) -> dict[str, Any]:
        return self._ask("GET", f"/jobs/{_id(job_id)}", needs=_JOB)

    def jobs(self, **filters: Any) -> list[dict[str, Any]]:
        wanted = {name: value for name, value in filters.items() if value is not None}
        found = self._ask("GET", "/jobs", needs=("jobs",), params=wanted)["jobs"]
        return [self._checked(job, _JOB) for job in found]

    def transcript(self, job_id: str) -> dict[str, Any]:
        return self._ask("GET", f"/jobs/{_id(job_id)}/transcript", needs=("segments",))

    def change(self, job_id: str, verb: str) -> dict[str, Any]:
        return self._ask("POST", f"/jobs/{_id(job_id)}/{verb}", needs=_JOB)

    def stages(self) -> list[str]:
        """Where jobs are, one after the other, when nothing goes wrong; as it is for media jobs
        where the API does not say."""
        return self._told_of_pipeline("stages") or [s.value for s in MEDIA.order]

    def check_stage(self, stage: str) -> None:
        _check_word("--stage", stage, [*self.stages(), JobStage.FAILED, JobStage.CANCELLED])

    def check_kind(self, kind: str) -> None:
        """Before a file is uploaded for nothing."""
        _check_word("--type", kind, self._told_of_pipeline("mediaTypes"))

    def _told_of_pipeline(self, what: str) -> list[str]:
        try:
            told = self._ask("GET", "/pipeline", needs=(what,))[what]
        except (NotFoundError, FailedPreconditionError):
            told = None
        return told if isinstance(told, list) else []

    def events(self) -> Iterator[dict[str, Any] | None]:
        """Changes of jobs as they come; None when everything should be looked at again, as in the
        beginning. Ends when the API ends it."""
        timeout = httpx.Timeout(30.0, read=60.0)
        try:
            with self._client.stream("GET", "/events", timeout=timeout) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise self._error(answer)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._something_else()
                kind = ""
                for line in answer.iter_lines():
                    name, _, value = line.partition(":")
                    if not name and value.strip() == "watching":
                        self.reached = True
                        # Before this a change could be missed, so nothing is looked at earlier.
                        yield None
                    elif name == "event":
                        kind = value.strip()
                    elif name == "data" and kind:
                        yield self._checked(self._decoded(value), _JOB) if kind == "job" else None
                        kind = ""
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _ask(
        self, method: str, path: str, *, needs: tuple[str, ...], **more: Any
    ) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, **more)
        except UnicodeEncodeError:
            raise InvalidArgumentError(
                "Names that are no UTF-8 cannot be sent; rename it, or upload the file with --title"
            ) from None
        except httpx.HTTPError as error:
            if isinstance(error, httpx.LocalProtocolError) and "content" in more:
                raise FailedPreconditionError(
                    "The file changed while it was sent; try again once it is whole"
                ) from None
            raise self._unreachable(error) from None
        if answer.is_success:
            found = self._checked(self._decoded(answer.content), needs)
            self.reached = True
            return found
        raise self._error(answer)

    def _decoded(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._something_else() from None

    def _checked(self, value: Any, needs: tuple[str, ...]) -> dict[str, Any]:
        if isinstance(value, dict) and all(name in value for name in needs):
            return value
        raise self._something_else()

    def _error(self, answer: httpx.Response) -> PenstockError:
        try:
            body = answer.json()
        except ValueError:
            body = None
        told = body if isinstance(body, dict) else {}
        detail = told.get("detail") or told.get("title") or ""
        kind = _ERRORS.get(answer.status_code, UnavailableError)
        return kind(str(detail) or f"The API at {self._url} answered {answer.status_code}")

    def _something_else(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"What answers at {self._url} is not this API; say where it is with --api"
        )

    def _unreachable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"The API at {self._url} cannot be reached ({type(error).__name__}); start it with "
            "`penstock jobs serve`, or say where it is with --api"
        )


def _address(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        right = parsed.scheme in ("http", "https") and bool(parsed.host)
        right = right and (parsed.port is None or 0 < parsed.port < 65_536)
    except (httpx.InvalidURL, ValueError):
        right = False
    if not right:
        raise InvalidArgumentError("--api must be an address such as http://127.0.0.1:8080")
    return url


def _check_word(option: str, word: str, known: list[str]) -> None:
    """An API that does not say which there are judges for itself."""
    if known and word not in known:
        raise InvalidArgumentError(f"{option} is one of {', '.join(known)}, not {word}")


def _sendable(what: str, text: str | None) -> str:
    if text is None or not (text.isascii() and text.isprintable()):
        raise InvalidArgumentError(f"{what} has letters, digits and signs of ASCII only")
    return text


def _id(job_id: str) -> str:
    if not job_id.startswith("job_") or not job_id[4:].isalnum():
        raise InvalidArgumentError(
            "A job's id looks like job_0123…; `penstock jobs status` lists them"
        )
    return job_id
