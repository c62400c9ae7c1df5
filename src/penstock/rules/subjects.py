"""Routed attributes: attributes of a message as tokens of its subject. Pure.

A topic that routes `stage` and `mediaType` stores a message on `topic.<stage>.<mediaType>`, so
that a broker which filters by subject can do what an attribute filter asks for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

from penstock.rules.filters import AllOf, AnyOf, Equals, Filter

# What stands for an attribute that a message does not have; a value never encodes to it.
ABSENT = "_"
_MOST_SUBJECTS = 64


def routed_subject(topic: str, routed: Sequence[str], attributes: Mapping[str, str]) -> str:
    """The subject of a message, from its attributes."""
    tokens = (_token(attributes[key]) if key in attributes else ABSENT for key in routed)
    return ".".join((topic, *tokens))


def subject_filters(topic: str, routed: Sequence[str], tree: Filter) -> list[str]:
    """Subjects that cover everything a filter lets through; none when it says nothing about the
    routed attributes. They may let more through, so the filter itself is still to be applied.

    The bare topic is among them: who may not see how a topic routes publishes there.
    """
    wanted: dict[str, set[str]] = {}
    for key, values in _demands(tree):
        if key in routed:
            wanted[key] = wanted.get(key, values) & values
    if not wanted:
        return []
    choices = [sorted(map(_token, wanted[key])) if key in wanted else ["*"] for key in routed]
    subjects = list(itertools.islice(itertools.product(*choices), _MOST_SUBJECTS + 1))
    if len(subjects) > _MOST_SUBJECTS:
        return []
    return [topic, *(".".join((topic, *tokens)) for tokens in subjects)]


def _demands(tree: Filter) -> Iterable[tuple[str, set[str]]]:
    """Attributes that must have one of some values for the filter to match."""
    match tree:
        case Equals(key, value):
            yield key, {value}
        case AllOf(terms):
            for term in terms:
                yield from _demands(term)
        case AnyOf(terms) if all(isinstance(term, Equals) for term in terms):
            equals = [term for term in terms if isinstance(term, Equals)]
            if len({term.key for term in equals}) == 1:
                yield equals[0].key, {term.value for term in equals}


# Routed attributes have few values, and encoding one costs more than the rest of a subject.
@lru_cache(maxsize=1024)
def _token(value: str) -> str:
    encoded = quote(value, safe="")
    for plain in (".", "_", "~"):
        encoded = encoded.replace(plain, f"%{ord(plain):02X}")
    return encoded or "%"
