"""Parts that are loaded when they are used, and what is said when packages for them are missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module


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


def loaded_later(
    package: str, modules: Mapping[str, str], *, needs: str | None = None
) -> Callable[[str], object]:
    """The `__getattr__` of a package whose names are in these modules of it, by name: each is
    loaded when it is first asked for. `needs`: the extra that they stand on."""

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with nullcontext() if needs is None else extra(needs, f"{package}.{name}"):
            found: object = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return load
