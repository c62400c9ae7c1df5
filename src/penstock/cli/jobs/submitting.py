"""`penstock jobs submit`: each of MEDIA by itself, so that a bad one takes no other with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from penstock.cli.brokers.broker import print_json
from penstock.cli.jobs.asking import kind_of, name_of, request
from penstock.cli.jobs.following import follow
from penstock.cli.plain_text import one_line
from penstock.errors import PenstockError, UnauthenticatedError, UnavailableError

if TYPE_CHECKING:
    from penstock.cli.jobs.api import Api


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What is said of all MEDIA."""

    kind: str | None
    key: str | None
    title: str | None
    remote: bool


@dataclass(slots=True)
class Answer:
    """What became of one of MEDIA: a job, or the error for which there is none."""

    media: str
    job: dict[str, Any] | None = None
    error: PenstockError | None = None

    @property
    def name(self) -> str:
        return one_line(name_of(self.media))

    @property
    def job_id(self) -> str:
        return str(self.job["jobId"]) if self.job is not None else ""

    @property
    def reason(self) -> str:
        return str((self.job or {}).get("reason") or "")

    @property
    def why(self) -> str:
        """Why there is no job."""
        return one_line(str(self.error or ""))

    def told(self) -> dict[str, Any]:
        """For JSON."""
        # As it was given, but for what no JSON can say.
        media = self.media.encode(errors="replace").decode()
        if self.job is None:
            return {"media": media, "error": self.why}
        return {"media": media, **self.job}


def submit_each(
    client: Api, media: Sequence[str], wish: Wish, progress: Console
) -> Iterator[Answer]:
    """One after the other. An API that is not there, or not for us, is an error for all at once."""
    for number, one in enumerate(media):
        key = wish.key if wish.key is None or len(media) == 1 else f"{wish.key}-{number}"
        try:
            kind = kind_of(one, wish.kind, wish.remote)
            if wish.kind is not None:
                client.check_kind(kind)
            body = request(client, one, kind, wish.title, progress, remote=wish.remote)
            yield Answer(one, job=client.submit(body, key))
        except (UnavailableError, UnauthenticatedError) as error:
            if number:
                left = ", ".join(media[number:])
                raise type(error)(f"{error}. Not sent: {left}") from None
            raise
        except PenstockError as error:
            if len(media) == 1:
                raise
            yield Answer(one, error=error)


def say_sent(
    answers: Iterable[Answer], *, json: bool, alone: bool, quiet: bool
) -> Iterator[Answer]:
    """Each as soon as it is known; `alone`: there is one, and its id says all. `quiet`: only what
    was not sent, since more is said of the others later."""
    for answer in answers:
        if answer.error is not None:
            sys.stderr.write(f"penstock: {one_line(answer.media)} was not sent: {answer.why}\n")
        if not quiet:
            _say(answer, json=json, alone=alone)
        yield answer


def submit_and_wait(
    client: Api, sending: Iterable[Answer], out: Console, patience: float, *, json: bool
) -> bool:
    """Follow all that are sent to their end, and say what became of them; whether all completed."""
    answers: list[Answer] = []
    with _ids_if_left(answers, json=json):
        answers.extend(say_sent(sending, json=json, alone=False, quiet=True))
        complete = _follow(client, answers, out, patience)
    if json:
        for one in answers:
            print_json(one.told())
    return complete and not any(one.error for one in answers)


def _follow(client: Api, answers: Sequence[Answer], out: Console, patience: float) -> bool:
    sent = {one.job_id: one.name for one in answers if one.job is not None}
    if not sent:
        return True
    following = follow(client, list(sent), out, patience, sent)
    for one in answers:
        one.job = following.jobs.get(one.job_id)
    say_what_failed(answers, following.last_stage, out)
    return following.all_complete


@contextmanager
def _ids_if_left(answers: Sequence[Answer], *, json: bool) -> Iterator[None]:
    """Whatever ends the waiting, an API that is gone or Ctrl-C: the jobs go on, and are told."""
    try:
        yield
    except BaseException:
        for answer in answers:
            _say(answer, json=json, alone=False)
        raise


def _say(answer: Answer, *, json: bool, alone: bool) -> None:
    if json:
        print_json(answer.told())
    elif answer.error is None:
        typer.echo(answer.job_id if alone else f"{answer.job_id}  {answer.name}")


def say_what_failed(answers: Sequence[Answer], complete: str, out: Console) -> None:
    """Which ones, why, and what to do."""
    bad = [one for one in answers if one.job is None or one.job["stage"] != complete]
    if not bad:
        return
    out.print(f"\n[bold]{len(bad)} of {len(answers)} did not complete:[/]", highlight=False)
    for one in bad:
        out.print(f"  [red]{escape(one.name)}[/]  {one.job_id}", soft_wrap=True)
        out.print(Padding(Text(_why(one)), (0, 0, 0, 4)))


def _why(answer: Answer) -> str:
    if answer.job is None:
        return f"not sent: {answer.why}"
    stage = answer.job["stage"]
    reason = f", {answer.reason}" if answer.reason else ""
    advice = answer.job.get("advice")
    return f"{stage}{reason}{f': {advice}' if advice else ''}"
