"""Secrets in files, as containers are given them: `NAME_FILE` says where the value of `NAME` is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import InvalidArgumentError

_SUFFIX = "_FILE"
_LARGEST = 2**20


def with_files(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The environment, with the values that are in files. A line end after a value is none of it,
    nor is the mark that some editors put before it.

    `InvalidArgumentError` names the variable and the file, and never what is in it.
    """
    found = dict(environ)
    for variable, path in environ.items():
        name = variable.removesuffix(_SUFFIX)
        if not variable.startswith(prefix) or name == variable:
            continue
        if name in environ:
            raise InvalidArgumentError(f"{name} and {variable} are both set; unset one of them")
        found[name] = _read(variable, Path(path))
        del found[variable]
    return found


def _read(variable: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        why = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        why = "it must be saved as UTF-8"
    else:
        if len(data) <= _LARGEST and text.strip():
            return text.rstrip("\r\n")
        why = "it is empty" if not text.strip() else f"it has more than {_LARGEST:,} bytes"
    raise InvalidArgumentError(f"Cannot read {path}, which {variable} names: {why}") from None
