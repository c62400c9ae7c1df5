"""Stages for executors that have nothing but what was shipped: given to them as a single file."""

import asyncio
from dataclasses import replace

from penstock.jobs import MEDIA, AudioInfo, Done, Outcome, ProcessingJob, Segment, Text
from penstock.jobs.tools import Tools, plain_tools

_INFO = AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le")
_TEXT = Text(segments=[Segment(0.0, 2.5, "hello there")], language="en")


async def look(job: ProcessingJob, tools: Tools) -> Outcome:
    await asyncio.sleep(0.5)
    return Done(info=_INFO)


async def listen(job: ProcessingJob, tools: Tools) -> Outcome:
    return Done(text=_TEXT)


_metadata, _transcription = MEDIA.stages
PIPELINE = replace(
    MEDIA,
    stages=(replace(_metadata, handler=look), replace(_transcription, handler=listen)),
    tools=plain_tools,
)
