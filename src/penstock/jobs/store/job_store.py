"""Where jobs are kept: SQL, one row a job, changed only by legal steps.

Every change is guarded by what it expects to find, so that a message that comes twice, late or out
of order changes nothing the second time. What a change says to the world is added to the outbox in
the same transaction, so nobody has to say it afterwards. Changes that wait for the database at the
same time are committed together: a sync to disk costs the same for one as for fifty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Self

import msgspec
from msgspec.structs import replace
from sqlalchemy import Row, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.batching import GroupCommit
from penstock.errors import AlreadyExistsError
from penstock.jobs.model.job import Job
from penstock.jobs.pipeline.stage import Text
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.records import (
    BEGIN,
    BEGIN_FROM,
    CHANGE,
    CREATE,
    FIND,
    FIND_LOCKED,
    PLACES_LOCKED,
    JobRecord,
    NewJob,
    Standing,
    Step,
    UnknownStageError,
    after,
    changed_row,
    created,
    jobs,
    metadata,
    place_of,
    record_of,
    results,
    standing,
    texts,
)
from penstock.jobs.store.said import Said, again, say, say_new
from penstock.jobs.store.written import Newborn, StepsTaken, Taken
from penstock.transactional import Database, Outbox
from penstock.transactional.group_transaction import GroupTransaction
from penstock.transactional.many_rows import READ_FIRST, OvertakenError
from penstock.transactional.relay import Work
from penstock.transactional.schema import prepare

# A kind of change: makes those of its kind that are wanted, and answers each.
_Change = Callable[[AsyncConnection, Sequence[Any]], Awaitable[Sequence[Any]]]


class ProcessingJobStore:
    """Jobs of a pipeline, their texts and results, in a database. Enter it to create the tables.

    `settings` say which pipeline, media jobs unless given, and where its messages go. Pipelines
    may share a database: none sees jobs of media types that are not its own. `outbox`: takes what
    is said, that of the database unless given. `on_commit` is called after each change that said
    something, to wake the relay that sends it.
    """

    def __init__(
        self,
        database: Database,
        settings: JobSettings | None = None,
        *,
        outbox: Outbox | None = None,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.database = database
        self.outbox = outbox or Outbox(database)
        self._settings = settings or JobSettings()
        self.pipeline = self._settings.pipeline
        self._on_commit = on_commit
        self._reads = GroupCommit(self._get_many, all_or_none=True)
        # Whatever it is that changes: a transaction costs the same for all kinds as for one.
        self._changes: GroupTransaction[tuple[_Change, Any], Any] = GroupTransaction(
            database, self._change_all, on_commit=self._on_changes
        )

    async def __aenter__(self) -> Self:
        await prepare(self.database, "jobs", metadata)
        await self.outbox.create()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reads.aclose()
        await self._changes.aclose()

    # Reading.

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._reads.do(job_id)

    async def _get_many(self, job_ids: Sequence[str]) -> Sequence[JobRecord | None]:
        async with self.database.transaction(reading=True) as connection:
            found = await self.find(connection, job_ids)
        return [found.get(job_id) for job_id in job_ids]

    async def readable(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Those that are there, but for such as another program took further than this one can
        follow."""
        if not job_ids:
            return {}
        async with self.database.transaction(reading=True) as connection:
            rows = await self._rows(connection, job_ids)
        return self._readable(rows)

    def _readable(self, rows: Iterable[Row[Any]]) -> dict[str, JobRecord]:
        found: dict[str, JobRecord] = {}
        for row in rows:
            with suppress(UnknownStageError):
                found[row.job_id] = record_of(self.pipeline, row)
        return found

    async def find(
        self, connection: AsyncConnection, job_ids: Sequence[str], *, lock: bool = False
    ) -> dict[str, JobRecord]:
        """Those that are there; locked, nobody else changes them before the transaction ends."""
        return self._records(await self._rows(connection, job_ids, lock=lock))

    def _records(self, rows: Iterable[Row[Any]]) -> dict[str, JobRecord]:
        return {row.job_id: record_of(self.pipeline, row) for row in rows}

    async def _rows(
        self, connection: AsyncConnection, job_ids: Sequence[str], *, lock: bool = False
    ) -> list[Row[Any]]:
        query = (FIND_LOCKED if lock else FIND)[connection.dialect.name]
        ours = self.pipeline.job_types
        found = await connection.execute(query, {"ids": self._ids(connection, job_ids)})
        return [row for row in found if row.media_type in ours]

    async def _lock(self, connection: AsyncConnection, job_ids: Sequence[str]) -> None:
        """All at once, in one order: who locks some and then others may wait for somebody who does
        it the other way round. On SQLite nobody else writes anyway."""
        if connection.dialect.name != "sqlite":
            ids = {"ids": self._ids(connection, job_ids)}
            await connection.execute(PLACES_LOCKED[connection.dialect.name], ids)

    def _ids(self, connection: AsyncConnection, job_ids: Iterable[str]) -> Any:
        """As one value."""
        ids = list(set(job_ids))
        is_sqlite = connection.dialect.name == "sqlite"
        return msgspec.json.encode(ids).decode() if is_sqlite else ids

    async def text(self, job_id: str) -> Text | None:
        async with self.database.transaction(reading=True) as connection:
            found = await connection.scalar(select(texts.c.text).where(texts.c.job_id == job_id))
        return msgspec.json.decode(found, type=Text) if found is not None else None

    async def result(self, job_id: str, stage: str) -> Any:
        """What a handler of that stage returned as its result; None when there is none."""
        query = select(results.c.result).where(results.c.job_id == job_id, results.c.stage == stage)
        async with self.database.transaction(reading=True) as connection:
            found = await connection.scalar(query)
        return None if found is None else msgspec.json.decode(found)

    # Changing.

    async def _change_all(
        self, connection: AsyncConnection, wanted: Sequence[tuple[_Change, Any]]
    ) -> Sequence[Any]:
        places: dict[_Change, list[int]] = {}
        for at, (change, _) in enumerate(wanted):
            places.setdefault(change, []).append(at)
        answers: list[Any] = [None] * len(wanted)
        # Something else comes last: it sees what changed, whoever came first.
        for change, of_it in sorted(places.items(), key=lambda kind: kind[0] == self._do_each):
            given = await change(connection, [wanted[at][1] for at in of_it])
            for at, answer in zip(of_it, given, strict=True):
                answers[at] = answer
        return answers

    def _on_changes(self, made: Sequence[tuple[_Change, Any]]) -> None:
        if any(change not in (self._begin_each, self._do_each) for change, _ in made):
            self._on_commit()

    async def do_together(self, work: Work) -> None:
        """Something else, in the transaction of whatever changes next; done again in one of its own
        if that fails. It waits for no other change: there may be more than one transaction takes,
        and what was sent has to be marked before the claim on it ends."""
        await self._changes.do_next((self._do_each, work))

    async def _do_each(self, connection: AsyncConnection, works: Sequence[Work]) -> Sequence[None]:
        for work in works:
            await work(connection)
        return [None] * len(works)

    async def add(self, new: NewJob) -> tuple[JobRecord, bool]:
        """Keep a new job and say that it is there, and True; or what is kept of it, and False.
        `AlreadyExistsError` when that was asked for by somebody else or differently."""
        answer: tuple[JobRecord, bool] | AlreadyExistsError
        answer = await self._changes.do((self._create, Newborn.of(self._settings, new)))
        if isinstance(answer, AlreadyExistsError):
            raise answer
        return answer

    async def add_many(
        self, new: Sequence[NewJob]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        """`add` for several, in one transaction; errors are answers."""
        born = self._born(new)
        # Not with what others want: that is enough for one transaction.
        async with self.database.transaction() as connection:
            answers = await self._create(connection, born)
        self._on_commit()
        return answers

    async def create(
        self, connection: AsyncConnection, new: Sequence[NewJob]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        """`add` for several, in the transaction of `connection`; errors are answers."""
        return await self._create(connection, self._born(new))

    def _born(self, new: Sequence[NewJob]) -> list[Newborn]:
        return [Newborn.of(self._settings, one) for one in new]

    async def _create(
        self, connection: AsyncConnection, born: Sequence[Newborn]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        # In one order everywhere: else two who ask for the same jobs wait for each other.
        rows = sorted((one.row for one in born), key=itemgetter("job_id"))
        made = await CREATE[connection.dialect.name].execute(connection, rows)
        answers: Sequence[tuple[JobRecord, bool] | AlreadyExistsError]
        if made == len(born):
            answers = [(one.record, True) for one in born]
        else:
            kept = await self.find(connection, [one.new.job.job_id for one in born])
            answers = [created(one.new, kept.get(one.new.job.job_id)) for one in born]
        fresh = [
            one
            for one, answer in zip(born, answers, strict=True)
            if not isinstance(answer, AlreadyExistsError) and answer[1]
        ]
        await say_new(self.outbox, connection, (said for one in fresh for said in one.said))
        return answers

    async def step(self, step: Step) -> JobRecord | None:
        """Take a step and say so; None when the job is no longer where the step begins."""
        taken: JobRecord | None = await self._changes.do((self.take, step))
        return taken

    async def take(
        self, connection: AsyncConnection, steps: Sequence[Step]
    ) -> Sequence[JobRecord | None]:
        """Take steps, in the transaction of `connection`; None where a job is no longer where
        its step begins."""
        kept = await self._kept_for(connection, self._checked(steps))
        answers: list[JobRecord | None] = []
        taken: list[Taken] = []
        for step in steps:
            record = kept.get(step.job.job_id)
            at = (step.job.run, step.job.stage)
            if record is None or (record.job.run, record.job.stage) != at:
                answers.append(None)
                continue
            changed = kept[step.job.job_id] = after(self.pipeline, record, step)
            taken.append((step, changed))
            answers.append(changed)
        if taken:
            await StepsTaken(self._settings, taken).write(connection, self.outbox)
        return answers

    def _checked(self, steps: Sequence[Step]) -> Sequence[Step]:
        for step in steps:
            self.pipeline.check_step(step.job, step.to)
        return steps

    async def _kept_for(
        self, connection: AsyncConnection, steps: Sequence[Step]
    ) -> dict[str, JobRecord]:
        """`find` for steps, locked. What is known of a job is what is kept of it as long as nothing
        was said of it since, but for its attempts, which a step ends."""
        known = {step.job.job_id: step.known for step in steps if step.known is not None}
        kept: dict[str, JobRecord] = {}
        if known:
            ids = self._ids(connection, known)
            found = await connection.execute(PLACES_LOCKED[connection.dialect.name], {"ids": ids})
            for job_id, *place in found:
                record = known[job_id]
                if place == [record.job.run, record.job.stage, record.version]:
                    kept[job_id] = record
        others = {step.job.job_id for step in steps} - kept.keys()
        return kept | await self.find(connection, list(others), lock=True) if others else kept

    async def send(self, said: Said) -> None:
        """Say something that is of no job, a dead letter that does not decode for instance."""
        await self._changes.do((self._send_all, said))

    async def _send_all(
        self, connection: AsyncConnection, messages: Sequence[Said]
    ) -> Sequence[None]:
        await say(self.outbox, connection, messages)
        return [None] * len(messages)

    # Attempts are counted here, not by a broker: one counts what it delivered, whatever became of
    # it, and gives up without telling anybody.

    async def begin(self, job: Job) -> JobRecord | None:
        """Count an attempt at a job if it is due, before it is made; it ends with a step, with
        `try_again` or with `interrupt`, and is `trying` until then. Returns what is kept of it."""
        async with self.database.transaction() as connection:
            kept, _ = await self._begin(connection, [job], suspects_too=True)
        return kept.get(job.job_id)

    async def begin_unless_suspect(self, job: Job) -> tuple[JobRecord | None, bool]:
        """`begin`, unless the job's last attempt never ended, which the second answer says: then
        nothing was counted."""
        begun: tuple[JobRecord | None, bool] = await self._changes.do((self._begin_each, job))
        return begun

    async def _begin_each(
        self, connection: AsyncConnection, wanted: Sequence[Job]
    ) -> Sequence[tuple[JobRecord | None, bool]]:
        kept, suspects = await self._begin(connection, wanted, suspects_too=False)
        return [(kept.get(job.job_id), job.job_id in suspects) for job in wanted]

    async def begin_together(
        self, wanted: Sequence[Job]
    ) -> tuple[dict[str, JobRecord], frozenset[str]]:
        """`begin` for all but those that are named: jobs whose last attempt never ended, and those
        for which `begin` raises, because another program took them further."""
        if len(wanted) >= READ_FIRST:
            with suppress(OvertakenError):
                return await self._begin_as_read(wanted)
        async with self.database.transaction() as connection:
            found = await self._rows(connection, [job.job_id for job in wanted], lock=True)
            kept = self._readable(found)
            begun, suspects = await self._count(connection, wanted, kept, suspects_too=False)
        return begun, suspects | _others(found, kept)

    async def _begin_as_read(
        self, wanted: Sequence[Job]
    ) -> tuple[dict[str, JobRecord], frozenset[str]]:
        """They are read before the transaction; `OvertakenError` when one has changed since."""
        async with self.database.transaction(reading=True) as connection:
            found = await self._rows(connection, [job.job_id for job in wanted])
        kept = self._readable(found)
        begun, suspects = self._begun(wanted, kept, suspects_too=False)
        # In one order everywhere, as where they are locked.
        rows = [
            {"id": job_id, "begun": begun[job_id].attempts, **place_of(old)}
            | {"old_attempts": old.attempts}
            for job_id, old in sorted(kept.items())
            if job_id in begun
        ]
        if rows:
            async with self.database.transaction() as connection:
                await BEGIN_FROM.execute_each(connection, rows)
        return kept | begun, suspects | _others(found, kept)

    async def _begin(
        self, connection: AsyncConnection, wanted: Sequence[Job], *, suspects_too: bool
    ) -> tuple[dict[str, JobRecord], frozenset[str]]:
        kept = await self.find(connection, [job.job_id for job in wanted], lock=True)
        return await self._count(connection, wanted, kept, suspects_too=suspects_too)

    async def _count(
        self,
        connection: AsyncConnection,
        wanted: Sequence[Job],
        kept: dict[str, JobRecord],
        *,
        suspects_too: bool,
    ) -> tuple[dict[str, JobRecord], frozenset[str]]:
        begun, suspects = self._begun(wanted, kept, suspects_too=suspects_too)
        if begun:
            rows = [{"id": job_id, "begun": one.attempts} for job_id, one in begun.items()]
            await BEGIN.execute(connection, rows)
        return kept | begun, suspects

    def _begun(
        self, wanted: Sequence[Job], kept: Mapping[str, JobRecord], *, suspects_too: bool
    ) -> tuple[dict[str, JobRecord], frozenset[str]]:
        """Those whose attempts begin, and the names of suspects."""
        due = [
            record
            for job in wanted
            if (record := kept.get(job.job_id)) is not None
            and standing(self.pipeline, job, record) is Standing.DUE
        ]
        begun = {
            record.job.job_id: replace(record, attempts=record.attempts + 1, trying=True)
            for record in due
            if suspects_too or not record.trying
        }
        return begun, frozenset(record.job.job_id for record in due) - begun.keys()

    async def try_again(self, job: Job, seconds: float, *, counts: bool = True) -> bool:
        """The attempt failed, and the job is sent again after so long; False when it has gone on,
        or somebody else has ended the attempt. One that does not count was not the job's fault."""
        postponed: bool = await self._changes.do((self._postpone, (job, seconds, counts)))
        return postponed

    async def _postpone(
        self, connection: AsyncConnection, wanted: Sequence[tuple[Job, float, bool]]
    ) -> Sequence[bool]:
        kept = await self.find(connection, [job.job_id for job, *_ in wanted], lock=True)
        said: dict[str, Said] = {}
        for job, seconds, counts in wanted:
            record = kept.get(job.job_id)
            if record is None or standing(self.pipeline, job, record) is not Standing.DUE:
                continue
            if record.trying:
                attempts = record.attempts if counts else max(0, record.attempts - 1)
                ended = replace(record, trying=False, version=record.version + 1, attempts=attempts)
                kept[job.job_id] = ended
                said[job.job_id] = again(self._settings, ended, seconds)
        if said:
            await CHANGE.execute(connection, [changed_row(kept[job_id]) for job_id in said])
            await say(self.outbox, connection, said.values())
        return [job.job_id in said for job, *_ in wanted]

    async def end_together(
        self, steps: Sequence[Step], retries: Sequence[tuple[Job, float]]
    ) -> tuple[Sequence[JobRecord | None], Sequence[bool]]:
        """`step` and `try_again` for the attempts of a batch, in one transaction; what each of
        them answers."""
        foreseen = StepsTaken.foreseen(self._settings, self._checked(steps))
        try:
            ended = await self._end(steps, retries, foreseen)
        except OvertakenError:
            ended = await self._end(steps, retries)
        self._on_commit()
        return ended

    async def _end(
        self,
        steps: Sequence[Step],
        retries: Sequence[tuple[Job, float]],
        foreseen: StepsTaken | None = None,
    ) -> tuple[Sequence[JobRecord | None], Sequence[bool]]:
        taken: Sequence[JobRecord | None] = []
        postponed: Sequence[bool] = []
        async with self.database.transaction() as connection:
            if steps and retries:
                ids = [*(step.job.job_id for step in steps), *(job.job_id for job, _ in retries)]
                await self._lock(connection, ids)
            if foreseen is not None and steps:
                await foreseen.write(connection, self.outbox)
                taken = foreseen.records
            elif steps:
                taken = await self.take(connection, steps)
            if retries:
                postponed = await self._postpone(connection, [(*one, True) for one in retries])
        return taken, postponed

    async def interrupt(self, job: Job) -> None:
        """The attempt was stopped by us, so it does not count; whoever has the job's message
        brings it back."""
        async with self.database.transaction() as connection:
            await connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job.job_id,
                    jobs.c.run == job.run,
                    jobs.c.stage == job.stage.value,
                    jobs.c.trying,
                )
                .values(trying=False, attempts=jobs.c.attempts - 1)
            )

    async def send_again(self, job: Job) -> None:
        """Let the job be tried now, unless it is: its message goes at once if it is still to be
        sent, else it is sent once more, because it may have been lost by an operator's hand."""
        async with self.database.transaction() as connection:
            record = (await self.find(connection, [job.job_id], lock=True)).get(job.job_id)
            if record is None or record.trying:
                return
            if standing(self.pipeline, job, record) is not Standing.DUE:
                return
            topic = self._settings.topics.of(job.media_type)
            encode_job = self.pipeline.codec.encode_job
            for draft in (encode_job(record.job), encode_job(record.job, record.version)):
                if await self.outbox.hasten(connection, topic, str(draft.message_id)):
                    break
            else:
                once_more = replace(record, version=record.version + 1)
                await CHANGE.execute(connection, [changed_row(once_more)])
                await say(self.outbox, connection, [again(self._settings, once_more, 0.0)])
        self._on_commit()


def _others(found: Iterable[Row[Any]], read: Mapping[str, JobRecord]) -> frozenset[str]:
    """The names of those that could not be read."""
    return frozenset(row.job_id for row in found if row.job_id not in read)
