"""A pipeline of one's own: orders are priced, then packed. Any command takes it:
penstock jobs serve --workers --pipeline examples.orders:PIPELINE …"""

import asyncio

from msgspec import Struct

from penstock import jobs
from penstock.jobs import Count, Done, JobStage, Stage


class Price(Struct, frozen=True):
    total: Count


class Order(jobs.Job, frozen=True, kw_only=True, tag="order"):
    books: Count
    info: Price | None = None

    @classmethod
    def of_source(cls, source: str) -> tuple[str, dict[str, int]]:
        return source, {"books": int(source.split()[0])}


class Priced(jobs.StageEvent, frozen=True, kw_only=True):
    total: Count


async def price(order: Order) -> Done:
    return Done(info=Price(total=order.books * 12))


async def pack(order: Order) -> Done:
    return Done(result={"parcels": -(-order.books // 10)})


QUEUED, PRICED, PACKED = JobStage.QUEUED, Priced.stage, JobStage.named("Packed")
pricing = Stage(name="pricing", consumes=QUEUED, emits=PRICED, event=Priced, handler=price)
packing = Stage(name="packing", consumes=PRICED, emits=PACKED, handler=pack, max_attempts=3)
PIPELINE = jobs.Pipeline(name="orders", jobs=(Order,), stages=(pricing, packing))


async def main() -> None:
    settings = jobs.load_settings(environ={}, pipeline=PIPELINE, database="sqlite://")
    async with jobs.job_system(settings) as system, system.ingesting() as api, system.working():
        watcher = api.projection.watch()
        job = (await api.service.submit("user-1", jobs.MediaType("order"), "25 books"))[0].job
        async for view in watcher:
            if view is not None and view.stage is PACKED:
                print(view.facts, await system.store.result(job.job_id, "packing"))
                return


if __name__ == "__main__":
    asyncio.run(main())

# prints:
# {'total': 300} {'parcels': 3}
