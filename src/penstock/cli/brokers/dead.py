"""`penstock dead`: what was given up, looked at, sent again or put away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from penstock.cli.brokers.broker import (
    AsJson,
    BrokerUrl,
    moment,
    print_json,
    printable,
    with_pubsub,
)
from penstock.cli.plain_text import safe
from penstock.cli.sharing import with_options
from penstock.client import PubSub
from penstock.dead_letters import DeadLetter, Replay, Selection
from penstock.errors import InvalidArgumentError

dead = typer.Typer(help="Messages that were given up.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(help="The dead-letter topic.", metavar="TOPIC")]
Numbers = Annotated[
    list[int] | None, typer.Argument(help="Letters by number.", metavar="[NUMBER]...")
]
Settled = Annotated[bool, typer.Option("--settled", help="Also what was replayed or discarded.")]
All = Annotated[bool, typer.Option("--all", help="All of them, when nothing else is asked for.")]
Force = Annotated[
    bool, typer.Option("--force", help="Though nothing in the topic says that it is a dead letter.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")]


@dataclass(frozen=True)
class Wanted:
    """What a command gets that is declared `with_selection`."""

    url: str | None
    selection: Selection
    json: bool

    def of(self, numbers: list[int] | None, everything: bool) -> Selection:
        """What is to be changed, which has to be said: numbers, some option, or all."""
        selection = replace(self.selection, sequences=frozenset(numbers) if numbers else None)
        if selection.everything and not everything:
            raise InvalidArgumentError(
                "Which letters? Give numbers, an option such as --reason, or --all for all of them"
            )
        return selection


def _selection_options(
    url: BrokerUrl = None,
    reason: Annotated[
        str | None, typer.Option(help="Only with this reason; * is anything.")
    ] = None,
    error: Annotated[str | None, typer.Option(help="Only with this error; * is anything.")] = None,
    subscription: Annotated[
        str | None, typer.Option(help="Only what this subscription gave up.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only given up since: 2026-01-31T12:00, or 2h for so long ago."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only given up before.")] = None,
    where: Annotated[
        str,
        typer.Option("--filter", help="Only with attributes like 'attributes.tenant = \"acme\"'."),
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    json: AsJson = False,
) -> AbstractContextManager[Wanted]:
    selection = Selection(
        reason=reason,
        error=error,
        subscription=subscription,
        since=moment(since),
        until=moment(until),
        filter=where,
        limit=limit,
    )
    return nullcontext(Wanted(url, selection, json))


with_selection = with_options(_selection_options)


@dead.command("list")
@with_selection
def list_letters(wanted: Wanted, topic: TopicName, settled: Settled = False) -> None:
    """List letters, oldest first."""
    selection = replace(wanted.selection, settled=settled)

    async def work(pubsub: PubSub) -> None:
        letters = pubsub.dead_letters(topic).read(selection)
        if wanted.json:
            async for letter in letters:
                print_json(_as_json(letter))
        else:
            _show_table(topic, [letter async for letter in letters])

    with_pubsub(wanted.url, work)


@dead.command()
def show(
    topic: TopicName,
    number: Annotated[int, typer.Argument(help="The letter.")],
    url: BrokerUrl = None,
    json: AsJson = False,
) -> None:
    """Show one letter, with its body."""
    letter = with_pubsub(url, lambda pubsub: pubsub.dead_letters(topic).get(number))
    if json:
        print_json({**_as_json(letter), "data": letter.data})
        return
    console = Console()
    for name, value in _as_json(letter).items():
        if name != "attributes" and value is not None:
            console.print(Text(f"{name:<14}{safe(str(value))}"))
    for key, text in letter.attributes.items():
        console.print(Text(f"{'attribute':<14}{safe(key)}: {safe(text)}"))
    console.print(Text(f"\n{printable(letter.data)}"))


@dead.command()
@with_selection
def replay(
    wanted: Wanted,
    topic: TopicName,
    numbers: Numbers = None,
    to: Annotated[str | None, typer.Option(help="To this topic, not where they came from.")] = None,
    everything: All = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Send letters again, under new ids. Interrupted, it can be run again."""
    selection = wanted.of(numbers, everything)

    async def work(pubsub: PubSub) -> Replay | None:
        letters = pubsub.dead_letters(topic)
        total = await letters.count(selection)
        if total and to is not None and not force:
            await letters.check()
        if dry_run:
            _say_dry(total, "would be sent again", wanted.json)
            return None
        with _bar("Replaying", total) as advance:
            return await letters.replay(
                selection,
                to=to,
                force=force,
                on_progress=lambda r: advance(r.replayed + r.repeated + len(r.failed)),
            )

    result = with_pubsub(wanted.url, work)
    if result is not None:
        _say_replayed(result, wanted.json)
        if result.failed:
            raise typer.Exit(1)


