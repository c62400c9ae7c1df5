"""Subjects and patterns of them, as NATS reads them. Pure.

A subject is tokens joined by dots. In a pattern `*` stands for one token and `>`, at the end, for
one or more.
"""

from __future__ import annotations

from itertools import zip_longest


def matches(pattern: str, subject: str) -> bool:
    """The subject is one of those the pattern stands for."""
    return covers(pattern, subject)


def covers(pattern: str, other: str) -> bool:
    """Every subject that `other` stands for is one that `pattern` stands for."""
    for ours, theirs in zip_longest(pattern.split("."), other.split(".")):
        if ours is None or theirs is None:
            return False
        if ours == ">":
            return True
        if theirs == ">" or ours not in ("*", theirs):
            return False
    return True


def overlap(one: str, other: str) -> bool:
    """There is a subject that both stand for."""
    for ours, theirs in zip_longest(one.split("."), other.split(".")):
        if ours is None or theirs is None:
            return False
        if ">" in (ours, theirs):
            return True
        if ours != theirs and "*" not in (ours, theirs):
            return False
    return True
