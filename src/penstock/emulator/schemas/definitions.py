"""What a schema says about messages: Avro and protocol buffers, as JSON or binary."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from penstock.errors import InvalidArgumentError

PROTOCOL_BUFFER, AVRO = 1, 2
JSON, BINARY = 1, 2
_MAX_BYTES = 300 * 1024
_COMPILE_WITHIN = 20.0
_FILE = "schema.proto"


class Definition(Protocol):
    """`check` raises `ValueError` for data that is not as the schema says."""

    def check(self, data: bytes, encoding: int) -> None: ...


class Definitions:
    """Reads definitions, and remembers the last ones: publishing asks again and again."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, str], Definition] = OrderedDict()

    async def read(self, kind: int, text: str) -> Definition:
        """What the text says, or `InvalidArgumentError`."""
        known = self._known.get((kind, text))
        if known is None:
            known = self._known[kind, text] = await _read(kind, text)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return known


async def _read(kind: int, text: str) -> Definition:
    if len(text.encode(errors="replace")) > _MAX_BYTES:
        raise InvalidArgumentError(f"The schema definition is longer than {_MAX_BYTES} bytes.")
    if not text:
        raise InvalidArgumentError("The schema definition is empty.")
    if kind == AVRO:
        return AvroDefinition(text)
    if kind == PROTOCOL_BUFFER:
        return ProtobufDefinition(await _compiled(text))
    raise InvalidArgumentError("The schema type must be AVRO or PROTOCOL_BUFFER.")


class AvroDefinition:
    def __init__(self, text: str) -> None:
        import fastavro  # loaded with the first schema: it is as large as the emulator

        self._avro: Any = fastavro
        named: dict[str, Any] = {}
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(text), named)
        except Exception as error:  # the library raises what its parts happen to raise
            raise InvalidArgumentError(f"Invalid AVRO schema: {error}") from None
        if _has_endless_array(self._schema, named):
            # A few bytes would make the reader go on for years.
            raise InvalidArgumentError("Invalid AVRO schema: items of an array take no bytes")

    def check(self, data: bytes, encoding: int) -> None:
        try:
            if encoding == JSON:
                self._check_json(data)
            else:
                self._check_binary(data)
        except Exception as error:
            raise ValueError(f"it is not what the AVRO schema describes: {error}") from None

    def _check_binary(self, data: bytes) -> None:
        source = io.BytesIO(data)
        self._avro.schemaless_reader(source, self._schema, None)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes too many")

    def _check_json(self, data: bytes) -> None:
        given = json.loads(data)
        # On one line, since the reader takes lines for records.
        [record] = self._avro.json_reader(io.StringIO(json.dumps(given)), self._schema)
        self._avro.validate(record, self._schema)
        # The reader overlooks what the schema does not name; the writer does not make it up.
        out = io.StringIO()
        self._avro.json_writer(out, self._schema, [record])
        if unknown := _missing(given, json.loads(out.getvalue())):
            raise ValueError(f"the schema has no field {unknown!r}")


def _has_endless_array(schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether there is an array, at any depth, of which nobody can tell how long it can be."""
    match schema:
        case {"type": "array", "items": items}:
            return _takes_no_bytes(items, named) or _has_endless_array(items, named)
        case {"type": "record", "fields": fields}:
            return any(_has_endless_array(field["type"], named) for field in fields)
        case {"type": "map", "values": values}:
            return _has_endless_array(values, named)
        case list():
            return any(_has_endless_array(one, named) for one in schema)
    return False


def _takes_no_bytes(schema: Any, named: Mapping[str, Any], within: tuple[str, ...] = ()) -> bool:
    match schema:
        case "null" | {"type": "null"} | {"type": "fixed", "size": 0}:
            return True
        case {"type": "record", "fields": fields}:
            return all(_takes_no_bytes(field["type"], named, within) for field in fields)
        case str() if schema in named and schema not in within:
            return _takes_no_bytes(named[schema], named, (*within, schema))
    return False


def _missing(given: Any, known: Any) -> str:
    """A key of `given`, at any depth, that `known` does not have."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            if key not in known:
                return str(key)
            if found := _missing(value, known[key]):
                return found
    if isinstance(given, list) and isinstance(known, list):
        for one, other in zip(given, known, strict=False):
            if found := _missing(one, other):
                return found
    return ""


class ProtobufDefinition:
    def __init__(self, files: Sequence[descriptor_pb2.FileDescriptorProto]) -> None:
        """`files`: what the last of them imports comes before it."""
        types = files[-1].message_type
        if len(types) != 1:
            raise InvalidArgumentError(
                "Invalid PROTOCOL_BUFFER schema: it must define exactly one top-level message "
                f"type, not {len(types)}."
            )
        pool = descriptor_pool.DescriptorPool()
        for file in files:
            pool.Add(file)
        full_name = ".".join(filter(None, (files[-1].package, types[0].name)))
        self._message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))

    def check(self, data: bytes, encoding: int) -> None:
        found = self._message()
        try:
            if encoding == JSON:
                json_format.Parse(data, found, descriptor_pool=found.DESCRIPTOR.file.pool)
            else:
                found.ParseFromString(data)
        except (message.DecodeError, json_format.ParseError, UnicodeDecodeError) as error:
            raise ValueError(f"it is not what the schema describes: {error}") from None
        if not found.IsInitialized():
            raise ValueError("it lacks fields that the schema requires")


async def _compiled(text: str) -> Sequence[descriptor_pb2.FileDescriptorProto]:
    """What a schema says, behind what it imports: Google's well-known types, and nothing else.

    A process of its own: the compiler writes its errors to the terminal, and is told hostile text.
    """
    with tempfile.TemporaryDirectory() as folder:
        await asyncio.to_thread((Path(folder) / _FILE).write_text, text)
        compiler = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}"),
            *("--include_imports", f"--descriptor_set_out={folder}/out", _FILE),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await asyncio.wait_for(compiler.communicate(), _COMPILE_WITHIN)
        except (TimeoutError, asyncio.CancelledError):
            compiler.kill()
            await compiler.wait()
            raise
        if compiler.returncode:
            raise InvalidArgumentError(f"Invalid PROTOCOL_BUFFER schema: {_reason(said, folder)}")
        found = await asyncio.to_thread((Path(folder) / "out").read_bytes)
    files: Sequence[Any] = descriptor_pb2.FileDescriptorSet.FromString(found).file
    return files


def _reason(said: bytes, folder: str) -> str:
    """What the compiler says of the schema, without where it was and what else it logs."""
    lines = said.decode(errors="replace").replace(f"{folder}/", "").splitlines()
    return " ".join(line for line in lines if ".proto:" in line) or "it does not compile"
