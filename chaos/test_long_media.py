"""Two hours of sound cost no more memory than twenty minutes."""

import subprocess
import sys
import wave
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.media_samples import FOLDER, MANIFEST, word_error_rate

ROOT = Path(__file__).parents[1]
RATE = 16_000
HOURS = 2
# The allocator's whims. The sound itself, held whole, would be 440 MiB.
ALLOWED_MIB = 64
MOST_MIB = 640

PROGRAM = """
import resource, sys, msgspec
from penstock.media import Transcriber
transcript = Transcriber(threads=2).transcribe(sys.argv[1])
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sys.stdout.buffer.write(msgspec.json.encode([own, transcript]))
"""


def speech(name):
    with wave.open(str(FOLDER / name)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def write(path, seconds, places, hum):
    """Silence with speech at `places` and, in every second five minutes, a faint noise."""
    said = speech("weather.wav")
    chance = np.random.default_rng(3)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        for start in range(0, seconds, 60):
            minute = np.zeros(60 * RATE, np.int16)
            if hum and start // 300 % 2:
                minute += chance.normal(0, 120, len(minute)).astype(np.int16)
            for place in places:
                if start <= place < start + 60:
                    at = (place - start) * RATE
                    minute[at : at + len(said)] += said
            file.writeframes(minute.tobytes())
    return path


def transcribed(path):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, timeout=900, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr.decode()
    peak, transcript = msgspec.json.decode(ran.stdout)
    return peak / 1024, transcript


@pytest.mark.timeout(1200)
def test_two_hours_are_transcribed_in_the_memory_of_twenty_minutes(tmp_path, record_property):
    short_peak, _ = transcribed(write(tmp_path / "short.wav", 1200, [3, 52, 400, 1130], hum=True))
    places = [3, 52, 400, 1234, 1803, 2741, 3599 - 10, 3600, 4555, 5432, 6400, 7190]
    peak, transcript = transcribed(write(tmp_path / "long.wav", HOURS * 3600, places, hum=True))
    record_property("peak_mib", peak)
    assert peak - short_peak < ALLOWED_MIB and peak < MOST_MIB
    heard = " ".join(text for _, _, text in transcript["segments"])
    said = " ".join([MANIFEST["weather.wav"]["text"]] * len(places))
    assert word_error_rate(heard, said) <= 0.25
    starts = [start for start, _, _ in transcript["segments"]]
    for place in places:
        assert any(abs(start - place) < 2 for start in starts), place
    assert transcript["duration"] == pytest.approx(HOURS * 3600, abs=0.1)
