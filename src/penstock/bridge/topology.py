"""What a bridge needs in the broker, and that nobody else has it already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import FailedPreconditionError
from penstock.rules.wildcards import covers, overlap


@dataclass(frozen=True, slots=True)
class Overlap:
    """A subject that one stream wants and another would store as well."""

    subject: str
    stream: str
    """Whose it is."""
    theirs: str


def overlaps(
    stream: str, subjects: Iterable[str], others: Mapping[str, Sequence[str]]
) -> list[Overlap]:
    """Where subjects that `stream` wants meet those of other streams."""
    return [
        Overlap(subject, other, theirs)
        for subject in subjects
        for other, held in others.items()
        for theirs in held
        if other != stream and overlap(subject, theirs)
    ]


def check_overlaps(
    stream: str, subjects: Iterable[str], others: Mapping[str, Sequence[str]]
) -> None:
    """`FailedPreconditionError` unless each subject would be stored by `stream` alone."""
    found = overlaps(stream, subjects, others)
    if found:
        listed = "; ".join(
            f"{one.subject!r} overlaps {one.theirs!r} of stream {one.stream!r}" for one in found
        )
        raise FailedPreconditionError(
            f"Stream {stream!r} cannot have its subjects, because others have them: {listed}. Take "
            "them from those streams, or use another stream_name or other names of apps"
        )


def missing(subjects: Iterable[str], held: Iterable[str]) -> tuple[str, ...]:
    """Subjects that none of those a stream has stands for."""
    patterns = tuple(held)
    return tuple(
        subject for subject in subjects if not any(covers(pattern, subject) for pattern in patterns)
    )
