"""Names of stages and of media types: ours, and those that pipelines declare.

A name is one object however often it is read, so that `is` compares names, and one that nobody in
this process has declared is refused wherever it is read, as a member of an enum would be. That is a
check of spelling and no more: a name may be of another pipeline that is imported here. Whether it
is one of this pipeline is asked by those who have one: the codec, the store, the settings and the
views.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Self

from penstock.errors import InvalidArgumentError

_declared: dict[type[StrEnum], dict[str, Any]] = {}


class _OpenNames(StrEnum):
    """An enum to which names may be added."""

    @classmethod
    def named(cls, name: str) -> Self:
        """The member of that name, declared with this if it is new."""
        try:
            return cls(name)
        except ValueError:
            pass
        if not isinstance(name, str) or not re.fullmatch(cls._allowed(), name):
            raise InvalidArgumentError(
                f"{name!r} cannot be a {cls.__name__}: it must match {cls._allowed()}"
            )
        made = str.__new__(cls, name)
        made._name_ = made._value_ = name
        return _declared.setdefault(cls, {}).setdefault(name, made)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # By value: some versions of Python pickle an enum by its attribute, which only ours have.
        return type(self), (self._value_,)

    @classmethod
    def is_known(cls, name: str | None) -> bool:
        return name in cls._value2member_map_ or name in _declared.get(cls, {})

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return _declared.get(cls, {}).get(value)  # type: ignore[call-overload]

    @classmethod
    def _allowed(cls) -> str:
        raise NotImplementedError


# Their docstrings, or that they have none, are part of the schema of the messages.


class MediaType(_OpenNames):
    # What a job is about. The members are those of media jobs.

    AUDIO = "audio"
    VIDEO = "video"
    YOUTUBE = "youtube"
    DOCUMENT = "document"

    @classmethod
    def _allowed(cls) -> str:
        return "[a-z][a-z0-9_-]{0,15}"


class JobStage(_OpenNames):
    """Where a job is. Its pipeline says how far that is, and how a job may end."""

    # The members are those of media jobs. Every pipeline has the first and the last two; which
    # comes after which is the pipeline's to say.

    QUEUED = "Queued"
    METADATA_READY = "MetadataReady"
    TRANSCRIPT_COMPLETE = "TranscriptComplete"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @classmethod
    def _allowed(cls) -> str:
        return "[A-Z][A-Za-z0-9]{0,23}"
