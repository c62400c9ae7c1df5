"""Settings of the job system: defaults, then a file, then the environment, then arguments.

They are resolved once, at the edge, into frozen values that are passed in. The file is TOML; an
environment variable names the same thing with a prefix and two underscores for each step down:
`PENSTOCK_STAGES__METADATA__CONCURRENCY=4` is

    [stages.metadata]
    concurrency = 4
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from penstock.config import RetryPolicy, check_name
from penstock.errors import InvalidArgumentError
from penstock.jobs.model.job import JobStage, MediaType
from penstock.rules.filters import parse_filter

PREFIX = "PENSTOCK_"
# Variables with the prefix that are no settings: they belong to the command line and the tests.
_NOT_SETTINGS = {"CONFIG"}

# Uploads are kept in a folder of the media root that plain references cannot name, and are stored
# with the job as `upload:<user>/<name>`.
UPLOAD = "upload:"
UPLOADS = "uploads"

Whole: TypeAlias = Annotated[int, Meta(ge=1, le=10_000)]
Duration: TypeAlias = Annotated[float, Meta(ge=0, le=600)]


class StageSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one stage is consumed.

    `filter`: which messages, in Pub/Sub's syntax; by default those at the stage it consumes.
    `ack_deadline` is renewed every `extension_interval` seconds, give or take the share
    `extension_jitter`, while a handler works. `time_limit`: seconds a handler may take.
    `drain`: seconds that handlers get to finish when a worker is stopped.
    `dead_letter_topic`: where messages go that failed `max_attempts` times; by default shared by
    all stages of a topic. `invalid`: what to do with a message that does not decode.
    """

    subscription: str
    filter: str
    concurrency: Whole = 4
    ack_deadline: Annotated[float, Meta(ge=10, le=600)] = 60.0
    extension_interval: Annotated[float, Meta(gt=0, le=300)] = 20.0
    extension_jitter: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    time_limit: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    drain: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    minimum_backoff: Duration = 1.0
    maximum_backoff: Duration = 60.0
    dead_letter_topic: str | None = None
    invalid: Literal["dead-letter", "retry"] = "dead-letter"

    def __post_init__(self) -> None:
        check_name("Subscription", self.subscription)
        parse_filter(self.filter)
        if self.dead_letter_topic is not None:
            check_name("Dead-letter topic", self.dead_letter_topic)
        if self.maximum_backoff < self.minimum_backoff:
            raise ValueError("maximum_backoff is less than minimum_backoff")
        if self.extension_interval >= self.ack_deadline:
            raise ValueError("extension_interval must be shorter than ack_deadline")

    @property
    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(
            minimum_backoff=self.minimum_backoff, maximum_backoff=self.maximum_backoff
        )

    def dead_letters(self, topic: str) -> str:
        """Where dead letters of a topic go."""
        return self.dead_letter_topic or f"{topic}-dead"


