"""Probing: right about good media, calm about the rest."""

import collections
import struct

import pytest

from penstock.media import GuardPool, MediaError, MediaInfo, probe, probe_blocking
from tests.support.media_samples import CLIPS, DOCUMENTS, FOLDER, MANIFEST, corpus

CONTAINERS = {
    "wav": ("wav", "pcm_s16le"),
    "mp3": ("mp3", "mp3"),
    "ogg": ("ogg", "opus"),
    "flac": ("flac", "flac"),
    "m4a": ("mov,mp4,m4a,3gp,3g2,mj2", "aac"),
    "mp4": ("mov,mp4,m4a,3gp,3g2,mj2", "aac"),
    "webm": ("matroska,webm", "opus"),
}


@pytest.fixture(scope="module")
def pool():
    pool = GuardPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("name", CLIPS)
def test_a_sample_is_what_it_is(name, pool):
    info, about = probe_blocking(FOLDER / name, pool=pool), MANIFEST[name]
    container, codec = CONTAINERS[name.rpartition(".")[2]]
    assert (info.container, info.audio.codec) == (container, codec)
    assert info.duration == pytest.approx(about["seconds"], abs=0.15)
    assert info.size == (FOLDER / name).stat().st_size
    assert (info.audio.sample_rate, info.audio.channels) == (about["sample_rate"], 1)
    assert info.streams == (2 if about["video"] else 1)
    if about["video"]:
        assert info.video.codec == about["video"]
        assert (info.video.width, info.video.height, info.video.frame_rate) == (160, 120, 10.0)
    else:
        assert info.video is None


@pytest.mark.real_time
async def test_probing_works_from_a_coroutine(pool):
    assert (await probe(FOLDER / "weather.wav", pool=pool)).container == "wav"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_no_media(name, pool):
    with pytest.raises(MediaError, match="unsupported"):
        probe_blocking(FOLDER / name, pool=pool)


def test_hundreds_of_damaged_files_end_well(tmp_path, pool):
    """Each is valid media or a MediaError, and no child dies of one."""
    ends = collections.Counter()
    path = tmp_path / "media"
    for name, data in corpus():
        path.write_bytes(data)
        try:
            info = probe_blocking(path, pool=pool)
        except MediaError as error:
            ends[error.reason] += 1
            assert error.reason in ("malformed", "unsupported"), name
        else:
            assert isinstance(info, MediaInfo)
            ends["valid"] += 1
    assert ends.total() >= 300
    assert ends["valid"] and ends["unsupported"]


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
        b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"></MPD>',
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"GIF89a" + bytes(100),
    ],
    ids=["hls", "concat", "sdp", "dash", "png", "gif"],
)
def test_what_may_lead_elsewhere_is_refused(content, tmp_path, pool):
    path = tmp_path / "media"
    path.write_bytes(content)
    with pytest.raises(MediaError, match="unsupported"):
        probe_blocking(path, pool=pool)


def test_a_name_does_not_decide_what_a_file_is(tmp_path, pool):
    path = tmp_path / "list.m3u8"
    path.write_bytes((FOLDER / "weather.wav").read_bytes())
    assert probe_blocking(path, pool=pool).container == "wav"


def test_absurd_numbers_are_refused(tmp_path, pool):
    path = tmp_path / "absurd.wav"
    header = struct.pack("<HHIIHH", 1, 1, 4_000_000_000, 4_000_000_000, 2, 16)
    path.write_bytes(
        b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0" + header + b"data\0\0\1\0" + bytes(64)
    )
    with pytest.raises(MediaError) as caught:
        probe_blocking(path, pool=pool)
    assert caught.value.reason in ("malformed", "unsupported")


def test_titles_are_not_in_the_result(tmp_path, pool):
    import av

    path = tmp_path / "titled.wav"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "A private title"
        container.metadata["artist"] = "A private person"
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame(format="s16", layout="mono", samples=800)
        frame.planes[0].update(bytes(1600))
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    assert b"A private title" in path.read_bytes()
    assert "private" not in repr(probe_blocking(path, pool=pool))
