"""Sound as numbers: decoding in the guarded child, windows of it in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock.media.errors import MediaError
from penstock.media.reading.probe import NamelessFile, open_container

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

RATE = 16_000
_BLOCK_BYTES = 2 * RATE * 2
# Packets that do not decode are passed over, as players do, until there are this many in a row.
_BAD_IN_A_ROW = 200
# A hole in the time stamps becomes silence, so that what follows keeps its time. A larger one is
# a clock that was set anew.
_LONGEST_HOLE = 300 * RATE
_SHORTEST_HOLE = RATE // 5

_FRAME = RATE // 10


def decode_pcm(file: BinaryIO, most_seconds: float) -> Iterator[bytes]:
    """Runs in the guarded child: 16 kHz mono 16-bit samples of the first audio stream."""
    with open_container(NamelessFile(file)) as container:
        if not container.streams.audio:
            raise MediaError("no_audio", "It has no audio stream")
        resampler = _Resampler()
        pending, sent, bad = bytearray(), 0, 0
        stream = container.streams.audio[0]
        origin: float | None = None
        for packet in _packets(container, stream):
            try:
                frames = packet.decode()
            except MemoryError:
                raise
            except Exception:
                bad += 1
                if bad > _BAD_IN_A_ROW:
                    raise MediaError("malformed", "Too much of its audio is damaged") from None
                continue
            bad = 0
            for frame in frames:
                if frame.time is not None:
                    origin = frame.time if origin is None else origin
                    here = sent + len(pending) // 2
                    hole = int((frame.time - origin) * RATE) - here
                    if _SHORTEST_HOLE < hole < _LONGEST_HOLE:
                        pending += bytes(2 * hole)
                pending += resampler.samples(frame)
                if len(pending) >= _BLOCK_BYTES:
                    sent += len(pending) // 2
                    if sent > most_seconds * RATE:
                        raise MediaError("too_long", f"It is longer than {most_seconds:g} s")
                    yield bytes(pending)
                    pending.clear()
        pending += resampler.samples(None)
        if not sent and not pending:
            raise MediaError("malformed", "None of its audio can be decoded")
        yield bytes(pending)


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Until the end, or until the container is damaged: what was there counts."""
    import av

    try:
        yield from container.demux(stream)
    except av.error.FFmpegError:
        return


class _Resampler:
    """Any sound to 16 kHz mono, also when it changes its kind on the way."""

    def __init__(self) -> None:
        self._kind: Any = None
        self._inner = self._fresh()

    def samples(self, frame: Any) -> bytes:
        """What has come out so far; None asks for the rest."""
        rest = b""
        if frame is not None:
            kind = (frame.format.name, frame.layout.name, frame.sample_rate)
            if self._kind not in (None, kind):
                rest, self._inner = self._out(None), self._fresh()
            self._kind = kind
        return rest + self._out(frame)

    def _out(self, frame: Any) -> bytes:
        frames = self._inner.resample(frame)
        return b"".join(bytes(out.planes[0])[: 2 * out.samples] for out in frames)

    @staticmethod
    def _fresh() -> Any:
        import av

        return av.AudioResampler(format="s16", layout="mono", rate=RATE)


def windows(
    blocks: Iterable[bytes | bytearray], *, seconds: float = 60.0, search: float = 10.0
) -> Iterator[tuple[int, Samples]]:
    """(first sample, samples) of at most `seconds`, each cut at its quietest spot near the end."""
    import numpy as np

    most, margin = int(seconds * RATE), int(search * RATE)
    buffer = np.zeros(most, np.float32)
    filled = start = 0
    for block in blocks:
        if len(block) % 2:
            raise MediaError("crashed", "The decoder sent half a sample")
        fresh = np.frombuffer(block, np.dtype("<i2"))
        while len(fresh):
            count = min(len(fresh), most - filled)
            np.divide(fresh[:count], 32768.0, out=buffer[filled : filled + count])
            fresh, filled = fresh[count:], filled + count
            if filled == most:
                cut = quietest(buffer, most - margin)
                yield start, buffer[:cut].copy()
                buffer[: most - cut] = buffer[cut:].copy()
                start, filled = start + cut, most - cut
    if filled:
        yield start, buffer[:filled].copy()


def quietest(samples: Samples, after: int) -> int:
    """The middle of the quietest tenth of a second from `after` on."""
    import numpy as np

    tail = samples[after:]
    frames = tail[: len(tail) // _FRAME * _FRAME].reshape(-1, _FRAME)
    if not len(frames):
        return len(samples)
    return after + int(np.argmin(np.square(frames).mean(axis=1))) * _FRAME + _FRAME // 2


def is_silent(samples: Samples, level: float = 0.001) -> bool:
    """No tenth of a second is louder than `level` (-60 dB of full scale)."""
    import numpy as np

    padded = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    rest = samples[len(samples) // _FRAME * _FRAME :]
    loudest = max(
        float(np.square(padded).mean(axis=1).max()) if len(padded) else 0.0,
        float(np.square(rest).mean()) if len(rest) else 0.0,
    )
    return loudest < level * level
