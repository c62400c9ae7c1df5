"""Stages whose handlers do what the job's source tells them, wherever Spark runs them."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.jobs import (
    MEDIA,
    AudioInfo,
    Done,
    JobSettings,
    Outcome,
    ProcessingJob,
    Reject,
    Retry,
    Segment,
    Text,
)
from penstock.jobs.tools import Tools, plain_tools

_INFO = AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le")
_TEXT = Text(segments=[Segment(0.0, 2.5, "hello there")], language="en")


class _Calls:
    """Which handlers were called, noted in files because they run in other processes."""

    def prepare(self, folder: Path) -> None:
        (folder / "calls").mkdir()

    def note(self, settings: JobSettings, stage: str, job: ProcessingJob) -> int:
        folder = Path(settings.database.removeprefix("sqlite:///")).parent / "calls"
        with (folder / job.job_id).open("a") as file:
            file.write(f"{stage}\n")
        return self.of(folder.parent, job.job_id).count(stage)

    def of(self, folder: Path, job_id: str) -> list[str]:
        path = folder / "calls" / job_id
        return path.read_text().split() if path.exists() else []


CALLS = _Calls()


async def look(job: ProcessingJob, tools: Tools) -> Outcome:
    times = CALLS.note(tools.settings, "metadata", job)
    record = await tools.store.get(job.job_id)
    assert record is not None
    match record.source:
        case "bad.wav":
            return Reject("malformed")
        case "shaky.wav":
            return Done(info=_INFO) if times > 1 else Retry("shaky")
        case "stubborn.wav":
            return Done(info=_INFO) if times > 2 else Retry("stubborn")
        case "busy.wav":
            return Retry("busy")
        case "slow.wav":
            await asyncio.sleep(60)
        case "slowish.wav":
            await asyncio.sleep(1)
        case "deadly.wav":
            os.kill(os.getpid(), signal.SIGKILL)
    return Done(info=_INFO)


async def listen(job: ProcessingJob, tools: Tools) -> Outcome:
    CALLS.note(tools.settings, "transcription", job)
    return Done(text=_TEXT)


_metadata, _transcription = MEDIA.stages
_LIMITS: Any = {"time_limit": 2, "max_attempts": 3}
PIPELINE = replace(
    MEDIA,
    stages=(
        replace(_metadata, handler=look, **_LIMITS),
        replace(_transcription, handler=listen, **_LIMITS),
    ),
    tools=plain_tools,
)
