"""Documents become their text; hostile ones become a MediaError."""

import collections
import random
import zipfile

import pytest

from penstock.media import GuardPool, Limits, MediaError, extract_text, extract_text_blocking
from tests.support.media_samples import DOCUMENTS, FOLDER, MANIFEST, damaged, words

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


@pytest.fixture(scope="module")
def pool():
    pool = GuardPool(2)
    yield pool
    pool.close()


def docx(path, document, extra=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("word/document.xml", "w", force_zip64=True) as part:
            for piece in document:
                part.write(piece)
        for name in extra:
            archive.writestr(name, b"")
    return path


def reason_of(path, kind, pool, **options):
    with pytest.raises(MediaError) as caught:
        extract_text_blocking(path, kind, pool=pool, **options)
    return caught.value.reason


@pytest.mark.parametrize(("name", "kind"), DOCUMENTS.items())
def test_a_sample_reads_as_written(name, kind, pool):
    found = extract_text_blocking(FOLDER / name, kind, pool=pool)
    assert words(found.text) == words(MANIFEST[name]["text"])
    assert found.characters == len(found.text)
    assert found.pages == (3 if kind == "pdf" else 1)
    assert not found.truncated


@pytest.mark.real_time
async def test_reading_works_from_a_coroutine(pool):
    assert "penstock" in (await extract_text(FOLDER / "note.pdf", "pdf", pool=pool)).text


def test_scripts_styles_and_titles_are_not_text(tmp_path, pool):
    path = tmp_path / "page.html"
    path.write_text(
        "<title>t</title><style>s</style><p>one<br>two &amp; three</p>"
        "<script>if (1 < 2) {}</script><noscript>n</noscript>"
        "<svg><text>v</text></svg><div>four</div>"
    )
    assert extract_text_blocking(path, "html", pool=pool).text == "one\ntwo & three\n\nfour"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("grün".encode(), "grün"),
        ("grün".encode("utf-8-sig"), "grün"),
        ("grün".encode("utf-16"), "grün"),
        ("grün".encode("cp1252"), "grün"),
        (b"", ""),
    ],
)
def test_text_is_read_in_the_usual_encodings(data, text, tmp_path, pool):
    path = tmp_path / "text"
    path.write_bytes(data)
    assert extract_text_blocking(path, "text", pool=pool).text == text


def test_characters_and_pages_are_bounded(tmp_path, pool):
    path = tmp_path / "long.txt"
    path.write_text("word " * 10_000)
    found = extract_text_blocking(path, "text", max_characters=100, pool=pool)
    assert (found.characters, found.truncated) == (99, True)
    found = extract_text_blocking(FOLDER / "note.pdf", "pdf", max_pages=2, pool=pool)
    assert (found.pages, found.truncated) == (2, True)


def test_a_zip_bomb_is_not_unpacked(tmp_path, pool):
    start = f'<w:document xmlns:w="{WORD}"><w:body>'.encode()
    path = docx(tmp_path / "bomb.docx", [start, *[bytes(1 << 20).replace(b"\0", b" ")] * 200])
    assert path.stat().st_size < 1 << 20
    assert reason_of(path, "docx", pool) == "too_large"


def test_entities_are_refused(tmp_path, pool):
    lol = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))
    bomb = f'<!DOCTYPE x [<!ENTITY l0 "lol">{lol}]><x>&l9;</x>'.encode()
    assert reason_of(docx(tmp_path / "a.docx", [bomb]), "docx", pool) == "malformed"
    outside = b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>'
    assert reason_of(docx(tmp_path / "b.docx", [outside]), "docx", pool) == "malformed"


def test_deep_nesting_is_refused_or_harmless(tmp_path, pool):
    deep = docx(tmp_path / "deep.docx", [b"<a>" * 100_000])
    assert reason_of(deep, "docx", pool) == "malformed"
    page = tmp_path / "deep.html"
    page.write_text("<div>" * 200_000 + "x")
    assert extract_text_blocking(page, "html", pool=pool).text == "x"
    pdf = tmp_path / "deep.pdf"
    pdf.write_bytes(
        b"%PDF-1.4\n1 0 obj\n" + b"[" * 100_000 + b"\nendobj\ntrailer << /Root 1 0 R >>"
    )
    assert reason_of(pdf, "pdf", pool) in ("malformed", "crashed", "timeout")


def test_a_pdf_that_refers_to_itself_ends(tmp_path, pool):
    path = tmp_path / "loop.pdf"
    path.write_bytes(
        b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
        b"2 0 obj\n<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 1000000 >>\nendobj\n"
        b"trailer\n<< /Root 1 0 R >>\n%%EOF\n"
    )
    assert reason_of(path, "pdf", pool, limits=Limits(seconds=10)) in ("malformed", "timeout")


def test_a_slow_document_is_stopped(tmp_path, pool):
    path = tmp_path / "slow.html"
    path.write_text("<p>x</p>" * 3_000_000)
    assert reason_of(path, "html", pool, limits=Limits(seconds=0.3)) == "timeout"


def test_hundreds_of_damaged_documents_end_well(tmp_path, pool):
    chance = random.Random(4)
    ends = collections.Counter()
    path = tmp_path / "document"
    for name, kind in DOCUMENTS.items():
        data = (FOLDER / name).read_bytes()
        for _ in range(3):
            for how, copy in damaged(data, chance):
                path.write_bytes(copy)
                try:
                    extract_text_blocking(path, kind, pool=pool, limits=Limits(seconds=20))
                    ends["valid"] += 1
                except MediaError as error:
                    ends[error.reason] += 1
                    assert error.permanent, (name, how)
    assert ends.total() >= 300
    assert ends["valid"] and ends["malformed"] and not ends["crashed"]


def test_a_kind_we_do_not_know_is_refused(pool):
    assert reason_of(FOLDER / "note.txt", "rtf", pool) == "unsupported"
