"""The pure parts of media work: ids, durations, roles, windows of sound."""

import itertools
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.media import MediaError, SpeakerRoleRegistry, YouTubeClient, parse_video_id
from penstock.media.reading.audio import RATE, is_silent, windows
from penstock.media.youtube import parse_duration, retry_after

ID = "dQw4w9WgXcQ"


@pytest.mark.parametrize(
    "text",
    [
        ID,
        f"https://www.youtube.com/watch?v={ID}",
        f"https://youtube.com/watch?list=x&v={ID}&t=10s",
        f"http://m.youtube.com/watch?v={ID}#x",
        f"https://youtu.be/{ID}?si=abc",
        f"https://www.youtube.com/shorts/{ID}",
        f"https://www.youtube.com/embed/{ID}",
        f"https://www.youtube.com/live/{ID}",
        f"https://music.youtube.com/watch?v={ID}",
    ],
)
def test_a_video_is_found_in_its_addresses(text):
    assert parse_video_id(text) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        ID + "x",
        ID + "\n",
        "dQw4w9WgXc!",
        f"https://evil.example/watch?v={ID}",
        f"https://youtube.com.evil.example/watch?v={ID}",
        f"https://www.youtube.com@evil.example/watch?v={ID}",
        f"https://user@www.youtube.com/watch?v={ID}",
        f"https://www.youtube.com:444/watch?v={ID}",
        f"https://www.youtube.com/watch?v={ID}&v={ID}",
        f"https://www.youtube.com/watch?v={ID}x",
        f"https://www.youtube.com/channel/{ID}",
        f"https://youtu.be/{ID}/x",
        f"ftp://youtu.be/{ID}",
        f"//youtu.be/{ID}",
        f"javascript:{ID}",
        "https://[bad/watch",
        f"https://youtu.be:port/{ID}",
    ],
)
def test_what_is_no_video_is_refused(text):
    with pytest.raises(MediaError) as caught:
        parse_video_id(text)
    assert (caught.value.reason, caught.value.permanent) == ("bad_reference", True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0),
        ("PT15S", 15),
        ("PT4M", 240),
        ("PT1H2M3S", 3723),
        ("P1DT2H", 93_600),
        ("P0D", 0),
        ("P1W", 604_800),
    ],
)
def test_a_duration_is_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "15S", "PT-5S", "PT1.5S", "PT5", "P1Y"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="Not a duration"):
        parse_duration(text)


@given(st.integers(0, 9999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_every_duration_adds_up(days, hours, minutes, seconds):
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_duration(f"P{days}DT{hours}H{minutes}M{seconds}S") == total


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 7),
        ("soon", 7),
        ("", 7),
        ("0", 0),
        ("30", 30),
        ("1000000", 86_400),
        ("Mon, 06 May 2024 07:08:39 GMT", 30),
        ("Mon, 06 May 2024 07:00:00 GMT", 0),
    ],
)
def test_a_retry_after_header_is_read(value, seconds):
    now = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert retry_after(value, 7, now=now) == seconds


@pytest.mark.parametrize("key", ["", "with space", "line\nbreak", "schlüssel"])
def test_a_damaged_key_is_a_configuration_error(key):
    with pytest.raises(MediaError, match="configuration"):
        YouTubeClient(key)


def test_roles_are_looked_up_speaker_first():
    roles = SpeakerRoleRegistry({"UC1": "host"}, {"spk-1": "guest"})
    assert roles.role(channel="UC1") == "host"
    assert roles.role(channel="UC1", speaker="spk-1") == "guest"
    assert roles.role(channel="UC1", speaker="spk-2") == "host"
    assert roles.role(channel="UC2") == roles.role() == "unknown"
    assert len(roles) == 2


def test_roles_come_from_toml_and_json(tmp_path):
    toml, json = tmp_path / "roles.toml", tmp_path / "roles.json"
    toml.write_text('[channels]\nUC_x5XG1OV2P6uZZ5FSM9Ttw = "host"\n[speakers]\nspk-17 = "guest"\n')
    json.write_text('{"channels": {"UC_x5XG1OV2P6uZZ5FSM9Ttw": "narrator"}}')
    assert SpeakerRoleRegistry.load(toml).role(speaker="spk-17") == "guest"
    assert SpeakerRoleRegistry.load(json).role(channel="UC_x5XG1OV2P6uZZ5FSM9Ttw") == "narrator"


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "channels = 1",
        '[channels]\nUC1 = "boss"',
        '[channels]\n"Ann Person" = "host"',
        '[channels]\n"ann@example.com" = "host"',
        "[channels]\nUC1 = 1",
        "[channels]\nUC1 = []",
        '[others]\nUC1 = "host"',
    ],
)
def test_wrong_roles_are_a_configuration_error(text, tmp_path):
    path = tmp_path / "roles.toml"
    path.write_text(text)
    with pytest.raises(MediaError, match="configuration: Speaker roles"):
        SpeakerRoleRegistry.load(path)


def test_a_missing_file_of_roles_is_a_configuration_error(tmp_path):
    with pytest.raises(MediaError, match="configuration"):
        SpeakerRoleRegistry.load(tmp_path / "none.toml")


@given(st.lists(st.integers(0, 3 * RATE), max_size=12))
def test_windows_hold_every_sample_once_and_in_order(sizes):
    """Whatever the blocks: nothing is lost, repeated or moved, and no window is too long."""
    total = sum(sizes)
    sound = (np.arange(total) % 30_011).astype("<i2")
    edges = np.cumsum([0, *sizes])
    blocks = [sound[a:b].tobytes() for a, b in itertools.pairwise(edges)]
    found = list(windows(blocks, seconds=2, search=0.5))
    assert [start for start, _ in found] == list(
        np.cumsum([0, *(len(samples) for _, samples in found)])[:-1]
    )
    assert all(len(samples) <= 2 * RATE for _, samples in found)
    joined = np.concatenate([samples for _, samples in found]) if found else np.zeros(0)
    assert np.array_equal(np.round(joined * 32768).astype("<i2"), sound)


def test_a_window_is_cut_where_it_is_quiet():
    sound = np.full(20 * RATE, 10_000, "<i2")
    sound[int(8.5 * RATE) : 9 * RATE] = 0
    (_, first), *_ = windows([sound.tobytes()], seconds=10, search=3)
    assert 8.5 * RATE <= len(first) <= 9 * RATE


def test_silence_is_told_from_a_whisper():
    assert is_silent(np.zeros(RATE, np.float32))
    assert is_silent(np.full(RATE, 0.0005, np.float32))
    quiet = np.zeros(60 * RATE, np.float32)
    quiet[-RATE // 5 :] = 0.01
    assert not is_silent(quiet)


def test_half_a_sample_is_refused():
    with pytest.raises(MediaError, match="crashed"):
        list(windows([b"abc"]))