@dead.command()
@with_selection
def discard(
    wanted: Wanted,
    topic: TopicName,
    numbers: Numbers = None,
    everything: All = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Put letters away: they are not listed any more, and gone when the topic forgets them."""
    selection = wanted.of(numbers, everything)

    async def work(pubsub: PubSub) -> int | None:
        letters = pubsub.dead_letters(topic)
        total = await letters.count(selection)
        if total and not force:
            await letters.check()
        if dry_run:
            _say_dry(total, "would be discarded", wanted.json)
            return None
        with _bar("Discarding", total) as advance:
            return await letters.discard(selection, force=force, on_progress=advance)

    count = with_pubsub(wanted.url, work)
    if count is not None and wanted.json:
        print_json({"discarded": count})
    elif count is not None:
        typer.echo(f"Discarded {count:,}.")


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    return {
        "number": letter.sequence,
        "reason": letter.reason,
        "error": letter.error,
        "attempt": letter.attempt,
        "time": letter.time.isoformat(),
        "topic": origin.topic,
        "subscription": origin.subscription,
        "message_id": origin.message_id,
        "published": origin.published.isoformat() if origin.published else None,
        "ordering_key": letter.ordering_key,
        "bytes": len(letter.data),
        "settled": letter.settled,
        "attributes": dict(letter.attributes),
    }


def _show_table(topic: str, letters: list[DeadLetter]) -> None:
    console = Console()
    if not letters:
        console.print(Text(f"No dead letters in {topic}."))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("given up", no_wrap=True)
    table.add_column("by", no_wrap=True)
    table.add_column("attempt", justify="right", no_wrap=True)
    table.add_column("why", ratio=1, overflow="fold")
    for letter in letters:
        why = letter.reason + (f": {letter.error}" if letter.error else "")
        cells = (
            str(letter.sequence),
            letter.time.strftime("%Y-%m-%d %H:%M:%S"),
            letter.origin.subscription or "?",
            str(letter.attempt),
            f"[{letter.settled}] {why}" if letter.settled else why,
        )
        table.add_row(*(Text(safe(cell)) for cell in cells))
    console.print(table)
    console.print(Text(f"\n{len(letters):,} in {topic}."))


def _bar(what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on the terminal, which is not where results go; nothing where there is no terminal."""
    console = Console(stderr=True)
    return _Bar(what, total, console) if console.is_terminal else nullcontext(lambda _: None)


class _Bar:
    def __init__(self, what: str, total: int, console: Console) -> None:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        return lambda done: self._progress.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _say_dry(total: int, what: str, json: bool) -> None:
    if json:
        print_json({"matching": total})
    else:
        typer.echo(f"{total:,} {what}.")


def _say_replayed(result: Replay, json: bool) -> None:
    failed = {str(sequence): str(error) for sequence, error in result.failed.items()}
    if json:
        print_json({"replayed": result.replayed, "repeated": result.repeated, "failed": failed})
        return
    again = f", {result.repeated:,} had been sent before" if result.repeated else ""
    typer.echo(f"Replayed {result.replayed:,}{again}.")
    for sequence, error in failed.items():
        typer.echo(f"Not sent: {sequence}: {error}", err=True)
