"""Jobs as their owners see them: the newest that is known of each, by the name it has for them.

The read model is made of messages, which carry nothing personal and come a little later. The store
has both: what a job was called and found to be, and the change that was made just now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.errors import NotFoundError
from penstock.jobs.model.job import info_of
from penstock.jobs.model.reasons import meaning_of
from penstock.jobs.settings import UPLOAD
from penstock.jobs.store.records import JobRecord
from penstock.jobs.store.said import OF_TEXTS, known_event_of
from penstock.jobs.system import Ingestion
from penstock.jobs.views.view import JobView, first_view, seen

_LONGEST_NAME = 255


class OwnJob(JobView, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A view, and what only the store knows. `name`: the title, or else what its source is called;
    None for an upload without a title. `info`: what was found out about the media. `advice`: what
    to do about its reason."""

    name: str | None = None
    title: str | None = None
    info: Mapping[str, Any] = {}
    advice: str | None = None


class OwnJobs:
    def __init__(self, ingestion: Ingestion) -> None:
        self._views = ingestion.views
        self._store = ingestion.service.store
        self._pipeline = self._store.pipeline

    async def get(self, job_id: str, user: str) -> OwnJob:
        """The newer of row and view: whoever changed a job sees it changed."""
        # The view first: a row that is read later is never older.
        view = await self._views.get(job_id)
        return self.of(await self.record(job_id, user), view)

    async def record(self, job_id: str, user: str) -> JobRecord:
        record = await self._store.get(job_id)
        if record is None or record.job.user_id != user:
            raise NotFoundError(f"Job {job_id} not found")
        return record

    def of(self, record: JobRecord, view: JobView | None = None) -> OwnJob:
        job = record.job
        is_news = view is None or self._pipeline.is_news(job.run, job.stage, view.run, view.stage)
        newest = self._view_of(record, view) if view is None or is_news else view
        return _named(newest, record)

    def _view_of(self, record: JobRecord, view: JobView | None) -> JobView:
        """What its row tells, and besides what events of this run have told before."""
        event = known_event_of(self._pipeline, record)
        told = first_view(event)
        if view is not None and view.run == record.job.run:
            told = seen(self._pipeline, view, event) or view
        info = info_of(record.job)
        return msgspec.structs.replace(
            told,
            stage=record.job.stage,
            queued_at=record.job.created_at,
            updated_at=record.updated_at,
            # What a text says of itself is in no row: until its event comes it is not said, rather
            # than denied.
            **{name: None for name in OF_TEXTS if getattr(info, name, None) is None},
        )

    async def as_told(self, job_id: str, user: str) -> OwnJob:
        """The view, for those who are told its changes; the row while there is none."""
        view = await self._views.get(job_id)
        record = await self.record(job_id, user)
        return self.of(record) if view is None else _named(view, record)

    async def named(self, views: Sequence[JobView]) -> list[OwnJob]:
        """Views as they are, with names; one look for all of them."""
        return await self._each(views, _named)

    async def newest(self, views: Sequence[JobView]) -> list[OwnJob]:
        """The newer of row and view, for each."""
        return await self._each(views, lambda view, record: self.of(record, view))

    async def _each(
        self, views: Sequence[JobView], told: Callable[[JobView, JobRecord], OwnJob]
    ) -> list[OwnJob]:
        records = await self._store.readable([view.job_id for view in views])
        return [
            told(view, records[view.job_id]) if view.job_id in records else _plain(view)
            for view in views
        ]


def _plain(view: JobView, **more: Any) -> OwnJob:
    known = {name: getattr(view, name) for name in JobView.__struct_fields__}
    return OwnJob(**known, advice=meaning_of(view.reason or "") or None, **more)


def _named(view: JobView, record: JobRecord) -> OwnJob:
    name = record.title or name_of_source(record.source)
    info = info_of(record.job)
    about = {} if info is None else msgspec.to_builtins(info)
    return _plain(view, name=name, title=record.title, info=about)


def name_of_source(source: str) -> str | None:
    """A file's name, the last part of an address, a video's id. Uploads are kept under names of
    ours, which tell nobody anything."""
    if source.startswith(UPLOAD):
        return None
    if "://" in source:
        try:
            address = urlsplit(source)
        except ValueError:
            return None
        # What follows the path may be a signature.
        source = unquote(address.path) if address.path.strip("/") else address.netloc
    last = source.rstrip("/").rpartition("/")[2]
    return "".join(c for c in last if c.isprintable())[:_LONGEST_NAME] or None
