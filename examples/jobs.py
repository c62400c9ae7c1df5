"""Media jobs in one process: a recording and a document, from request to text."""

import asyncio
import tempfile
from pathlib import Path

from penstock.jobs import JobStage, MediaType, job_system, load_settings

SAMPLES = Path(__file__).parent / "media"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            environ={}, database=f"sqlite:///{folder}/jobs.db", media={"root": str(SAMPLES)}
        )
        async with (
            job_system(settings) as system,
            system.ingesting() as ingestion,
            system.working(),
        ):
            watcher = ingestion.projection.watch()
            names = {}
            for name, kind in (("weather.wav", MediaType.AUDIO), ("note.txt", MediaType.DOCUMENT)):
                record, _ = await ingestion.service.submit("user-1", kind, name)
                names[record.job.job_id] = name
            left = set(names)
            async for view in watcher:
                if view is None or view.job_id not in left:
                    continue
                if view.stage is JobStage.FAILED:
                    raise SystemExit(f"{names[view.job_id]} failed: {view.reason}")
                if view.stage is JobStage.TRANSCRIPT_COMPLETE:
                    left.discard(view.job_id)
                    if not left:
                        break
            for job_id, name in names.items():
                text = await system.store.text(job_id)
                print(f"{name}: {text.segments[0].text.splitlines()[0] if text else ''}")


if __name__ == "__main__":
    asyncio.run(main())

# prints:
# weather.wav: It will be warm and sunny in the afternoon.
# note.txt: Water at work
