"""An API that runs, over real HTTP, and a client of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from penstock.web import create_app, serve
from tests.support.job_scenes import Place, Scene, jobs_on


@asynccontextmanager
async def served(scene: Scene) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API in front of a scene, on a free port."""
    ready = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    app = create_app(scene.system, scene.ingestion)
    serving = asyncio.ensure_future(
        serve(app, "127.0.0.1", 0, on_ready=ready.set_result, stop=stop)
    )
    try:
        async with httpx.AsyncClient(base_url=await ready, trust_env=False) as client:
            yield client
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def api_on(
    place: Place, *, work: bool = True, api: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Scene]]:
    """A client of an API, and the scene behind it, with handlers that do nothing at work."""
    async with (
        jobs_on(place, api={"port": 0, **(api or {})}, **settings) as scene,
        served(scene) as client,
    ):
        if not work:
            yield client, scene
            return
        async with scene.working():
            yield client, scene
