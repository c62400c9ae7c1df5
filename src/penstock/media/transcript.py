"""What was said, and when."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

_Seconds = Annotated[float, Meta(ge=0, le=366 * 86_400)]


class Segment(Struct, frozen=True, array_like=True):
    """What was said between two moments, in seconds from the beginning. In JSON it is a list of
    the three."""

    start: _Seconds
    end: _Seconds
    text: str


class Transcript(Struct, frozen=True, kw_only=True):
    """All that was said in a recording. `model` wrote it down. Segments follow one another and end
    with the recording. `doubtful`: the model was unsure of most of it, as of a language that it
    does not know; one that knows English only takes everything for it."""

    language: str
    duration: float
    segments: tuple[Segment, ...]
    model: str
    doubtful: bool = False

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments)
