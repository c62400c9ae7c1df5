"""Speech becomes the words that were said, whatever the length and the wrapping."""

import asyncio
import socket
import threading
import time
import wave
from types import SimpleNamespace

import numpy as np
import pytest
from faster_whisper.audio import decode_audio

from penstock.media import MediaError, Transcriber
from penstock.media.reading.audio import RATE
from tests.support.media_samples import CLIPS, FOLDER, FRENCH, MANIFEST, corpus, word_error_rate


@pytest.fixture(scope="module")
def transcriber():
    made = Transcriber(threads=2)
    made.load()
    return made


def samples_of(name):
    with wave.open(str(FOLDER / name)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()


def write(path, samples, rate=RATE):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.asarray(samples, "<i2").tobytes())
    return path


@pytest.mark.parametrize("name", CLIPS)
def test_a_sample_says_what_was_said(name, transcriber):
    transcript = transcriber.transcribe(FOLDER / name)
    assert word_error_rate(transcript.text, MANIFEST[name]["text"]) <= 0.2
    assert transcript.duration == pytest.approx(MANIFEST[name]["seconds"], abs=0.2)
    assert (transcript.language, transcript.model) == ("en", "tiny.en")
    for segment in transcript.segments:
        assert 0 <= segment.start <= segment.end <= transcript.duration + 1


def test_ten_minutes_keep_their_times(transcriber, tmp_path):
    speech, rate = samples_of("weather.wav")
    long = np.zeros(600 * rate, np.int16)
    places = (1, 57, 58 + 64, 300, 590)
    for second in places:
        long[second * rate : second * rate + len(speech)] = speech
    done = []
    transcript = transcriber.transcribe(write(tmp_path / "long.wav", long), on_progress=done.append)
    said = MANIFEST["weather.wav"]["text"]
    assert word_error_rate(transcript.text, " ".join([said] * len(places))) <= 0.2
    for second in places:
        assert any(abs(s.start - second) < 1.5 for s in transcript.segments), second
    assert transcript.duration == pytest.approx(600, abs=0.1)
    assert done == sorted(done) and done[-1] == transcript.duration and len(done) >= 10


class Sloppy:
    """A model whose times are off, as they are where a window cuts a word."""

    supported_languages = ("en",)

    def transcribe(self, samples, **_):
        length = len(samples) / RATE
        times = [(0.0, 20.0), (19.6, length + 1.4), (length - 0.1, length + 3)]
        pieces = [
            SimpleNamespace(start=s, end=e, text=" word", compression_ratio=1.0, avg_logprob=-0.4)
            for s, e in times
        ]
        return pieces, SimpleNamespace(language="en")


