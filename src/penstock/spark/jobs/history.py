"""The history of jobs as a Delta table: one row an event, by the day it happened.

What is appended says up to which sequence of its topic it goes, in the same commit, and what lies
below that is not appended again. So a lost or older checkpoint doubles nothing, and events that
their topic has forgotten stay. Spark reads the Parquet files of the table's present version.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from penstock.errors import FailedPreconditionError, NotFoundError, UnavailableError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.declaration import Pipeline

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("penstock.spark")
SCHEMA_VERSION = 1
_NAME = f"penstock job events, schema {SCHEMA_VERSION}"
_NAMES = re.compile(r"penstock job events, schema (\d+)")
_MOMENT = pa.timestamp("us", tz="UTC")
_TYPES: dict[type, pa.DataType] = {
    msgspec.inspect.IntType: pa.int64(),
    msgspec.inspect.FloatType: pa.float64(),
    msgspec.inspect.BoolType: pa.bool_(),
    msgspec.inspect.DateTimeType: _MOMENT,
}
# Somebody else may have compacted the table meanwhile.
_TRIES = 10


class Told(NamedTuple):
    """An event and where its topic has it."""

    sequence: int
    publish_time: Any
    event: StageEvent


@dataclass(frozen=True)
class Compacted:
    """How many files a history had, and has."""

    before: int
    after: int


class History:
    """A history that one pipeline's events are added to."""

    def __init__(self, location: str, pipeline: Pipeline) -> None:
        _check_folder(location)
        self._location = location
        self._facts = {name: type_of_fact(kind, name) for name, kind in pipeline.facts.items()}

    def append(self, source: str, events: Sequence[Told]) -> int:
        """Add what is not there yet of events in the order of their topic; how many that was.
        `source` names the topic, another one when it is made anew."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        for _ in range(_TRIES):
            table = _open(self._location)
            known = table.transaction_version(source) if table is not None else None
            fresh = [told for told in events if known is None or told.sequence > known]
            if not fresh:
                return 0
            try:
                self._write(table, source, fresh)
            except CommitFailedError:
                continue
            except DeltaError:
                if table is None and _open(self._location) is not None:
                    continue  # Somebody else has made it meanwhile.
                raise
            if known is None and fresh[0].sequence > 1:
                _log.warning(
                    "The history %s begins with message %d of %s: what came before is not in it. "
                    "If the topic has it still, a new history with a new checkpoint for the "
                    "projection would have it too",
                    *(self._location, fresh[0].sequence, source),
                )
            return len(fresh)
        raise UnavailableError(
            f"The history {self._location} is changed by somebody else all the time; let one "
            "pipeline write to it"
        )

    def _write(self, table: DeltaTable | None, source: str, events: Sequence[Told]) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        reached = Transaction(source, events[-1].sequence)
        write_deltalake(
            self._location if table is None else table,
            self._rows(source, events),
            # Not to what somebody else makes meanwhile: it may have these events.
            mode="error" if table is None else "append",
            name=_NAME if table is None else None,
            partition_by=["day"],
            schema_mode=None if table is None else "merge",
            # What is below `reached` must be looked at again before another attempt.
            commit_properties=CommitProperties(app_transactions=[reached], max_commit_retries=0),
        )

    def _rows(self, source: str, events: Sequence[Told]) -> pa.Table:
        def column(kind: pa.DataType, values: Iterable[Any]) -> pa.Array:
            return pa.array(list(values), kind)

        said = [told.event for told in events]
        columns = {
            "source": column(pa.string(), (source for _ in events)),
            "sequence": column(pa.int64(), (told.sequence for told in events)),
            "publish_time": column(_MOMENT, (told.publish_time for told in events)),
            "event": column(pa.string(), (type(e).__struct_config__.tag for e in said)),
            "job_id": column(pa.string(), (e.job_id for e in said)),
            "user_id": column(pa.string(), (e.user_id for e in said)),
            "media_type": column(pa.string(), (e.media_type.value for e in said)),
            "stage": column(pa.string(), (e.stage.value for e in said)),
            "previous_stage": column(
                pa.string(), (None if e.previous is None else e.previous.value for e in said)
            ),
            "run": column(pa.int32(), (e.run for e in said)),
            "at": column(_MOMENT, (e.at for e in said)),
            "took": column(pa.float64(), (e.took for e in said)),
            "retries": column(pa.int32(), (e.retries for e in said)),
        }
        for name, kind in self._facts.items():
            columns[name] = column(kind, _facts(said, name, kind))
        columns["correlation_id"] = column(pa.string(), (e.correlation_id for e in said))
        columns["day"] = column(pa.date32(), (e.at.astimezone(UTC).date() for e in said))
        return pa.table(columns)


def read_history(spark: SparkSession, location: str) -> DataFrame:
    """The events of a history as they are now; read again for those that have come since."""
    from pyspark.sql.types import StructType

    table = check_there(location)
    # The table's own: files that were written before a column was there do not have it.
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    base, *files = places_of(table)
    return spark.read.schema(schema).option("basePath", base).parquet(*files)


def places_of(table: DeltaTable) -> list[str]:
    """Its folder, and in it the files of the present version. Those of this machine are paths, and
    not the URLs that delta-rs says: in those a blank is %20."""
    found = [table.table_uri, *table.file_uris()]
    local = ("file:///", "/")
    return [unquote(uri.removeprefix("file://")) if uri.startswith(local) else uri for uri in found]


def compact(location: str, *, keep_hours: int = 168) -> Compacted:
    """Put small files together, each day's for itself, and delete files that no version of the last
    `keep_hours` needs."""
    table = check_there(location)
    before = len(table.file_uris())
    table.optimize.compact()
    table.vacuum(retention_hours=keep_hours, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    return Compacted(before, len(table.file_uris()))


def _open(location: str) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(location)
    except TableNotFoundError:
        return None
    _check_name(location, table.metadata().name)
    return table


def _check_name(location: str, name: str | None) -> None:
    """Refuse a table that is no history, whose columns ours would be mixed with, and one of a later
    version, which may mean something else by them."""
    found = _NAMES.fullmatch(name or "")
    if found is None:
        raise FailedPreconditionError(
            f"{location} is a Delta table and no history of jobs (its name is {name!r}); give a "
            "folder of its own"
        )
    if int(found[1]) > SCHEMA_VERSION:
        raise FailedPreconditionError(
            f"The history {location} is of schema {found[1]}, which a later version of Penstock "
            f"writes; this one knows {SCHEMA_VERSION}. Install the later one, or give a new folder"
        )


def check_there(location: str) -> DeltaTable:
    """The table of a history that must be there."""
    table = _open(location)
    if table is None:
        raise NotFoundError(
            f"There is no history in {location}; a pipeline with --history makes it"
        )
    return table


def _check_folder(location: str) -> None:
    """Refuse what an earlier version wrote: its files would be read with ours by some and not by
    others."""
    folder = Path(location)
    if "://" in location or (folder / "_delta_log").exists() or not folder.is_dir():
        return
    if any(folder.glob("batch=*")):
        raise FailedPreconditionError(
            f"The history {location} was written by an earlier version, batch by batch; give a new "
            "folder, and read the old one beside it"
        )


def type_of_fact(kind: type[StageEvent], name: str) -> pa.DataType:
    """The type of a column for what events of a kind say beyond what all of them do."""
    if name == "attempts":
        return pa.int32()
    [found] = [field for field in msgspec.structs.fields(kind) if field.name == name]
    info = msgspec.inspect.type_info(found.type)
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return next((_TYPES[type(one)] for one in types if type(one) in _TYPES), pa.string())


def _facts(events: Sequence[StageEvent], name: str, kind: pa.DataType) -> Iterator[Any]:
    for event in events:
        value = getattr(event, name, None)
        if value is not None and pa.types.is_string(kind) and not isinstance(value, str):
            value = msgspec.json.encode(value).decode()
        yield value
