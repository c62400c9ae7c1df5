"""Several files are asked for one by one, whatever becomes of the others."""

from io import StringIO
from typing import get_args

import pytest
from rich.console import Console

from penstock.cli.jobs.api import Api as RealApi
from penstock.cli.jobs.submitting import Wish, say_sent, submit_and_wait, submit_each
from penstock.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.jobs.model.reasons import meaning_of
from penstock.media.errors import Reason

WISH = Wish(kind=None, key="k", title=None, remote=True)


class Api:
    """Answers as told, one answer a call."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def submit(self, body, key):
        self.asked.append((body["source"], key))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"jobId": answer}


def sent(api, *media):
    return list(submit_each(api, media, WISH, Console()))


def test_each_has_a_key_of_its_own_and_an_error_of_its_own():
    api = Api("job_1", ResourceExhaustedError("no room"), "job_3")
    answers = sent(api, "a.wav", "b.wav", "c.wav")
    assert [one.job_id for one in answers] == ["job_1", "", "job_3"]
    assert answers[1].told() == {"media": "b.wav", "error": "no room"}
    assert api.asked == [("a.wav", "k-0"), ("b.wav", "k-1"), ("c.wav", "k-2")]


@pytest.mark.parametrize("error", [UnavailableError("gone"), UnauthenticatedError("no")])
def test_an_api_that_goes_away_ends_it_and_says_what_was_not_sent(error):
    api = Api("job_1", error)
    with pytest.raises(type(error), match=r"Not sent: b\.wav, c\.wav"):
        sent(api, "a.wav", "b.wav", "c.wav")
    assert len(api.asked) == 2, "it is not asked again"


def test_the_error_of_one_alone_is_the_error_of_the_command():
    with pytest.raises(ResourceExhaustedError, match=r"^no room$"):
        sent(Api(ResourceExhaustedError("no room")), "a.wav")


class Leaving(Api):
    """Takes jobs; its stream of events ends with an error."""

    def __init__(self, *answers, end):
        super().__init__(*answers)
        self.end = end
        self.reached = False

    def stages(self):
        return ["Queued", "TranscriptComplete"]

    def events(self):
        raise self.end


@pytest.mark.parametrize(
    ("answers", "end"),
    [
        (["job_1", UnavailableError("gone")], None),
        (["job_1", "job_2"], UnavailableError("gone")),
        (["job_1", "job_2"], KeyboardInterrupt()),
    ],
)
@pytest.mark.parametrize("json", [False, True])
def test_whatever_ends_the_waiting_says_which_jobs_there_are(capsys, answers, end, json):
    api, screen = Leaving(*answers, end=end), Console(file=StringIO())
    with pytest.raises((UnavailableError, KeyboardInterrupt)):
        submit_and_wait(
            api, submit_each(api, ["a.wav", "b.wav"], WISH, screen), screen, 0.0, json=json
        )
    told = capsys.readouterr().out.splitlines()
    sent = [one for one in answers if isinstance(one, str)]
    assert len(told) == len(sent)
    assert all(one in line for one, line in zip(sent, told, strict=True))


class Uploads(Api):
    """Takes files; remembers what jobs are called."""

    def __init__(self):
        super().__init__()
        self.titles = []

    def upload(self, path, on_bytes):
        on_bytes(1)
        return "upl_1"

    def submit(self, body, key):
        self.titles.append(body["title"])
        return {"jobId": "job_1"}


STRANGE = {
    "two\nlines\t.wav": "two lines .wav",
    "\x1b[31mred\x07.wav": "�[31mred�.wav",
    "latin-\udcff.wav": "latin-�.wav",
    "[red]markup[@click=(].wav": "[red]markup[@click=(].wav",
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("json", [False, True])
def test_a_file_is_sent_whatever_it_is_called(tmp_path, capsys, name, json):
    (tmp_path / name).write_bytes(b"x")
    api, screen = Uploads(), Console(file=StringIO(), force_terminal=True, width=120)
    wish = Wish(kind=None, key=None, title=None, remote=False)
    media = [str(tmp_path / name), f"{tmp_path}/no-{name}"]
    sending = submit_each(api, media, wish, screen)
    list(say_sent(sending, json=json, alone=False, quiet=False))
    assert api.titles == [STRANGE[name]]
    assert STRANGE[name] in screen.file.getvalue(), "the bar of its upload says so, too"
    told = capsys.readouterr()
    assert told.out.encode() and told.out.count("\n") == (2 if json else 1)
    assert told.err.count("\n") == 1 and told.err.strip("\n").isprintable()
    assert told.err.count(f"no-{STRANGE[name]}") == 2, "which one, and why"


def test_a_name_that_cannot_travel_is_an_error_and_not_a_traceback():
    with RealApi("http://127.0.0.1:1") as api, pytest.raises(InvalidArgumentError, match="UTF-8"):
        api.submit({"source": "latin-\udcff.wav"}, None)


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_says_what_to_do(reason):
    why, _, what_to_do = meaning_of(reason).partition(". ")
    assert why and what_to_do.endswith(".")


def test_a_reason_of_somebody_elses_pipeline_is_not_explained():
    assert meaning_of("out_of_stock") == ""
