"""The terminal says which jobs failed, why, and what to do."""

from io import StringIO

from rich.console import Console
from rich.progress import Progress

from penstock.cli.jobs.following import Following
from penstock.cli.jobs.showing import about, show_jobs

STAGES = ["Queued", "MetadataReady", "TranscriptComplete"]


def job(number, stage="TranscriptComplete", **more):
    return {
        "jobId": f"job_{number:032x}",
        "mediaType": "audio",
        "stage": stage,
        "updatedAt": "2026-03-01T12:30:15Z",
        **more,
    }


def shown(*jobs, width=200):
    out = Console(file=StringIO(), width=width)
    show_jobs(jobs, STAGES, out)
    return out.file.getvalue()


def test_failed_jobs_are_named_with_why_and_what_to_do():
    bad = job(1, "Failed", name="bad [red].wav", reason="malformed", advice="send it again")
    text = shown(bad, job(2, name="good.wav"), job(3, name="fine.wav"))
    assert "bad [red].wav" in text and "Failed malformed" in text
    assert "3 jobs: 2 TranscriptComplete, 1 Failed" in text
    assert "bad [red].wav: send it again" in text


def test_a_terminal_of_80_columns_cuts_no_word():
    info = {"size": 123_456_789, "codec": "pcm_s16le", "pages": 500, "channelId": "UC" + "x" * 22}
    cut = job(1, mediaType="document", name="long.pdf", truncated=True, pages=500, info=info)
    bad = job(2, "Failed", mediaType="youtube", name="talk", reason="too_many_attempts")
    text = shown(cut | {"doubtful": True, "duration": 7200.5, "characters": 10**6}, bad, width=80)
    words = text.split()
    assert {
        "job_" + "0" * 31 + "1", "long.pdf", "document", "123,456,789", "pcm_s16le,", "500",
        "UC" + "x" * 22 + ",", "1,000,000", "12:30:15", "too_many_attempts", "youtube", "doubtful",
    } <= set(words)  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80


def test_an_api_that_tells_no_names_is_shown_by_ids():
    text = shown(job(1, "Failed", advice="send it again"))
    assert f"{job(1)['jobId']}: send it again" in text


def test_what_is_known_of_the_media_is_told():
    info = {"size": 1000, "codec": "mp3", "pages": 3, "channelId": "UC1", "speakerRole": "host"}
    told = about(job(1, duration=2.5, characters=1234, info=info))
    assert told == "2.5 s, 1,000 bytes, 3 pages, mp3, UC1, host, 1,234 letters"
    assert about(job(1, info={"pages": 1})) == "1 page"


def name_of_bar(shown, names=()):
    progress = Progress()
    Following((), progress, STAGES, dict(names)).show(shown)
    return progress.tasks[0].fields["name"].strip()


def test_a_bar_is_called_by_the_name_of_its_job():
    assert name_of_bar(job(1, name="a.wav")) == "a.wav"
    assert name_of_bar(job(1)) == "0" * 12
    assert name_of_bar(job(1, name="b.wav"), {job(1)["jobId"]: "mine.wav"}) == "mine.wav"
    assert name_of_bar(job(1, name="x" * 99 + ".wav")) == "x" * 21 + "…" + "x" * 6 + ".wav"
