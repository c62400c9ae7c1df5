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
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field

from penstock.config import check_name
from penstock.errors import InvalidArgumentError
from penstock.jobs.model.names import MediaType
from penstock.jobs.pipeline.declaration import Pipeline, pipeline_of
from penstock.jobs.pipeline.media import MEDIA
from penstock.jobs.pipeline.stage import Stage
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.spelling import NOT_SETTINGS, PREFIX, check_keys, check_spelling
from penstock.secret_files import with_files

# Uploads are kept in a folder of the media root that plain references cannot name, and are stored
# with the job as `upload:<user>/<name>`.
UPLOAD = "upload:"
UPLOADS = "uploads"


class Topics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`media`: a work topic of its own for a media type that must not wait behind the others."""

    processing: str = "job-processing"
    events: str = "job-events"
    media: dict[MediaType, str] = {}
    retention: Annotated[float, Meta(ge=0, le=31 * 86_400)] = 30 * 86_400.0
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
    """How each stage is consumed, by its name. The fields are those of the pipeline."""

    def of(self, stage: Stage) -> StageSettings:
        found: StageSettings = getattr(self, stage.name)
        return found


def _stages_of(pipeline: Pipeline) -> type[Stages]:
    made: Any = msgspec.defstruct(
        "Stages",
        [(stage.name, StageSettings, pipeline.settings_of(stage)) for stage in pipeline.stages],
        bases=(Stages,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
    )
    return made  # type: ignore[no-any-return]


MediaStages = _stages_of(MEDIA)


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
    max_pages: Annotated[int, Meta(ge=1, le=2000)] = 500
    max_characters: Annotated[int, Meta(ge=1, le=5_000_000)] = 1_000_000
    """Of a document, what is read at most; one that has more is marked as truncated."""
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
    """To follow the events by, on a broker without a log."""

    @property
    def spark_subscription(self) -> str:
        """The same, for the projection on Spark: of those who share a subscription, each event
        goes to one."""
        return f"{self.views_subscription}-spark"

    def __repr__(self) -> str:
        return f"<ApiSettings {self.host}:{self.port}, {len(self.tokens)} tokens>"


class JobSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set of a job system, and the pipeline it is set for: media jobs here,
    another in what `load_settings` makes for that."""

    pipeline: ClassVar[Pipeline] = MEDIA

    url: str = "memory://"
    database: str = "sqlite:///penstock.db"
    topics: Topics = field(default_factory=Topics)
    stages: Stages = field(default_factory=MediaStages)
    media: MediaSettings = field(default_factory=MediaSettings)
    api: ApiSettings = field(default_factory=ApiSettings)

    def __repr__(self) -> str:
        # Addresses may carry passwords.
        return f"<JobSettings of {self.pipeline.name}, {self.topics!r}>"

    def subscriptions_of(self, stage: StageSettings) -> dict[str, str]:
        """Where its messages are taken from, by topic: one for each that jobs are sent to."""
        name, topics = stage.subscription, self.topics
        return {
            topic: name if topic == topics.processing else f"{name}-{topic}"
            for topic in topics.work
        }

    def to_json(self) -> bytes:
        """For a process elsewhere, which reads it with `settings_from_json`. Passwords included."""
        return msgspec.json.encode(self)


@cache
def settings_type(pipeline: Pipeline) -> type[JobSettings]:
    """`JobSettings` with the stages, topics and subscriptions of a pipeline as its defaults."""
    stages = _stages_of(pipeline)
    made: Any = msgspec.defstruct(
        "JobSettings",
        [
            ("stages", stages, field(default_factory=stages)),
            ("topics", Topics, field(default_factory=lambda: _topics_of(pipeline))),
            ("api", ApiSettings, field(default_factory=lambda: _api_of(pipeline))),
        ],
        bases=(JobSettings,),
        namespace={"pipeline": pipeline},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
    )
    return made  # type: ignore[no-any-return]


def _topics_of(pipeline: Pipeline) -> Topics:
    return Topics(processing=pipeline.processing_topic, events=pipeline.events_topic)


def _api_of(pipeline: Pipeline) -> ApiSettings:
    return ApiSettings(views_subscription=f"{pipeline.prefix}-views")


def settings_from_json(data: bytes, pipeline: Pipeline) -> JobSettings:
    return msgspec.json.decode(data, type=settings_type(pipeline))


def load_settings(
    file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    pipeline: Pipeline | str = MEDIA,
    **arguments: Any,
) -> JobSettings:
    """Settings from all layers, for a pipeline or the one at `module:NAME`; `arguments` win, and
    those that are None are not given.

    `InvalidArgumentError` names the setting that is wrong, and never its value.
    """
    kind = settings_type(pipeline_of(pipeline) if isinstance(pipeline, str) else pipeline)
    environ = os.environ if environ is None else environ
    layers: list[dict[str, Any]] = [msgspec.to_builtins(kind())]
    if file is None:
        file = environ.get(f"{PREFIX}CONFIG")
    if file is not None:
        layers.append(_read(Path(file)))
        check_keys(kind, layers[-1], f" in {file}")
    check_spelling(kind, environ)
    layers.append(_from_environment(with_files(environ, PREFIX)))
    layers.append(_given(arguments))
    check_keys(kind, layers[-1], "")
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    try:
        settings = msgspec.convert(merged, kind, strict=False)
    except (msgspec.ValidationError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"A setting is wrong: {error}") from None
    strangers = settings.topics.media.keys() - kind.pipeline.job_types.keys()
    if strangers:
        known = ", ".join(kind.pipeline.job_types)
        raise InvalidArgumentError(
            f"A setting is wrong: topics.media names {min(strangers)}, and pipeline "
            f"{kind.pipeline.name!r} has no such jobs; its media types are {known}"
        )
    return settings


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
        if path == name or path in NOT_SETTINGS:
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
