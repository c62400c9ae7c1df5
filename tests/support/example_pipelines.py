"""The pipelines of the examples at work: what is asked for, and what the page shows in the end."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from examples import keywords, orders

from penstock.jobs import Pipeline

SAMPLES = Path(__file__).parents[2] / "examples" / "media"


@dataclass(frozen=True)
class Example:
    reference: str
    pipeline: Pipeline
    media_type: str
    source: str
    stages: tuple[str, ...]
    worker: str
    result: Any
    facts: dict[str, int]


EXAMPLES = {
    "keywords": Example(
        "examples.keywords:PIPELINE",
        keywords.PIPELINE,
        "document",
        "note.txt",
        ("Queued", "MetadataReady", "TranscriptComplete", "KeywordsReady"),
        "keywords",
        ["water", "turbine", "penstock", "nothing", "close"],
        {"keywords": 5},
    ),
    "orders": Example(
        "examples.orders:PIPELINE",
        orders.PIPELINE,
        "order",
        "25 books",
        ("Queued", "Priced", "Packed"),
        "packing",
        {"parcels": 3},
        {"total": 300},
    ),
}


async def shows(client: httpx.AsyncClient, example: Example, job_id: str) -> None:
    """The API and its page show a job of the example that went through all its stages."""
    last, steps = example.stages[-1], len(example.stages)
    declared = (await client.get("/pipeline")).json()
    assert declared["stages"] == list(example.stages)
    job = (await client.get(f"/jobs/{job_id}")).json()
    assert (job["stage"], job["mediaType"], job["facts"]) == (
        last,
        example.media_type,
        example.facts,
    )
    listed = (await client.get("/jobs", params={"stage": last})).json()["jobs"]
    assert [one["jobId"] for one in listed] == [job_id]
    found = await client.get(f"/jobs/{job_id}/results/{example.worker}")
    assert found.json()["result"] == example.result
    page = (await client.get("/")).text
    assert f'data-stages="{" ".join(example.stages)}"' in page
    row = re.search(rf'<tr id="{job_id}".*?</tr>', page, re.DOTALL)[0]
    assert f'class="{last} complete"' in row
    assert f'<progress max="{steps}" value="{steps}">' in row
    assert all(f"{name} {value}" in row for name, value in example.facts.items())