def test_segments_follow_one_another_across_windows_and_end_with_the_recording(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("penstock.media.reading.transcribe.spoken", lambda _: [0.0, 1.0])
    transcriber = Transcriber()
    transcriber._whisper = Sloppy()
    noise = np.random.default_rng(1).normal(0, 3000, int(150.537 * RATE))
    transcript = transcriber.transcribe(write(tmp_path / "long.wav", noise))
    assert len(transcript.segments) == 9
    times = [time for segment in transcript.segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert transcript.segments[-1].end == pytest.approx(transcript.duration, abs=0.01)
    assert transcript.segments[-1].end <= transcript.duration


@pytest.mark.parametrize("name", ["garden.ogg", "coffee.flac"])
def test_speech_in_no_language_that_the_model_knows_is_doubtful(name, transcriber, tmp_path):
    """Backwards it is speech, and not English; a model that knows only English cannot tell which
    language it is, and does not say that it is English. Whether it makes words of it is chance: its
    second try draws them."""
    sound = (decode_audio(str(FOLDER / name))[::-1] * 32_767).astype("<i2")
    transcript = transcriber.transcribe(write(tmp_path / "backwards.wav", sound))
    assert transcript.doubtful
    assert transcript.language == "und"
    assert not transcriber.transcribe(FOLDER / name).doubtful


class Told:
    """A model that says what it is told."""

    supported_languages = ("en",)

    def __init__(self, said):
        names = ("start", "end", "text", "compression_ratio", "avg_logprob")
        self._pieces = [SimpleNamespace(**dict(zip(names, one, strict=True))) for one in said]

    def transcribe(self, samples, **_):
        return self._pieces, SimpleNamespace(language="en")


def test_french_is_doubtful_for_a_model_that_knows_only_english(transcriber):
    transcript = transcriber.transcribe(FRENCH)
    assert (transcript.doubtful, transcript.language) == (True, "und")


@pytest.mark.parametrize("said", [[], [(0.0, 20.0, "I know. " * 50, 16.75, -0.2)]])
def test_speech_that_the_model_makes_nothing_of_is_doubtful(said, tmp_path, monkeypatch):
    """It writes nothing down, or goes in circles and is sure of every word."""
    monkeypatch.setattr("penstock.media.reading.transcribe.spoken", lambda _: [0.0, 20.0])
    transcriber = Transcriber()
    transcriber._whisper = Told(said)
    noise = np.random.default_rng(1).normal(0, 3000, 20 * RATE)
    transcript = transcriber.transcribe(write(tmp_path / "speech.wav", noise))
    assert (transcript.segments, transcript.doubtful) == ((), True)


def test_a_cough_among_sentences_leaves_no_doubt(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.media.reading.transcribe.spoken", lambda _: [0.0, 20.0])
    transcriber = Transcriber()
    transcriber._whisper = Told(
        [(0.0, 9.0, "Good morning.", 1.3, -0.4), (9.0, 10.0, "Hrm.", 1.1, -1.4)]
    )
    noise = np.random.default_rng(1).normal(0, 3000, 20 * RATE)
    assert not transcriber.transcribe(write(tmp_path / "speech.wav", noise)).doubtful


def test_silence_has_no_words_and_costs_no_model(tmp_path):
    transcriber = Transcriber()
    transcriber._whisper = object()  # anything but a model: calling it would fail
    transcript = transcriber.transcribe(write(tmp_path / "still.wav", np.zeros(120 * RATE)))
    assert (transcript.segments, transcript.duration, transcript.language) == ((), 120.0, "und")


@pytest.mark.parametrize("kind", ["noise", "tone", "clicks"])
def test_garbage_does_not_run_away(kind, transcriber, tmp_path):
    chance = np.random.default_rng(1)
    moments = np.arange(40 * RATE) / RATE
    sound = {
        "noise": chance.normal(0, 8000, len(moments)),
        "tone": 20_000 * np.sin(2 * np.pi * 440 * moments),
        "clicks": np.where(np.arange(len(moments)) % 4000 == 0, 30_000, 0),
    }[kind]
    path = write(tmp_path / "garbage.wav", np.clip(sound, -32768, 32767))
    assert len(transcriber.transcribe(path).text) < 400


def test_asking_to_stop_ends_it_between_pieces(transcriber, tmp_path):
    path = write(tmp_path / "long.wav", np.zeros(600 * RATE))
    done = []
    with pytest.raises(MediaError) as caught:
        transcriber.transcribe(path, on_progress=done.append, should_stop=lambda: len(done) == 2)
    assert (caught.value.reason, caught.value.retryable, len(done)) == ("cancelled", True, 2)


@pytest.mark.real_time
async def test_a_coroutine_transcribes_too(transcriber):
    done = []
    heard = await transcriber.transcribe_async(FOLDER / "garden.ogg", on_progress=done.append)
    assert "garden" in heard.text and done


@pytest.mark.real_time
async def test_cancelling_a_coroutine_ends_the_work(tmp_path):
    transcriber = Transcriber()
    transcriber._whisper = object()
    loop, begun, done = asyncio.get_running_loop(), asyncio.Event(), []

    def progress(seconds):
        done.append(seconds)
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.05)

    path = write(tmp_path / "long.wav", np.zeros(1200 * RATE))
    task = asyncio.create_task(transcriber.transcribe_async(path, on_progress=progress))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 1 <= len(done) < 20


def test_a_model_that_fails_is_tried_again_later():
    transcriber = Transcriber()
    transcriber._whisper = object()
    with pytest.raises(MediaError) as caught:
        transcriber.transcribe(FOLDER / "garden.ogg")
    assert (caught.value.reason, caught.value.retryable) == ("unavailable", True)


@pytest.mark.parametrize("language", ["de", "klingon"])
def test_a_language_the_model_does_not_know_is_a_configuration_error(language):
    with pytest.raises(MediaError, match=r"configuration.*media\.model"):
        Transcriber(language=language).load()


def test_what_is_longer_than_allowed_is_refused(tmp_path):
    transcriber = Transcriber(most_seconds=100)
    transcriber._whisper = object()
    with pytest.raises(MediaError, match="too_long"):
        transcriber.transcribe(write(tmp_path / "long.wav", np.zeros(200 * RATE)))


def test_video_without_sound_has_nothing_to_say(transcriber, tmp_path):
    import av

    path = tmp_path / "mute.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for _ in range(10):
            container.mux(stream.encode(av.VideoFrame(64, 64, "yuv420p")))
        container.mux(stream.encode(None))
    with pytest.raises(MediaError, match="no_audio"):
        transcriber.transcribe(path)


def test_damaged_files_end_well_or_say_something(transcriber, tmp_path):
    """Decoded in full, with no model: each gives audio or a MediaError that blames the file."""
    quiet = Transcriber()
    quiet._whisper = object()
    quiet._window = lambda samples, offset, language, stop: ([], language)
    path = tmp_path / "media"
    decoded = 0
    for n, (name, data) in enumerate(corpus()):
        if n % 3:
            continue
        path.write_bytes(data)
        try:
            decoded += quiet.transcribe(path).duration > 0
        except MediaError as error:
            assert error.permanent, name
            assert error.reason in ("malformed", "unsupported", "no_audio", "too_long"), name
    assert decoded > 20


def test_holes_and_chains_keep_the_time(tmp_path):
    """A gap in the time stamps is silence; two Ogg files in one are one after the other."""
    import av

    path = tmp_path / "changing.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for n in (0, 1, 2, 10, 11):
            frame = av.AudioFrame(format="s16", layout="mono", samples=RATE)
            frame.planes[0].update(bytes(2 * RATE))
            frame.sample_rate, frame.pts = RATE, n * RATE
            container.mux(stream.encode(frame))
    quiet = Transcriber()
    quiet._whisper = object()
    assert quiet.transcribe(path).duration == pytest.approx(12, abs=0.1)
    chained = tmp_path / "chained.ogg"
    garden = (FOLDER / "garden.ogg").read_bytes()
    chained.write_bytes(garden + garden)
    quiet._window = lambda samples, offset, language, stop: ([], language)
    assert quiet.transcribe(chained).duration == pytest.approx(
        2 * MANIFEST["garden.ogg"]["seconds"], abs=0.3
    )


def test_threads_share_one_model(tmp_path):
    transcriber = Transcriber(threads=1)
    texts = []

    def work():
        texts.append(transcriber.transcribe(FOLDER / "garden.ogg").text)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 3 and len(set(texts)) == 1


def test_nothing_is_looked_up_on_the_network(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    Transcriber().load()
    with pytest.raises(MediaError, match="configuration"):
        Transcriber("large-v3").load()


def test_weights_that_are_not_there_are_a_configuration_error(tmp_path):
    for name in ("model.bin", "config.json", "tokenizer.json"):
        with pytest.raises(MediaError) as caught:
            Transcriber(tmp_path).load()
        assert caught.value.reason == "configuration"
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(MediaError, match="do not load"):
        Transcriber(tmp_path).load()
