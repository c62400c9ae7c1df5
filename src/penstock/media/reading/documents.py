"""Text of documents: plain, Markdown, HTML, PDF and Word. Read in the guarded child."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from xml.parsers import expat

from msgspec import Meta, Struct, structs

from penstock.media.errors import MediaError
from penstock.media.extensions import DocumentKind
from penstock.media.guard.calling import GuardPool, Limits, run_guarded, run_guarded_blocking

MOST_CHARACTERS = 5_000_000
MOST_PAGES = 2_000
_MOST_BYTES = 64 << 20
_MOST_UNPACKED = 128 << 20
_MOST_DEPTH = 200
PAGES, CHARACTERS = 500, 1_000_000
"""What is read of a document unless another limit is given."""
# JSON may take six bytes for a character.
LIMITS = Limits(seconds=60, memory_bytes=768 << 20, output_bytes=6 * MOST_CHARACTERS + 4096)


class DocumentText(Struct, frozen=True, kw_only=True):
    """`characters` counts what is in `text`; `truncated` says that there was more."""

    text: Annotated[str, Meta(max_length=MOST_CHARACTERS)]
    pages: Annotated[int, Meta(ge=1, le=MOST_PAGES)]
    characters: Annotated[int, Meta(ge=0, le=MOST_CHARACTERS)]
    truncated: bool = False


async def extract_text(
    path: Path | str | int,
    kind: DocumentKind,
    *,
    max_characters: int = CHARACTERS,
    max_pages: int = PAGES,
    limits: Limits | None = None,
    pool: GuardPool | None = None,
) -> DocumentText:
    """The text of the document at `path`; at most so many characters and pages of it."""
    return await run_guarded(
        read_text,
        kind,
        max_characters,
        max_pages,
        media=path,
        limits=limits or _limits(max_pages),
        pool=pool,
    )


def extract_text_blocking(
    path: Path | str | int,
    kind: DocumentKind,
    *,
    max_characters: int = CHARACTERS,
    max_pages: int = PAGES,
    limits: Limits | None = None,
    pool: GuardPool | None = None,
) -> DocumentText:
    """`extract_text`, for code without an event loop."""
    return run_guarded_blocking(
        read_text,
        kind,
        max_characters,
        max_pages,
        media=path,
        limits=limits or _limits(max_pages),
        pool=pool,
    )


def _limits(max_pages: int) -> Limits:
    """Who asks for more pages than usual gives them the time, too."""
    more = max(1.0, min(max_pages, MOST_PAGES) / PAGES)
    return structs.replace(LIMITS, seconds=LIMITS.seconds * more)


class _Gathered:
    """Text up to a limit."""

    def __init__(self, most: int) -> None:
        self._pieces: list[str] = []
        self._left = most
        self.truncated = False

    def add(self, text: str) -> bool:
        """Whether there is room for more."""
        if len(text) > self._left:
            text, self.truncated = text[: self._left], True
        self._pieces.append(text)
        self._left -= len(text)
        return not self.truncated

    def text(self) -> str:
        text = "".join(self._pieces).replace("\x00", "")
        # Half of a surrogate pair cannot be written as UTF-8.
        return text.encode("utf-8", "replace").decode("utf-8")


def read_text(file: BinaryIO, kind: str, max_characters: int, max_pages: int) -> DocumentText:
    """Runs in the guarded child."""
    readers = {"text": _plain, "markdown": _plain, "html": _html, "pdf": _pdf, "docx": _docx}
    if kind not in readers:
        raise MediaError("unsupported", f"Documents are one of {', '.join(sorted(readers))}")
    if file.seek(0, 2) > _MOST_BYTES:
        raise MediaError("too_large", f"A document has at most {_MOST_BYTES:,} bytes")
    file.seek(0)
    gathered = _Gathered(min(max_characters, MOST_CHARACTERS))
    pages = readers[kind](file, gathered, min(max_pages, MOST_PAGES))
    text = _tidy(gathered.text())
    return DocumentText(text=text, pages=pages, characters=len(text), truncated=gathered.truncated)


def _tidy(text: str) -> str:
    lines = (re.sub(r"[^\S\n]+", " ", line).strip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _decoded(data: bytes) -> str:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if data.startswith(b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if b"\x00" in data[:4096]:
        raise MediaError("malformed", "It is not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _plain(file: BinaryIO, gathered: _Gathered, _: int) -> int:
    gathered.add(_decoded(file.read()))
    return 1


class _Page(HTMLParser):
    HIDDEN = frozenset(
        {"script", "style", "title", "template", "noscript", "svg", "iframe", "object"}
    )
    BLOCKS = frozenset(
        {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption"}
        | {"footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main"}
        | {"nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul"}
    )

    def __init__(self, gathered: _Gathered) -> None:
        super().__init__(convert_charrefs=True)
        self._gathered = gathered
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        if tag in self.HIDDEN and len(self._hidden) < _MOST_DEPTH:
            self._hidden.append(tag)
        elif tag in self.BLOCKS:
            self._gathered.add("\n")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        if tag in self.BLOCKS:
            self._gathered.add("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        elif tag in self.BLOCKS:
            self._gathered.add("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._gathered.add(data)


def _html(file: BinaryIO, gathered: _Gathered, _: int) -> int:
    page = _Page(gathered)
    text = _decoded(file.read())
    page.feed(text)
    page.close()
    return 1


def _pdf(file: BinaryIO, gathered: _Gathered, max_pages: int) -> int:
    import logging

    import pypdf

    # It says what it thinks of a file for every file, quoting it.
    logging.getLogger("pypdf").disabled = True
    if b"%PDF-" not in file.read(1024):
        raise MediaError("malformed", "It is no PDF")
    file.seek(0)
    reader = pypdf.PdfReader(file, strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise MediaError("protected", "It asks for a password")
    pages = 0
    for page in reader.pages:
        if pages == max_pages:
            gathered.truncated = True
            break
        pages += 1
        if not gathered.add(page.extract_text() + "\n\n"):
            break
    if not pages:
        raise MediaError("malformed", "It has no pages")
    return pages


_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"


def _docx(file: BinaryIO, gathered: _Gathered, _: int) -> int:
    try:
        with zipfile.ZipFile(file) as archive:
            if len(archive.infolist()) > 10_000:
                raise MediaError("malformed", "It has too many parts")
            with archive.open("word/document.xml") as part:
                _word(_unpacked(part), gathered)
    except (zipfile.BadZipFile, KeyError, NotImplementedError):
        raise MediaError("malformed", "It is no Word document") from None
    except RuntimeError:
        raise MediaError("protected", "It asks for a password") from None
    return 1


def _unpacked(part: Any) -> Iterator[bytes]:
    """What the archive says about its sizes may be a lie, so what comes out is counted."""
    size = 0
    while piece := part.read(64 * 1024):
        size += len(piece)
        if size > _MOST_UNPACKED:
            raise MediaError("too_large", f"It unpacks to more than {_MOST_UNPACKED:,} bytes")
        yield piece


def _word(pieces: Iterator[bytes], gathered: _Gathered) -> None:
    parser = expat.ParserCreate(namespace_separator=" ")
    depth, in_text, full = 0, False, False

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal depth, in_text
        depth += 1
        if depth > _MOST_DEPTH:
            raise MediaError("malformed", "It is nested too deeply")
        space, _, local = name.rpartition(" ")
        if space in (_WORD, _STRICT):
            in_text = in_text or local == "t"
            if local in ("tab", "br", "cr"):
                gathered.add("\t" if local == "tab" else "\n")

    def end(name: str) -> None:
        nonlocal depth, in_text
        depth -= 1
        space, _, local = name.rpartition(" ")
        if space in (_WORD, _STRICT):
            if local == "t":
                in_text = False
            elif local == "p":
                gathered.add("\n\n")

    def data(text: str) -> None:
        nonlocal full
        if in_text and not full:
            full = not gathered.add(text)

    def refuse(*_: object) -> None:
        # Entities are how a small file becomes a large one, or asks for another.
        raise MediaError("malformed", "It has a document type, which Word never writes")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        for piece in pieces:
            parser.Parse(piece, False)
            if full:
                return
        parser.Parse(b"", True)
    except expat.ExpatError:
        raise MediaError("malformed", "Its XML does not parse") from None
