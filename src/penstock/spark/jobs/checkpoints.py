"""Checkpoints of queries: one driver at a time goes on from each.

Spark finds out about a second one when both begin the same batch. One of them then fails, with
pages of Java, is started again, and they go on like that.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.errors import FailedPreconditionError, InvalidArgumentError


@contextmanager
def holding_checkpoints(place: str, queries: Iterable[str]) -> Iterator[None]:
    """Have these queries' checkpoints for this process while entered, and for nobody else. The
    system lets go of them when the process ends, however it ends.

    The folder is made, and must be one that can be written. At an address, and where files cannot
    be locked, it is left to Spark.
    """
    if place.startswith("file:///"):
        place = place.removeprefix("file://")
    if "://" in place:
        yield
        return
    folder = Path(place).absolute()
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in queries:
                lock = held.enter_context((folder / f".{name}.lock").open("ab"))
                _lock(lock.fileno(), folder, name)
        except OSError as error:
            raise InvalidArgumentError(
                f"Checkpoints cannot be kept in {str(folder)!r} ({error.strerror}); give "
                "checkpoints a folder that can be written"
            ) from error
        yield


def _lock(file: int, folder: Path, name: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FailedPreconditionError(
            f"Another driver runs query {name!r} from the checkpoints in {str(folder)!r}; end it, "
            "or give this one checkpoints of its own"
        ) from None
    except OSError:
        # A file system without locks.
        return
