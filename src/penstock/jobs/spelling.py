"""Names of settings: those there are, and what somebody meant who wrote another.

A name that nobody reads changes nothing and says nothing, so a slip in one is an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, get_origin

from msgspec import Struct
from msgspec.structs import fields

from penstock.errors import InvalidArgumentError

PREFIX = "PENSTOCK_"
# Variables with the prefix that are no settings: those of the command line, and of bridges, which
# look at theirs themselves.
NOT_SETTINGS = frozenset(
    {"CONFIG", "PIPELINE", "API_URL", "API_URL_FILE", "API_TOKEN", "API_TOKEN_FILE", "LOG_JSON"}
)
_BRIDGE = "BRIDGE_"
# A setting may be in a file, whose name is in the variable.
_IN_FILE = "_FILE"
# Kubernetes tells a container of every service, and one of them may be called penstock-something.
_SERVICE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_PORT = re.compile(r"(tcp|udp|sctp)://")

Path: TypeAlias = tuple[str, ...]


def check_spelling(kind: type[Struct], environ: Mapping[str, str]) -> None:
    """`InvalidArgumentError` when a variable with our prefix names no setting of `kind`."""
    known = {PREFIX + _variable(path): is_open for path, is_open in _paths(kind)}
    names = [
        name for name in sorted(environ) if name.startswith(PREFIX) and _is_ours(name, environ)
    ]
    unknown = [name for name in names if not _is_known(name.upper(), known)]
    _refuse(unknown, [*known, *(PREFIX + name for name in NOT_SETTINGS)], "")


def check_keys(kind: type[Struct], given: Mapping[str, Any], where: str) -> None:
    """The same for settings of a file or a call; `where` says of which."""
    known = dict(_paths(kind))
    unknown = list(_strangers(given, known, ()))
    _refuse(map(".".join, unknown), list(map(".".join, known)), where)


def _paths(kind: type[Struct], above: Path = ()) -> Iterator[tuple[Path, bool]]:
    """Every setting, and whether it is a table with names of the user's own."""
    for one in fields(kind):
        path = (*above, one.name)
        yield path, get_origin(one.type) is dict
        if isinstance(one.type, type) and issubclass(one.type, Struct):
            yield from _paths(one.type, path)


def _variable(path: Path) -> str:
    return "__".join(path).upper()


def _is_ours(name: str, environ: Mapping[str, str]) -> bool:
    rest = name.removeprefix(PREFIX)
    if rest in NOT_SETTINGS or rest.startswith(_BRIDGE) or _SERVICE.fullmatch(rest):
        return False
    return not (rest.endswith("PORT") and _SERVICE_PORT.match(environ[name]))


def _is_known(name: str, known: Mapping[str, bool]) -> bool:
    if name in known or name.removesuffix(_IN_FILE) in known:
        return True
    parents = name.split("__")
    return any(known.get("__".join(parents[:end])) for end in range(1, len(parents)))


def _strangers(given: Mapping[str, Any], known: Mapping[Path, bool], above: Path) -> Iterator[Path]:
    for name, value in given.items():
        path = (*above, name)
        if path not in known:
            yield path
        elif isinstance(value, Mapping) and not known[path]:
            yield from _strangers(value, known, path)


def _refuse(unknown: Iterable[str], known: Collection[str], where: str) -> None:
    told = [f"{name}{_hint(name, known)}" for name in unknown]
    if told:
        raise InvalidArgumentError(
            f"There is no setting {', nor '.join(told)}{where}; correct it or take it away"
        )


def _hint(name: str, known: Collection[str]) -> str:
    """The nearest; or those that end alike, for who left out where they belong."""
    meant = get_close_matches(name, known, 1, 0.8)
    last = re.split(r"__|\.", name.removeprefix(PREFIX))[-1]
    meant = meant or [one for one in known if re.split(r"__|\.|_(?=[A-Z]+$)", one)[-1] == last][:3]
    return f" (did you mean {' or '.join(meant)}?)" if meant else ""
