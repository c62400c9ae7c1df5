"""Parts that need more packages than Penstock itself, and what is said when they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, whose: str) -> Iterator[None]:
    """Around imports that need an extra: what is not installed is a `ModuleNotFoundError` of one
    line that names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "penstock":  # A mistake of ours, and nothing that could be installed.
            raise
        raise ModuleNotFoundError(
            f"{whose} needs {missing}, which is not installed: pip install 'penstock[{name}]'",
            name=error.name,
        ) from None
