"""What a terminal says of where a job is."""

import pytest

from penstock.cli.jobs.following import stage_text

STAGES = ["Queued", "MetadataReady", "TranscriptComplete"]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"truncated": True, "pages": 500, "characters": 9000}, "cut after 500 pages"),
        ({"truncated": True, "pages": 1, "characters": 1_000_000}, "cut after 1,000,000 letters"),
        ({"truncated": True, "characters": 12}, "cut after 12 letters"),
        ({"doubtful": True, "truncated": False}, "doubtful"),
    ],
)
def test_a_text_that_was_cut_or_is_doubtful_says_so_beside_its_stage(about, said):
    assert said in stage_text({"stage": "TranscriptComplete", **about}, STAGES)


def test_a_whole_text_and_a_job_of_an_older_version_say_nothing_of_it():
    for about in ({}, {"truncated": False, "pages": 3, "doubtful": False}):
        text = stage_text({"stage": "TranscriptComplete", **about}, STAGES)
        assert text == "[green]TranscriptComplete[/]"
