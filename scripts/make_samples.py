"""Makes `examples/media/`: short clips of synthesised speech and a few documents; and one in French
for the tests.

    apt-get install espeak-ng          # the voice; nothing else of the machine is used
    .venv/bin/python scripts/make_samples.py

The clips are made by a machine from the sentences below, so nobody holds rights in them.
"""

from __future__ import annotations

import io
import subprocess
import wave
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "media"
FRENCH = ROOT / "tests" / "support" / "media" / "french.ogg"

SPEECH = {
    "weather.wav": ("It will be warm and sunny in the afternoon.", 16_000),
    "numbers.mp3": ("One, two, three, four, five, six, seven.", 22_050),
    "garden.ogg": ("My sister is working in the garden this morning.", 48_000),
    "train.m4a": ("The train to London leaves in a few minutes.", 22_050),
    "coffee.flac": ("Please bring me a cup of coffee and some bread.", 16_000),
    "river.mp4": ("The boat went slowly down the river to the sea.", 22_050),
    "winter.webm": ("In winter the days are short and the nights are long.", 48_000),
}
IN_FRENCH = (
    "En hiver les jours sont courts et les nuits sont longues. "
    "Le bateau descendait lentement la rivière vers la mer."
)
CODECS = {"mp3": "libmp3lame", "ogg": "libopus", "m4a": "aac", "flac": "flac", "mp4": "aac"}
VIDEO = {"mp4": ("libx264", "h264"), "webm": ("libvpx", "vp8")}
TITLE = "Water at work"
PARAGRAPHS = (
    "A penstock lets water into a turbine at the rate the turbine can take.",
    "Close the gate and nothing is lost: the water waits in the lake.",
)


def speak(text: str, voice: str) -> tuple[np.ndarray[Any, Any], int]:
    command = ["espeak-ng", "-v", voice, "-s", "150", "--stdout", text]
    spoken = subprocess.run(command, capture_output=True, check=True).stdout
    # espeak-ng writes to a pipe, so the sizes in its header are wrong; the samples are not.
    with wave.open(io.BytesIO(spoken)) as file:
        rate = file.getframerate()
    samples = np.frombuffer(spoken[44:], "<i2")
    return samples, rate


def resampled(samples: np.ndarray[Any, Any], rate: int, wanted: int) -> list[av.AudioFrame]:
    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="s16", layout="mono", rate=wanted)
    return [*resampler.resample(frame), *resampler.resample(None)]


def write_clip(path: Path, text: str, rate: int, voice: str = "en-us") -> dict[str, Any]:
    samples, spoken_rate = speak(text, voice)
    frames = resampled(samples, spoken_rate, rate)
    kind = path.suffix[1:]
    with av.open(str(path), "w") as container:
        codec = CODECS.get(kind, "pcm_s16le" if kind == "wav" else "libopus")
        audio: Any = container.add_stream(codec, rate=rate, layout="mono")
        if kind not in ("wav", "flac"):
            audio.bit_rate = 24_000
        video: Any = None
        if kind in VIDEO:
            video = container.add_stream(VIDEO[kind][0], rate=10)
            video.width, video.height, video.pix_fmt = 160, 120, "yuv420p"
            video.bit_rate = 20_000
        fifo = av.AudioFifo()
        for frame in frames:
            frame.pts = None
            fifo.write(frame)
        written = 0
        while block := fifo.read(960, partial=True):
            block.pts, block.time_base = written, Fraction(1, rate)
            written += block.samples
            container.mux(audio.encode(block))
        container.mux(audio.encode(None))
        if video is not None:
            for n in range(int(written / rate * 10)):
                container.mux(video.encode(picture(n)))
            container.mux(video.encode(None))
    return {
        "kind": "video" if video is not None else "audio",
        "text": text,
        "seconds": round(written / rate, 2),
        "sample_rate": rate,
        "video": VIDEO[kind][1] if video is not None else None,
    }


def picture(n: int) -> av.VideoFrame:
    image = np.full((120, 160, 3), 40, np.uint8)
    image[40:80, (n * 4) % 120 : (n * 4) % 120 + 40] = (30, 120, 220)
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    frame.pts, frame.time_base = n, Fraction(1, 10)
    return frame


def write_documents() -> dict[str, dict[str, Any]]:
    text = "\n\n".join(PARAGRAPHS)
    (FOLDER / "note.txt").write_text(f"{TITLE}\n\n{text}\n")
    (FOLDER / "note.md").write_text(f"# {TITLE}\n\n{text}\n")
    body = "".join(f"<p>{p}</p>\n" for p in PARAGRAPHS)
    (FOLDER / "note.html").write_text(
        f"<!doctype html>\n<title>{TITLE}</title>\n<style>p {{ color: navy }}</style>\n"
        f"<script>document.write('hidden')</script>\n<h1>{TITLE}</h1>\n{body}"
    )
    (FOLDER / "note.pdf").write_bytes(pdf([TITLE, *PARAGRAPHS]))
    write_docx(FOLDER / "note.docx")
    return {
        f"note.{kind}": {"kind": "document", "text": f"{TITLE} {' '.join(PARAGRAPHS)}"}
        for kind in ("txt", "md", "html", "pdf", "docx")
    }


def pdf(lines: list[str]) -> bytes:
    """One page a line, in Helvetica."""
    count = len(lines)
    pages = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{pages}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, line in enumerate(lines):
        content = f"BT /F1 12 Tf 40 700 Td ({line}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {5 + 2 * n} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    out = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    tail = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return out + f"{tail}startxref\n{len(out)}\n%%EOF\n".encode()


def write_docx(path: Path) -> None:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = "".join(f"<w:p><w:r><w:t>{t}</w:t></w:r></w:p>" for t in (TITLE, *PARAGRAPHS))
    kinds = "http://schemas.openxmlformats.org/package/2006/content-types"
    links = "http://schemas.openxmlformats.org/package/2006/relationships"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{kinds}"><Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{links}"><Relationship Id="rId1" Type="{office}" '
        'Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{space}"><w:body>{body}</w:body></w:document>',
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, '<?xml version="1.0" encoding="UTF-8"?>\n' + content)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {}
    for name, (text, rate) in SPEECH.items():
        manifest[name] = write_clip(FOLDER / name, text, rate)
    FRENCH.parent.mkdir(parents=True, exist_ok=True)
    write_clip(FRENCH, IN_FRENCH, 48_000, "fr")
    manifest |= write_documents()
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (FOLDER / "manifest.json").write_bytes(encoded + b"\n")
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.stat().st_size:8,d}  {path.name}")


if __name__ == "__main__":
    main()
