"""Several files are asked for one by one, whatever becomes of the others."""

from typing import get_args

import pytest
from rich.console import Console

from penstock.cli.jobs.submitting import Wish, submit_each
from penstock.errors import ResourceExhaustedError, UnauthenticatedError, UnavailableError
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


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_says_what_to_do(reason):
    why, _, what_to_do = meaning_of(reason).partition(". ")
    assert why and what_to_do.endswith(".")


def test_a_reason_of_somebody_elses_pipeline_is_not_explained():
    assert meaning_of("out_of_stock") == ""
