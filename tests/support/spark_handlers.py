"""Stages whose handlers do what the job's source tells them, wherever Spark runs them."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from penstock.jobs import AudioInfo, Done, JobStage, Outcome, ProcessingJob, Reject, Retry
from penstock.jobs.pipeline.media import MediaTools
from penstock.jobs.pipeline.stage import Segment, Stage, Text
from penstock.jobs.settings import JobSettings

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


def _metadata(settings: JobSettings, tools: MediaTools) -> Stage:
    async def handle(job: ProcessingJob) -> Outcome:
        times = CALLS.note(settings, "metadata", job)
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

    return _stage("metadata", JobStage.QUEUED, JobStage.METADATA_READY, handle)


def _transcription(settings: JobSettings, _: MediaTools) -> Stage:
    async def handle(job: ProcessingJob) -> Outcome:
        CALLS.note(settings, "transcription", job)
        return Done(text=_TEXT)

    return _stage("transcription", JobStage.METADATA_READY, JobStage.TRANSCRIPT_COMPLETE, handle)


def _stage(name: str, consumes: JobStage, emits: JobStage, handler: Any) -> Stage:
    return Stage(
        name=name,
        consumes=consumes,
        emits=emits,
        handler=handler,
        time_limit=2,
        max_attempts=3,
    )


STAGES = {"metadata": _metadata, "transcription": _transcription}
