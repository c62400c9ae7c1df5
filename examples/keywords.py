"""A third stage for media jobs: the keywords of what was said.

This file is all there is to it. Run it as it is, or give it to any command:

penstock jobs serve --workers --pipeline examples.keywords:PIPELINE …
penstock pipeline run --pipeline examples.keywords:PIPELINE …
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.jobs import (
    MEDIA,
    Count,
    Done,
    JobStage,
    MediaType,
    Outcome,
    ProcessingJob,
    Reject,
    Stage,
    StageEvent,
    job_system,
    load_settings,
)

if TYPE_CHECKING:
    from penstock.jobs.media_tools import MediaTools

SAMPLES = Path(__file__).parent / "media"
MOST = 5


class KeywordsReady(StageEvent, frozen=True, kw_only=True):
    """How many there are. What they are is in the store: words of users are not sent."""

    keywords: Count = 0


async def find_keywords(job: ProcessingJob, tools: MediaTools) -> Outcome:
    text = await tools.store.text(job.job_id)
    if text is None:
        return Reject("no_text")
    said = " ".join(segment.text for segment in text.segments).lower()
    counted = Counter(re.findall(r"[a-z]{4,}", said))
    words = sorted(counted, key=lambda word: (-counted[word], -len(word), word))[:MOST]
    return Done(result=words, facts={"keywords": len(words)})


PIPELINE = MEDIA.then(
    Stage(
        name="keywords",
        consumes=JobStage.TRANSCRIPT_COMPLETE,
        emits=KeywordsReady.stage,
        event=KeywordsReady,
        handler=find_keywords,
    )
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            environ={},
            pipeline=PIPELINE,
            database=f"sqlite:///{folder}/jobs.db",
            media={"root": str(SAMPLES)},
        )
        async with (
            job_system(settings) as system,
            system.ingesting() as ingestion,
            system.working(),
        ):
            watcher = ingestion.projection.watch()
            record, _ = await ingestion.service.submit("user-1", MediaType.AUDIO, "weather.wav")
            async for view in watcher:
                if view is not None:
                    print(view.stage)
                if view is not None and PIPELINE.is_end(view.stage):
                    break
            print(await system.store.result(record.job.job_id, "keywords"))


if __name__ == "__main__":
    asyncio.run(main())

# prints:
# Queued
# MetadataReady
# TranscriptComplete
# KeywordsReady
# ['afternoon', 'sunny', 'warm', 'will']
