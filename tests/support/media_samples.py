"""The sample media, what is in them, and what damage does to them."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parents[2] / "examples" / "media"
FRENCH = Path(__file__).parent / "media" / "french.ogg"
MANIFEST = msgspec.json.decode((FOLDER / "manifest.json").read_bytes())
CLIPS = [name for name, about in MANIFEST.items() if about["kind"] != "document"]
DOCUMENTS = {
    "note.txt": "text",
    "note.md": "markdown",
    "note.html": "html",
    "note.pdf": "pdf",
    "note.docx": "docx",
}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def word_error_rate(heard: str, said: str) -> float:
    """Edit distance in words, as a share of what was said."""
    a, b = words(said), words(heard)
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (left != right))
    return row[-1] / len(a)


def damaged(data: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Ways in which one file goes wrong."""
    size = len(data)
    for share in (0, 1, 4, 12, 44, size // 10, size // 3, size // 2, size - 1):
        yield f"cut-{share}", data[:share]
    for n in range(18):
        copy = bytearray(data)
        # Headers are where the damage tells.
        reach = size if n % 3 == 0 else min(size, 400)
        for _ in range(1 << (n % 6)):
            copy[chance.randrange(reach)] ^= 1 << chance.randrange(8)
        yield f"flip-{n}", bytes(copy)
    for n in range(6):
        copy = bytearray(data)
        at = chance.randrange(min(size - 8, 300))
        value = chance.choice((0, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000))
        copy[at : at + 4] = struct.pack("<I" if n % 2 else ">I", value)
        yield f"number-{n}", bytes(copy)
    start = chance.randrange(size // 2)
    yield "hole", data[:start] + bytes(size // 4) + data[start + size // 4 :]
    yield "shuffled", data[: size // 4] + data[size // 2 :] + data[size // 4 : size // 2]
    yield "twice", data + data
    yield "noise-tail", data[: size // 2] + chance.randbytes(size // 2)
    yield "noise-head", chance.randbytes(64) + data


def corpus() -> Iterator[tuple[str, bytes]]:
    """Hundreds of files that are not what they were, the same ones every time."""
    chance = random.Random(20)
    contents = {name: (FOLDER / name).read_bytes() for name in CLIPS}
    for name, data in contents.items():
        for kind, copy in damaged(data, chance):
            yield f"{name}:{kind}", copy
    for one, left in contents.items():
        for other, right in contents.items():
            if one != other:
                yield f"{one}+{other}", left[:64] + right[64:]
    for n in range(20):
        yield f"random-{n}", chance.randbytes(chance.randrange(1, 5000))