class Topics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`media`: a work topic of its own for a media type that must not wait behind the others."""

    processing: str = "job-processing"
    events: str = "job-events"
    media: dict[MediaType, str] = {}
    retention: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 30 * 86_400.0
    """Seconds that events are kept, to rebuild the read model from."""

    def __post_init__(self) -> None:
        for name in (self.processing, self.events, *self.media.values()):
            check_name("Topic", name)

    def of(self, kind: MediaType) -> str:
        return self.media.get(kind, self.processing)

    @property
    def dead_events(self) -> str:
        """Where messages go that should be events and are not."""
        return f"{self.events}-dead"

    @property
    def work(self) -> tuple[str, ...]:
        """Every topic that jobs are sent to."""
        return tuple(dict.fromkeys((self.processing, *self.media.values())))


class Stages(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata: StageSettings = StageSettings(
        subscription="job-metadata",
        filter=f'attributes.stage = "{JobStage.QUEUED}"',
        concurrency=16,
        time_limit=120.0,
    )
    transcription: StageSettings = StageSettings(
        subscription="job-transcription",
        filter=f'attributes.stage = "{JobStage.METADATA_READY}"',
        concurrency=2,
        time_limit=4 * 3600.0,
    )


class MediaSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`root`: the folder that media is read from and uploads are kept in. `hosts`: hosts that
    media may be fetched from. `model`: a name, or a folder with weights of faster-whisper."""

    root: Annotated[str, Meta(min_length=1)] | None = None
    hosts: tuple[str, ...] = ()
    allow_http: bool = False
    """Plain http as well as https, for hosts of one's own network."""
    allow_loopback: bool = False
    """Hosts that lead to this machine, for tests and laptops."""
    max_bytes: Annotated[int, Meta(ge=1, le=2**40)] = 4 * 2**30
    max_upload_bytes: Annotated[int, Meta(ge=1, le=2**40)] = 2**30
    keep_uploads: Annotated[float, Meta(ge=3600, le=3660 * 86_400)] = 30 * 86_400.0
    """Seconds that an upload is kept after it was last sent or asked for."""
    fetch_timeout: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    model: str = "tiny.en"
    language: str | None = None
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    youtube_api_key: str | None = None
    youtube_url: str = "https://www.googleapis.com/youtube/v3"
    youtube_media: str | None = None
    """Where recordings of YouTube videos are: a reference with `{video_id}` in it."""
    speakers: str | None = None
    """A file that says which channel speaks in which role."""

    def __repr__(self) -> str:
        return f"<MediaSettings root={self.root!r}>"


class ApiSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tokens`: token → user id. Beyond loopback there must be some."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    tokens: dict[str, str] = {}
    local_user: str = "local"
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**30)] = 64 * 1024
    views: Literal["memory", "sql"] = "memory"
    views_subscription: str = "job-views"

    def __repr__(self) -> str:
        return f"<ApiSettings {self.host}:{self.port}, {len(self.tokens)} tokens>"


class JobSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str = "memory://"
    database: str = "sqlite:///penstock.db"
    topics: Topics = field(default_factory=Topics)
    stages: Stages = field(default_factory=Stages)
    media: MediaSettings = field(default_factory=MediaSettings)
    api: ApiSettings = field(default_factory=ApiSettings)

    def __repr__(self) -> str:
        # Addresses may carry passwords.
        return f"<JobSettings {self.topics!r}>"


def load_settings(
    file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    **arguments: Any,
) -> JobSettings:
    """Settings from all layers; `arguments` win, and those that are None are not given.

    `InvalidArgumentError` names the setting that is wrong, and never its value.
    """
    environ = os.environ if environ is None else environ
    layers: list[dict[str, Any]] = [msgspec.to_builtins(JobSettings())]
    if file is None:
        file = environ.get(f"{PREFIX}CONFIG")
    if file is not None:
        layers.append(_read(Path(file)))
    layers.append(_from_environment(environ))
    layers.append(_given(arguments))
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    try:
        return msgspec.convert(merged, JobSettings, strict=False)
    except (msgspec.ValidationError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"A setting is wrong: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InvalidArgumentError(f"Cannot read settings from {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"Settings file {path} is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise InvalidArgumentError(
            f"Settings file {path} is not TOML: it must be saved as UTF-8"
        ) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = set(JobSettings.__struct_fields__)
    found: dict[str, Any] = {}
    # Sorted, a whole comes before its parts, whatever order they were set in.
    for name in sorted(environ):
        path = name.removeprefix(PREFIX)
        if path == name or path in _NOT_SETTINGS:
            continue
        *parents, last = path.lower().split("__")
        if (*parents, last)[0] not in known:
            continue
        at = found
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise InvalidArgumentError(
                    f"{name} is a part of something that another variable sets as a whole; "
                    "unset one of them"
                )
        at[last] = _value(environ[name])
    return found


def _value(text: str) -> Any:
    """Lists and tables are written as JSON, everything else as it is."""
    if text[:1] in "[{":
        try:
            return msgspec.json.decode(text.encode())
        except msgspec.MsgspecError:
            return text
    return text


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _given(value) if isinstance(value, Mapping) else value
        for name, value in arguments.items()
        if value is not None
    }


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        known = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(known, Mapping)
        merged[name] = _merge(known, value) if both else value  # type: ignore[arg-type]
    return merged
