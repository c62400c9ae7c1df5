"""The ingestion API over real HTTP."""

import asyncio
import json
import math
import os
import re
import socket
import struct
import time
from contextlib import suppress
from html import escape
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.jobs import Done, JobStage, Reject, load_settings
from penstock.jobs.model.reasons import meaning_of
from penstock.jobs.store.records import jobs
from penstock.jobs.telemetry import JobObservers, LoggingObserver, PrometheusJobObserver, ended_jobs
from penstock.web import connections, create_app, serve, streams
from penstock.web.access import Access, is_loopback
from penstock.web.streams import Streams
from penstock.web.uploads import Uploads
from tests.support.api_scenes import api_on
from tests.support.job_scenes import INFO, TEXT, jobs_on, until

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(60)]
TOKENS = {"token-of-user-one-1": "user-1", "token-of-user-two-2": "user-2"}
JOB = {"mediaType": "audio", "source": "a.wav"}


def as_user(number):
    return {"Authorization": f"Bearer {list(TOKENS)[number - 1]}"}


async def test_a_job_is_asked_for_followed_and_read(place):
    async with api_on(place) as (client, scene):
        answer = await client.post("/jobs", json=JOB | {"title": "An interview"})
        assert answer.status_code == 202
        where = answer.headers["location"]
        assert where == f"/jobs/{answer.json()['jobId']}"
        await scene.ended(answer.json()["jobId"])
        job = (await client.get(where)).json()
        assert (job["stage"], job["language"], job["characters"]) == (
            "TranscriptComplete",
            "en",
            11,
        )
        text = (await client.get(f"{where}/transcript")).json()
        assert text["segments"] == [[0.0, 2.5, "hello there"]]
        assert text["title"] == "An interview"


async def test_a_job_can_be_read_as_soon_as_it_was_accepted(quick):
    async with api_on(quick, work=False) as (client, scene):
        scene.ingestion.projection._following.cancel()
        answer = await client.post("/jobs", json=JOB)
        job = await client.get(answer.headers["location"])
        assert job.json() == answer.json()


async def test_asking_again_with_the_same_key_gives_the_same_job(quick):
    async with api_on(quick) as (client, _):
        key = {"Idempotency-Key": "order 7"}
        first = await client.post("/jobs", json=JOB, headers=key)
        again = await client.post("/jobs", json=JOB, headers=key)
        assert again.status_code == 202
        assert again.headers["location"] == first.headers["location"]
        assert again.headers["idempotent-replayed"] == "true"
        other = await client.post("/jobs", json=JOB | {"source": "b.wav"}, headers=key)
        assert other.status_code == 409


@pytest.mark.parametrize(
    "other",
    [
        {"title": "Another"},
        {"title": None},
        {"correlationId": "c-2"},
        {"source": "b.wav"},
        {"mediaType": "video"},
    ],
)
async def test_a_key_stands_for_one_request_to_the_last_word(quick, other):
    body = JOB | {"source": "a.ogg", "title": "An interview", "correlationId": "c-1"}
    async with api_on(quick, work=False) as (client, _):
        key = {"Idempotency-Key": "order 7"}
        first = await client.post("/jobs", json=body, headers=key)
        again = await client.post("/jobs", json=body, headers=key)
        assert again.json()["jobId"] == first.json()["jobId"]
        answer = await client.post("/jobs", json=body | other, headers=key)
        assert answer.status_code == 409
        assert "use another key" in answer.json()["detail"]


async def test_who_changed_a_job_reads_it_changed_though_no_event_has_come_back(quick):
    async with api_on(quick, work=False) as (client, scene):
        where = (await client.post("/jobs", json=JOB)).headers["location"]
        await scene.view_at(where.removeprefix("/jobs/"), JobStage.QUEUED)
        scene.ingestion.projection._following.cancel()
        await client.post(f"{where}/cancel")
        assert (await client.get(where)).json()["stage"] == "Cancelled"
        listed = (await client.get("/jobs")).json()["jobs"]
        assert [job["stage"] for job in listed] == ["Cancelled"]
        assert "Cancelled" in (await client.get("/")).text
        queued = await client.get("/jobs", params={"stage": "Queued"})
        assert queued.json()["jobs"] == []
        await client.post(f"{where}/retry")
        job = (await client.get(where)).json()
        assert (job["stage"], job["run"]) == ("Queued", 2)


async def test_what_events_told_before_stays_when_the_row_is_newer(quick):
    async with api_on(quick, work=False) as (client, scene):
        where = (await client.post("/jobs", json=JOB)).headers["location"]
        async with scene.working(transcription=None):
            await scene.view_at(where.removeprefix("/jobs/"), JobStage.METADATA_READY)
        scene.ingestion.projection._following.cancel()
        cancelled = (await client.post(f"{where}/cancel")).json()
        job = (await client.get(where)).json()
        (listed,) = (await client.get("/jobs")).json()["jobs"]
        assert listed == job and (job["stage"], job["duration"]) == ("Cancelled", INFO.duration)
        assert job["updatedAt"] == cancelled["updatedAt"] > job["queuedAt"]


async def test_what_only_an_event_tells_of_a_text_is_not_denied_before_it_comes(quick):
    async def doubts(_):
        return Done(text=replace(TEXT, doubtful=True))

    async with api_on(quick, work=False) as (client, scene):
        where = (await client.post("/jobs", json=JOB)).headers["location"]
        job_id = where.removeprefix("/jobs/")
        async with scene.working(transcription=None):
            await scene.view_at(job_id, JobStage.METADATA_READY)
        scene.ingestion.projection._following.cancel()

        async def is_complete():
            record = await scene.system.store.get(job_id)
            return record.job.stage is JobStage.TRANSCRIPT_COMPLETE

        async with scene.working(metadata=None, transcription=doubts):
            await until(is_complete)
        job = (await client.get(where)).json()
        assert (job["stage"], job["characters"]) == ("TranscriptComplete", TEXT.characters)
        assert job["duration"] == INFO.duration
        assert "doubtful" not in job
        assert (await client.get(f"{where}/transcript")).json()["doubtful"] is True


async def test_a_stream_ends_with_its_job_though_the_event_was_lost(quick, monkeypatch):
    monkeypatch.setattr(streams, "_HEARTBEAT", 0.05)
    async with api_on(quick, work=False) as (client, scene):
        where = (await client.post("/jobs", json=JOB)).headers["location"]
        await scene.view_at(where.removeprefix("/jobs/"), JobStage.QUEUED)
        scene.ingestion.projection._following.cancel()
        following = asyncio.ensure_future(events_of(client, f"{where}/events", 99))
        await until(
            lambda: asyncio.sleep(0, following.done() or bool(scene.ingestion.projection._watchers))
        )
        await client.post(f"{where}/cancel")
        async with asyncio.timeout(20):
            assert (await following)[-1]["stage"] == "Cancelled"


async def test_jobs_are_listed_in_pages(quick):
    async with api_on(quick) as (client, scene):
        made = [(await client.post("/jobs", json=JOB)).json()["jobId"] for _ in range(5)]
        for job_id in made:
            await scene.ended(job_id)
        page = (await client.get("/jobs", params={"limit": 3})).json()
        rest = (await client.get("/jobs", params={"limit": 3, "cursor": page["nextCursor"]})).json()
        found = [job["jobId"] for job in page["jobs"] + rest["jobs"]]
        assert found == made[::-1]
        assert rest["nextCursor"] is None
        filters = {"stage": "Failed", "mediaType": "audio"}
        assert (await client.get("/jobs", params=filters)).json()["jobs"] == []


async def test_a_job_is_cancelled_and_retried(quick):
    async with api_on(quick, work=False) as (client, scene):
        where = (await client.post("/jobs", json=JOB)).headers["location"]
        cancelled = await client.post(f"{where}/cancel")
        assert (cancelled.status_code, cancelled.json()["stage"]) == (200, "Cancelled")
        again = await client.post(f"{where}/retry")
        assert (again.status_code, again.json()["run"]) == (202, 2)
        async with scene.working():
            view = await scene.ended(again.json()["jobId"], run=2)
        assert view.stage is JobStage.TRANSCRIPT_COMPLETE
        assert (await client.post(f"{where}/cancel")).status_code == 409
        assert (await client.post(f"{where}/retry")).status_code == 409


async def events_of(client, path, count, headers=None):
    found = []
    async with client.stream("GET", path, headers=headers, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line[6:]))
                if len(found) == count:
                    break
    return found


async def test_changes_come_as_events_until_the_job_has_ended(place):
    gate = asyncio.Event()

    async def waits(_):
        await gate.wait()
        return Done(info=INFO)

    async with api_on(place, work=False) as (client, scene):
        async with scene.working(metadata=waits):
            where = (await client.post("/jobs", json=JOB)).headers["location"]
            await scene.view_at(where.removeprefix("/jobs/"), JobStage.QUEUED)
            following = asyncio.ensure_future(events_of(client, f"{where}/events", 99))
            everything = asyncio.ensure_future(events_of(client, "/events", 2))
            await asyncio.sleep(0.2)
            gate.set()
            assert [e["stage"] for e in await following] == [
                "Queued",
                "MetadataReady",
                "TranscriptComplete",
            ]
            assert [e["stage"] for e in await everything] == [
                "MetadataReady",
                "TranscriptComplete",
            ]


async def test_a_stream_that_is_left_is_forgotten(quick):
    async with api_on(quick) as (client, scene):
        where = (await client.post("/jobs", json=JOB)).headers["location"]
        await events_of(client, f"{where}/events", 1)
        async with asyncio.timeout(10):
            while scene.ingestion.projection._watchers:
                await asyncio.sleep(0.02)


async def nobody_watches(scene, streams):
    async with asyncio.timeout(10):
        while scene.ingestion.projection._watchers or streams.watching:
            await asyncio.sleep(0.02)


async def asks(client, path, headers=""):
    """A request by hand, so that it can be left at any moment."""
    host, port = client.base_url.host, client.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}\r\n".encode())
    return reader, writer


async def test_a_stream_whose_reader_left_at_once_is_forgotten(quick, monkeypatch):
    begun = count_calls(monkeypatch, Streams, "of_user")
    streams = remembered(monkeypatch)
    async with api_on(quick, work=False) as (client, scene):
        for n in range(100):
            _, writer = await asks(client, "/events")
            await asyncio.sleep(n / 20_000)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        assert (await client.head("/events")).status_code == 405
        await nobody_watches(scene, streams[0])
    assert begun


def count_calls(monkeypatch, kind, name):
    calls, real = [], getattr(kind, name)

    def counted(*args, **named):
        calls.append(args)
        return real(*args, **named)

    monkeypatch.setattr(kind, name, counted)
    return calls


def remembered(monkeypatch, **limits):
    """Every `Streams` that an application makes, with these limits."""
    made = []

    def make(projection):
        made.append(Streams(projection, **limits))
        return made[-1]

    monkeypatch.setattr("penstock.web.app.Streams", make)
    return made


@pytest.mark.parametrize(
    ("limits", "welcome"),
    [({"most": 5}, {1: 5, 2: 0}), ({"most": 9, "most_of_one": 5}, {1: 5, 2: 4})],
)
async def test_streams_are_bounded_in_all_and_for_each_user(quick, monkeypatch, limits, welcome):
    streams = remembered(monkeypatch, **limits)
    async with api_on(quick, work=False, api={"tokens": TOKENS}) as (client, scene):
        writers = []
        for user, expected in welcome.items():
            header = f"Authorization: {as_user(user)['Authorization']}\r\n"
            answers = []
            for _ in range(7):
                reader, writer = await asks(client, "/events", header)
                writers.append(writer)
                head = await reader.readuntil(b"\r\n\r\n")
                answers.append(int(head.split()[1]))
                if answers[-1] == 200:
                    await reader.readuntil(b": watching")
            assert answers == [200] * expected + [429] * (7 - expected)
        assert streams[0].watching == sum(welcome.values())
        refused = await client.get("/events", headers=as_user(1))
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["retry-after"] and "try again" in refused.json()["detail"]
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        await nobody_watches(scene, streams[0])
        async with client.stream("GET", "/events", headers=as_user(1)) as again:
            assert again.status_code == 200


async def test_an_end_between_asking_and_watching_is_not_missed(quick):
    async with api_on(quick, work=False, api={"views": "sql"}) as (client, scene):
        job_id = (await client.post("/jobs", json=JOB)).json()["jobId"]
        await scene.view_at(job_id, JobStage.QUEUED)
        views, read = scene.ingestion.views, scene.ingestion.views.get

        async def ends_meanwhile(wanted):
            view = await read(wanted)
            views.get = read
            await scene.ingestion.service.cancel(job_id)
            await scene.view_at(job_id, JobStage.CANCELLED)
            return view

        views.get = ends_meanwhile
        async with asyncio.timeout(20):
            found = await events_of(client, f"/jobs/{job_id}/events", 99)
        assert [event["stage"] for event in found] == ["Cancelled"]


async def test_an_end_between_watching_and_reading_is_told_once_and_in_order(quick):
    async with api_on(quick, work=False) as (client, scene):
        job_id = (await client.post("/jobs", json=JOB)).json()["jobId"]
        await scene.view_at(job_id, JobStage.QUEUED)
        views, read = scene.ingestion.views, scene.ingestion.views.get
        reads = 0

        async def ends_after_the_second(wanted):
            nonlocal reads
            reads += 1
            view = await read(wanted)
            if reads == 2:
                views.get = read
                await scene.ingestion.service.cancel(job_id)
                await scene.view_at(job_id, JobStage.CANCELLED)
            return view

        views.get = ends_after_the_second
        async with asyncio.timeout(20):
            found = await events_of(client, f"/jobs/{job_id}/events", 99)
        assert [event["stage"] for event in found] == ["Queued", "Cancelled"]


async def test_the_same_file_sent_twice_is_one_upload_and_the_same_job(quick, tmp_path):
    media = {"root": str(tmp_path)}
    async with api_on(quick, work=False, api={"tokens": TOKENS}, media=media) as (client, _):

        async def send(user, extension="wav", content=b"sound"):
            answer = await client.post(
                "/uploads",
                params={"extension": extension},
                content=content,
                headers=as_user(user),
            )
            return answer.json()["uploadId"]

        first = await send(1)
        kept = tmp_path / "uploads" / "user-1" / first
        inode = kept.stat().st_ino
        assert await send(1) == first and kept.stat().st_ino == inode
        assert [path.name for path in kept.parent.iterdir()] == [first]
        different = {first, await send(1, content=b"other"), await send(1, "mp3"), await send(2)}
        assert len({name.partition(".")[0] for name in different}) == 4
        jobs = [
            await client.post(
                "/jobs",
                json={"mediaType": "audio", "uploadId": await send(1)},
                headers=as_user(1) | {"Idempotency-Key": "k"},
            )
            for _ in range(2)
        ]
        assert jobs[0].json()["jobId"] == jobs[1].json()["jobId"]
        assert jobs[1].headers["idempotent-replayed"] == "true"


DAY = 86_400


async def test_old_uploads_are_swept_and_those_in_use_are_kept(quick, tmp_path):
    media = {"root": str(tmp_path), "keep_uploads": 10 * DAY}
    folder = tmp_path / "uploads" / "local"
    folder.mkdir(parents=True)

    def put(name, days):
        path = folder / name
        path.write_bytes(b"x")
        os.utime(path, (time.time() - days * DAY,) * 2)
        return path

    ages = {"a": 11, "b": 9, "c": 9}
    old, used, young = (put(f"med_{digit * 32}.wav", days) for digit, days in ages.items())
    given_up, coming = put("a.partial", 2), put("b.partial", 0.5)
    stranger = put("notes.txt", 99)
    async with api_on(quick, work=False, media=media) as (client, _):
        await until_gone(old, given_up)
        assert all(path.exists() for path in (used, young, coming, stranger))
        body = {"mediaType": "audio", "uploadId": used.name}
        assert (await client.post("/jobs", json=body)).status_code == 202
        gone = await client.post("/jobs", json=body | {"uploadId": old.name})
        assert gone.status_code == 404
    uploads = Uploads(load_settings(environ={}, media=media).media)
    assert uploads.sweep(8 * DAY) == 1
    assert used.exists() and not young.exists()


async def until_gone(*paths):
    async with asyncio.timeout(10):
        while any(path.exists() for path in paths):
            await asyncio.sleep(0.01)


async def test_media_is_uploaded_and_used(quick, tmp_path):
    sources = []

    async def remembers(job):
        sources.append((await scene_.system.store.get(job.job_id)).source)
        return Done(info=INFO)

    async with api_on(quick, work=False, media={"root": str(tmp_path)}) as (client, scene):
        scene_ = scene
        async with scene.working(metadata=remembers):
            sent = bytes(300_000)
            answer = await client.post("/uploads", params={"extension": "wav"}, content=sent)
            assert answer.status_code == 201
            upload = answer.json()
            assert upload["size"] == len(sent)
            job = await client.post(
                "/jobs", json={"mediaType": "audio", "uploadId": upload["uploadId"]}
            )
            await scene.ended(job.json()["jobId"])
    assert sources == [f"upload:local/{upload['uploadId']}"]
    file = tmp_path / "uploads" / "local" / upload["uploadId"]
    assert file.read_bytes() == sent
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("extension", "content", "status"),
    [("exe", b"x", 400), ("wav", b"", 400), ("wav", bytes(3000), 413), ("../wav", b"x", 400)],
)
async def test_an_upload_that_is_refused_leaves_nothing(
    quick, tmp_path, extension, content, status
):
    media = {"root": str(tmp_path / "media"), "max_upload_bytes": 2000}
    async with api_on(quick, work=False, media=media) as (client, _):
        answer = await client.post("/uploads", params={"extension": extension}, content=content)
        assert answer.status_code == status

        async def unannounced():
            yield content

        again = await client.post(
            "/uploads", params={"extension": extension}, content=unannounced()
        )
        assert again.status_code == status
    assert not [path for path in (tmp_path / "media").rglob("*") if path.is_file()]


async def test_an_upload_that_the_disk_does_not_take_says_whose_trouble_it_is(
    quick, tmp_path, caplog
):
    async with api_on(quick, work=False, media={"root": str(tmp_path)}) as (client, _):
        (tmp_path / "uploads").write_text("no folder")
        answer = await client.post("/uploads", params={"extension": "mp3"}, content=b"sound")
        assert answer.status_code == 503 and "cannot be kept" in answer.json()["detail"]
        assert str(tmp_path) not in answer.text
        assert "Not a directory" in caplog.text and "Traceback" not in caplog.text


async def test_an_upload_that_does_not_say_what_it_is_is_told_where_that_is_described(quick):
    async with api_on(quick, work=False) as (client, _):
        answer = await client.post("/uploads", content=b"sound")
        assert answer.status_code == 400 and "/docs" in answer.json()["detail"]


async def test_without_a_media_folder_uploads_are_refused(quick):
    async with api_on(quick, work=False) as (client, _):
        answer = await client.post("/uploads", params={"extension": "wav"}, content=b"x")
        assert answer.status_code == 409
        assert "media.root" in answer.json()["detail"]


async def test_everybody_sees_their_own_jobs_only(quick, tmp_path):
    media = {"root": str(tmp_path)}
    async with api_on(quick, api={"tokens": TOKENS}, media=media) as (client, scene):
        made = await client.post("/jobs", json=JOB, headers=as_user(1))
        where = made.headers["location"]
        await scene.ended(made.json()["jobId"])
        upload = await client.post(
            "/uploads", params={"extension": "wav"}, content=b"x", headers=as_user(1)
        )
        upload_id = upload.json()["uploadId"]
        assert (await client.get(where, headers=as_user(1))).status_code == 200
        theirs = as_user(2)
        assert (await client.get("/jobs", headers=theirs)).json()["jobs"] == []
        for path in ("", "/transcript", "/events"):
            assert (await client.get(where + path, headers=theirs)).status_code == 404
        for verb in ("cancel", "retry"):
            assert (await client.post(f"{where}/{verb}", headers=theirs)).status_code == 404
        for body in (
            {"mediaType": "audio", "uploadId": upload_id},
            {"mediaType": "audio", "source": f"uploads/user-1/{upload_id}"},
            {"mediaType": "audio", "source": f"./uploads/user-1/{upload_id}"},
            {"mediaType": "audio", "source": f"upload:user-1/{upload_id}"},
            {"mediaType": "audio", "source": f" UPLOAD:user-1/{upload_id}"},
        ):
            answer = await client.post("/jobs", json=body, headers=theirs)
            assert answer.status_code in (400, 404)
        key = {"Idempotency-Key": "same"}
        mine = await client.post("/jobs", json=JOB, headers=as_user(1) | key)
        other = await client.post("/jobs", json=JOB, headers=theirs | key)
        assert mine.json()["jobId"] != other.json()["jobId"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer"},
        {"Authorization": "token-of-user-one-1"},
    ],
)
async def test_without_a_token_nothing_is_answered(quick, headers):
    async with api_on(quick, work=False, api={"tokens": TOKENS}) as (client, _):
        for path in ("/jobs", "/events", "/status", "/metrics", "/jobs/job_" + "0" * 32):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await client.post("/jobs", json=JOB, headers=headers)).status_code == 401
        assert (await client.get("/health")).status_code == 200
        page = await client.get("/")
        assert page.status_code == 200  # Its script asks for a token.
        assert "job_" not in page.text


def test_an_open_api_listens_on_loopback_only():
    settings = load_settings(environ={}, api={"host": "0.0.0.0"}).api  # noqa: S104
    with pytest.raises(InvalidArgumentError, match="open to everybody"):
        Access(settings)
    Access(load_settings(environ={}, api={"host": "0.0.0.0", "tokens": TOKENS}).api)  # noqa: S104
    with pytest.raises(InvalidArgumentError, match="fewer than"):
        Access(load_settings(environ={}, api={"tokens": {"short": "user-1"}}).api)
    with pytest.raises(InvalidArgumentError, match="opaque"):
        Access(load_settings(environ={}, api={"local_user": "ada@example.org"}).api)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("0.0.0.0", False),  # noqa: S104
        ("example.org", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_its_names(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8080"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_pages_of_other_sites_are_refused(quick, headers):
    async with api_on(quick, work=False) as (client, _):
        assert (await client.post("/jobs", json=JOB, headers=headers)).status_code == 403
        assert (await client.get("/jobs", headers=headers)).status_code == 403


PRIVATE = "zoe-at-example"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"not json", 400),
        (b"[]", 400),
        (b"{}", 400),
        (json.dumps({"mediaType": PRIVATE, "source": "x"}).encode(), 400),
        (json.dumps({"mediaType": "audio", "source": 5}).encode(), 400),
        (json.dumps({"mediaType": "audio"}).encode(), 400),
        (json.dumps(JOB | {"uploadId": "med_x"}).encode(), 400),
        (json.dumps(JOB | {PRIVATE: PRIVATE}).encode(), 400),
        (json.dumps(JOB | {"correlationId": f"{PRIVATE} @"}).encode(), 400),
        (json.dumps({"mediaType": "youtube", "source": PRIVATE}).encode(), 400),
        (json.dumps({"mediaType": "audio", "source": "x\0"}).encode(), 400),
        (json.dumps(JOB | {"title": f"{PRIVATE}\0"}).encode(), 400),
        (json.dumps(JOB | {"title": f"{PRIVATE}\n"}).encode(), 400),
        (json.dumps(JOB | {"title": PRIVATE * 5000}).encode(), 413),
    ],
)
async def test_a_wrong_request_is_a_problem_that_repeats_nothing(quick, body, status):
    async with api_on(quick, work=False) as (client, scene):
        answer = await client.post(
            "/jobs", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status and problem["title"]
        assert PRIVATE not in answer.text
        assert await scene.ingestion.outbox.pending() == 0
        assert await scene.ingestion.views.count() == 0


async def test_json_that_is_nested_too_deep_is_a_wrong_request(quick):
    async with api_on(quick, work=False) as (client, _):
        deep = b'{"mediaType":' + b"[" * 5000 + b"]" * 5000 + b"}"
        answer = await client.post(
            "/jobs", content=deep, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 400
        assert "send JSON" in answer.json()["detail"]


async def test_every_answer_carries_the_headers_that_protect_its_reader(quick):
    async def breaks(*_, **__):
        raise RuntimeError("a mistake of ours")

    async with api_on(quick, work=False) as (client, scene):
        scene.ingestion.views.list = breaks
        wanted = {
            ("GET", "/health"): 200,
            ("GET", "/static/page.js"): 200,
            ("GET", "/static/nothing"): 404,
            ("GET", "/nothing"): 404,
            ("DELETE", "/jobs"): 405,
            ("OPTIONS", "/jobs"): 204,
            ("POST", "/jobs"): 413,
            ("GET", "/jobs"): 500,
        }
        for (method, path), status in wanted.items():
            body = bytes(100_000) if status == 413 else None
            kind = {"Content-Type": "application/json"} if body else {}
            answer = await client.request(method, path, content=body, headers=kind)
            assert answer.status_code == status
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"


async def raw_answer(client, *said):
    """What the server says to something that may be no HTTP."""
    address = client.base_url
    reader, writer = await asyncio.open_connection(address.host, address.port)
    for one in said:
        writer.write(one)
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_what_is_no_http_and_a_connection_too_many_are_answered_like_all_others(
    quick, monkeypatch
):
    async with api_on(quick, work=False) as (client, _):
        broken = await raw_answer(client, b"\x16\x03\x01 what is this\r\n\r\n")
        monkeypatch.setattr(connections, "MOST_CONNECTIONS", 0)
        too_many = await raw_answer(client)
        monkeypatch.undo()
        assert broken.startswith("HTTP/1.1 400 Bad Request\r\n")
        assert too_many.startswith("HTTP/1.1 503 Service Unavailable\r\n")
        for name, value in connections.SECURITY_HEADERS.items():
            assert f"{name}: {value}\r\n" in broken and f"{name}: {value}\r\n" in too_many
        assert (await client.get("/health")).status_code == 200


HEAD = b"POST /jobs HTTP/1.1\r\nHost: here\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        pytest.param(b"GET /", b"x", id="address"),
        pytest.param(HEAD + b"A: ", b"x", id="header"),
        pytest.param(HEAD, b"A: b\r\n", id="headers"),
        pytest.param(CHUNKED + b"2;", b"x", id="note"),
        pytest.param(CHUNKED + b"0\r\n", b"A: b\r\n", id="trailers"),
    ],
)
async def test_what_begins_and_never_ends_is_cut_off(quick, begins, goes_on):
    async with api_on(quick, work=False) as (client, _):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(begins)
        # It may be cut off while there is still something to read, which is an error here.
        with suppress(ConnectionError):
            for _ in range(64):
                writer.write(goes_on * (2**15 // len(goes_on)))
                await writer.drain()
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        assert (await client.get("/health")).status_code == 200


async def test_requests_behind_each_other_on_one_connection_are_answered_in_order(quick):
    ask = "GET /{} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {}\r\n\r\n"
    paths = [("health", "keep-alive"), ("nothing-of-this-name", "keep-alive"), ("health", "close")]
    async with api_on(quick, work=False) as (client, _):
        said = "".join(ask.format(*one) for one in paths).encode()
        answer = await raw_answer(client, said[:20], said[20:])
        statuses = re.findall(r"HTTP/1\.1 (\d+)", answer)
        assert statuses == ["200", "404", "200"]


async def test_what_a_database_says_is_for_the_log_and_not_for_whoever_asks(quick, caplog):
    async def away(*_):
        said = Exception("unable to open database file on db.internal")
        raise OperationalError("INSERT", None, said)

    async with api_on(quick, work=False) as (client, scene):
        scene.system.store._create = away
        answer = await client.post("/jobs", json=JOB)
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert "does not work; try again later" in answer.json()["detail"]
        assert "db.internal" not in answer.text and "db.internal" in caplog.text


async def test_what_a_broker_lacks_is_not_what_was_asked_for(quick):
    async with api_on(quick, work=False) as (client, scene):
        await scene.system.pubsub.topic("job-events").delete()
        answer = await client.get("/status")
        assert answer.status_code != 404
        assert "create it with" not in answer.text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("../outside.wav", "outside the media folder"),
        ("/etc/passwd", "outside the media folder"),
        ("file:///etc/passwd", "outside the media folder"),
        ("talks/../../a.wav", "outside the media folder"),
        ("file://elsewhere/a.wav", "names no host"),
        ("ftp://media.example/a.wav", "https address"),
        ("http://media.example/a.wav", "Only https"),
        ("https://evil.example/a.wav", "list of media hosts"),
        ("https://ada:secret@media.example/a.wav", "no user name"),
    ],
)
async def test_a_source_that_no_worker_would_open_is_refused_at_the_door(
    quick, tmp_path, source, why
):
    media = {"root": str(tmp_path), "hosts": ["media.example"]}
    async with api_on(quick, work=False, media=media) as (client, scene):
        answer = await client.post("/jobs", json=JOB | {"source": source})
        assert answer.status_code == 400
        assert why in answer.json()["detail"] and "secret" not in answer.text
        assert await scene.ingestion.outbox.pending() == 0
        for good in ("talks/one.wav", f"{tmp_path}/one.wav", "https://media.example/one.wav"):
            answer = await client.post("/jobs", json=JOB | {"source": good})
            assert answer.status_code == 202


async def test_an_api_that_knows_no_media_places_refuses_only_what_is_wrong_anywhere(quick):
    async with api_on(quick, work=False) as (client, _):
        answers = {
            source: (await client.post("/jobs", json=JOB | {"source": source})).status_code
            for source in ("/srv/a.wav", "https://media.example/a.wav", "../a.wav", "ftp://x/a.wav")
        }
        assert list(answers.values()) == [202, 202, 400, 400]


@pytest.mark.parametrize(
    ("kind", "source", "instead"),
    [
        ("document", "talk.mp3", "audio"),
        ("document", "https://media.example/TALK.MP4?x=1", "audio or video"),
        ("audio", "notes.pdf", "document"),
        ("video", "notes.docx", "document"),
        ("video", "talk.wav", "audio"),
    ],
)
async def test_what_is_named_like_another_media_type_is_refused_at_the_door(
    quick, tmp_path, kind, source, instead
):
    """It would wait for a worker and fail there, long after whoever asked has gone."""
    media = {"root": str(tmp_path), "hosts": ["media.example"]}
    async with api_on(quick, work=False, media=media) as (client, scene):
        answer = await client.post("/jobs", json={"mediaType": kind, "source": source})
        assert answer.status_code == 400
        assert f"ask for it as {instead}, or" in answer.json()["detail"]
        extension = Path(source.partition("?")[0]).suffix[1:].lower()
        sent = await client.post("/uploads", params={"extension": extension}, content=b"x")
        upload = {"mediaType": kind, "uploadId": sent.json()["uploadId"]}
        answer = await client.post("/jobs", json=upload)
        assert answer.status_code == 400 and f"is no {kind}" in answer.json()["detail"]
        assert await scene.ingestion.outbox.pending() == 0


async def test_names_that_say_nothing_or_may_be_either_are_accepted(quick):
    async with api_on(quick, work=False) as (client, _):
        for kind, source in (
            ("document", "notes.rst"),
            ("document", "https://media.example"),
            ("audio", "film.mp4"),
            ("audio", "talk"),
            ("video", "film.ogg"),
            ("video", "talk.m4a"),
        ):
            answer = await client.post("/jobs", json={"mediaType": kind, "source": source})
            assert answer.status_code == 202, source


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/jobs/zoe-at-example",
        "/jobs?limit=0",
        "/jobs?limit=zoe-at-example",
        "/jobs?stage=zoe-at-example",
        "/jobs?cursor=zoe-at-example",
        "/jobs?cursor=",
        "/jobs?cursor=%00",
        "/jobs?cursor=" + "a" * 121,
        "/jobs/job_" + "0" * 32,
        "/static/../app.py",
    ],
)
async def test_a_wrong_address_is_a_problem_that_repeats_nothing(quick, path):
    async with api_on(quick, work=False) as (client, _):
        answer = await client.get(path)
        assert answer.status_code in (400, 404)
        assert PRIVATE not in answer.text


async def test_a_failed_job_says_why(quick):
    async def refuses(_):
        return Reject("malformed")

    async with api_on(quick, work=False) as (client, scene):
        async with scene.working(metadata=refuses):
            answer = await client.post("/jobs", json=JOB)
            await scene.ended(answer.json()["jobId"])
            job = (await client.get(answer.headers["location"])).json()
            assert (job["stage"], job["reason"]) == ("Failed", "malformed")
            missing = await client.get(f"{answer.headers['location']}/transcript")
            assert missing.status_code == 404
            assert "Failed" in missing.json()["detail"]


async def test_the_page_shows_jobs_and_nothing_runs_that_is_not_ours(quick):
    async with api_on(quick) as (client, scene):
        made = await client.post("/jobs", json=JOB | {"title": "<script>alert(1)</script>"})
        await scene.ended(made.json()["jobId"])
        page = await client.get("/")
        assert made.json()["jobId"] in page.text
        assert "<script>alert(1)" not in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        for name, kind in (("page.js", "javascript"), ("page.css", "css")):
            file = await client.get(f"/static/{name}")
            assert file.status_code == 200 and kind in file.headers["content-type"]


NAMED = {
    "talks/Zoë's interview.wav": "Zoë's interview.wav",
    "https://media.example/a%20b.mp3?signature=secret#x": "a b.mp3",
    "https://media.example/": "media.example",
}


@pytest.mark.parametrize(
    ("fact", "told"), [("truncated", "text cut at the limit"), ("doubtful", "text doubtful")]
)
async def test_the_page_says_what_is_to_be_known_of_a_text(quick, fact, told):
    async def listens(_):
        return Done(text=replace(TEXT, **{fact: True}))

    async with api_on(quick, work=False) as (client, scene), scene.working(transcription=listens):
        made = await client.post("/jobs", json=JOB)
        await scene.ended(made.json()["jobId"])
        assert told in (await client.get("/")).text
        assert told in (await client.get("/static/page.js")).text


async def test_jobs_have_names_for_their_owner_and_none_in_any_message(quick):
    async with api_on(quick, api={"tokens": TOKENS}) as (client, scene):
        mine = as_user(1)
        watching = asyncio.ensure_future(events_of(client, "/events", 1, mine))
        async with asyncio.timeout(10):
            while not scene.ingestion.projection._watchers:
                await asyncio.sleep(0.01)
        for source, name in NAMED.items():
            made = await client.post("/jobs", json=JOB | {"source": source}, headers=mine)
            assert made.json()["name"] == name
            await scene.ended(made.json()["jobId"])
        titled = await client.post("/jobs", json=JOB | {"title": "Ada's talk"}, headers=mine)
        await scene.ended(titled.json()["jobId"])
        assert (await watching)[0]["name"] == "Zoë's interview.wav"
        listed = (await client.get("/jobs", headers=mine)).json()["jobs"]
        assert {job["name"] for job in listed} == {"Ada's talk", *NAMED.values()}
        assert listed[0]["info"]["codec"] == "pcm_s16le"
        assert (await client.get("/jobs", headers=as_user(2))).json()["jobs"] == []
        for topic in ("job-processing", "job-events"):
            sent = [f"{r.data!r}{r.attributes}" for r in await scene.stored(topic)]
            assert sent
            for private in ("Zo", "interview", "a b.mp3", "Ada", "talk", "media.example"):
                assert not any(private in one for one in sent)


async def test_among_many_jobs_those_that_failed_are_named_with_why_and_what_to_do(quick):
    async def some_fail(job):
        record = await scene_.system.store.get(job.job_id)
        return Reject("malformed") if "bad" in record.source else Done(info=INFO)

    async with api_on(quick, work=False) as (client, scene):
        scene_ = scene
        async with scene.working(metadata=some_fail):
            for number in range(23):
                name = f"{'bad' if number % 5 == 4 else 'good'}-{number}.wav"
                made = await client.post("/jobs", json=JOB | {"source": name})
                await scene.ended(made.json()["jobId"])
        failed = (await client.get("/jobs", params={"stage": "Failed"})).json()["jobs"]
        assert [job["name"] for job in failed] == [f"bad-{n}.wav" for n in (19, 14, 9, 4)]
        assert {(job["reason"], job["advice"]) for job in failed} == {
            ("malformed", meaning_of("malformed"))
        }
        page = (await client.get("/")).text
        assert "4 failed, 19 complete" in page
        assert "<b>bad-14.wav</b>" in page
        assert f"<strong>malformed</strong>: {escape(meaning_of('malformed'))}" in page


async def test_a_row_that_another_program_took_further_hides_no_other(quick):
    async with api_on(quick, work=False) as (client, scene):
        made = [await client.post("/jobs", json=JOB | {"title": f"t{n}"}) for n in range(2)]
        for one in made:
            await scene.view_at(one.json()["jobId"], JobStage.QUEUED)
        async with scene.system.database.transaction() as connection:
            taken = update(jobs).where(jobs.c.job_id == made[0].json()["jobId"])
            await connection.execute(taken.values(stage="Printed"))
        listed = (await client.get("/jobs")).json()["jobs"]
        assert [job.get("name") for job in listed] == ["t1", None]


async def test_the_api_describes_itself(quick):
    async with api_on(quick, work=False) as (client, _):
        document = (await client.get("/schema/openapi.json")).json()
        assert {"/jobs", "/jobs/{job_id}", "/events", "/uploads"} <= document["paths"].keys()
        page = await client.get("/docs")
        assert "Ask for a job" in page.text and "Idempotency-Key" in page.text
        assert "<code>mediaType</code> in body, required" in page.text


async def test_what_a_request_needs_is_provided_without_a_task_for_each(quick):
    async with jobs_on(quick) as scene:
        app = create_app(scene.system, scene.ingestion)
        for route in app.routes:
            for _, parameters in getattr(route, "route_handler_map", {}).values():
                assert all(len(batch) == 1 for batch in parameters.dependency_batches), route.path


async def test_operators_see_what_waits(quick):
    async with api_on(quick, work=False) as (client, scene):
        made = await client.post("/jobs", json=JOB)
        await scene.view_at(made.json()["jobId"], JobStage.QUEUED)
        status = (await client.get("/status")).json()
        assert status["readModel"]["jobs"] == 1
        assert status["outbox"]["dead"] == 0
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("part", ["database", "broker"])
async def test_health_says_which_part_is_gone(quick, part, caplog):
    async with api_on(quick, work=False) as (client, scene):
        assert (await client.get("/health")).json() == {"status": "ok"}

        async def gone():
            raise UnavailableError("gone from db.internal")

        broker = await scene.system.pubsub.broker()
        {"database": scene.system.database, "broker": broker}[part].ping = gone
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert f"The {part} cannot be reached" in answer.json()["detail"]
        assert "db.internal" not in answer.text and "db.internal" in caplog.text


@pytest.mark.parametrize("part", ["database", "broker"])
async def test_health_does_not_wait_for_a_part_that_does_not_answer(quick, part, monkeypatch):
    monkeypatch.setattr("penstock.web.health._WITHIN", 0.1)

    async def hangs():
        await asyncio.Event().wait()

    async with api_on(quick, work=False) as (client, scene):
        broker = await scene.system.pubsub.broker()
        {"database": scene.system.database, "broker": broker}[part].ping = hangs
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert f"The {part} cannot be reached" in answer.json()["detail"]


async def test_health_names_what_jobs_need_and_is_not_there(quick, monkeypatch):
    monkeypatch.setattr("penstock.jobs.messaging.keeping._LOOK_EVERY", 3600.0)
    async with api_on(quick, work=False) as (client, scene):
        await scene.system.pubsub.topic("job-processing").delete()
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert "topic 'job-processing'" in answer.json()["detail"]


@pytest.mark.timeout(180)  # On a busy machine pauses between attempts add up.
async def test_topics_that_are_lost_under_a_running_api_are_made_again(place, monkeypatch):
    """Its workers find their subscriptions again, and jobs that are asked for meanwhile wait."""
    monkeypatch.setattr("penstock.jobs.messaging.keeping._LOOK_EVERY", 2.0)
    async with api_on(place) as (client, scene):
        before = await client.post("/jobs", json=JOB)
        await scene.ended(before.json()["jobId"])
        for topic in ("job-processing", "job-events"):
            await scene.system.pubsub.topic(topic).delete()
        made = await client.post("/jobs", json=JOB)
        assert made.status_code == 202
        assert (await scene.ended(made.json()["jobId"])).stage is JobStage.TRANSCRIPT_COMPLETE
        assert (await client.get("/health")).status_code == 200

        async def is_up_to_date():
            # What could not be published at first may come last.
            model = (await client.get("/status")).json()["readModel"]
            return model["eventsBehind"] == 0 and "trouble" not in model

        await until(is_up_to_date)


async def test_a_port_that_is_taken_is_an_error_that_says_so(quick):
    async with api_on(quick, work=False) as (client, scene):
        app = create_app(scene.system, scene.ingestion)
        with pytest.raises(UnavailableError, match="choose another port"):
            await serve(app, "127.0.0.1", client.base_url.port)


async def test_a_crash_between_database_and_broker_loses_and_doubles_nothing(tmp_path):
    """The job is committed; the process ends before anything was published."""
    from tests.support.job_scenes import Place

    place = Place(f"local://{tmp_path}/broker", f"sqlite:///{tmp_path}/jobs.db")
    async with jobs_on(place) as scene:
        await scene.ingestion.relay.aclose()
        record = await scene.submit(client_key="key")
        assert await scene.stored("job-processing") == []
    async with jobs_on(place) as scene, scene.working():
        assert (await scene.submit(client_key="key")).job.job_id == record.job.job_id
        await scene.ended(record.job.job_id)
        assert len(await scene.stored("job-processing")) == 2
        assert len(await scene.stored("job-events")) == 3


async def test_a_title_that_a_database_cannot_keep_is_a_problem(postgres):
    from tests.support.job_scenes import Place

    place = Place("memory://", postgres.new_database())
    async with api_on(place, work=False) as (client, _):
        answer = await client.post("/jobs", json=JOB | {"title": "a\0b"})
        assert answer.status_code == 400
        assert "title" in answer.json()["detail"]


def test_an_empty_media_folder_is_not_the_current_one():
    with pytest.raises(InvalidArgumentError, match=r"media\.root"):
        load_settings(environ={"PENSTOCK_MEDIA__ROOT": ""})


async def test_metrics_are_what_an_observer_counted(quick):
    ended_jobs(REGISTRY)  # One for all of this process, and not ours to take away.
    registry_before = set(REGISTRY._collector_to_names)
    observer = JobObservers(LoggingObserver(), PrometheusJobObserver())
    try:
        async with api_on(quick, observer=observer) as (client, scene):
            made = await client.post("/jobs", json=JOB)
            await scene.ended(made.json()["jobId"])
            text = (await client.get("/metrics")).text
        for stage in ("metadata", "transcription"):
            counted = (
                f'penstock_jobs_process_duration_seconds_count{{outcome="done",stage="{stage}"}}'
            )
            assert f"{counted} 1.0" in text
    finally:
        for collector in set(REGISTRY._collector_to_names) - registry_before:
            REGISTRY.unregister(collector)


async def test_metrics_say_how_old_the_outbox_is_and_how_far_the_read_model_is_behind(quick):
    def value(text, name):
        [found] = [line for line in text.splitlines() if line.startswith(f"penstock_jobs_{name} ")]
        return float(found.split()[1])

    async with api_on(quick, work=False) as (client, scene):
        await scene.ingestion.relay.aclose()
        await client.post("/jobs", json=JOB)
        text = (await client.get("/metrics")).text
        assert value(text, "outbox_pending") == 2
        assert value(text, "outbox_oldest_age_seconds") > 0
        assert value(text, "read_model_events_behind") == 0
        scene.ingestion.projection._following.cancel()
        await scene.system.pubsub.topic("job-events").delete()
        text = (await client.get("/metrics")).text
        assert math.isnan(value(text, "read_model_events_behind"))
        assert value(text, "read_model_seconds_behind") > 0
        await scene.system.database.aclose()
        text = (await client.get("/metrics")).text
        assert math.isnan(value(text, "outbox_pending"))


def test_static_files_are_packaged():
    folder = Path(__import__("penstock.web").web.__file__).parent / "static"
    assert {path.name for path in folder.iterdir()} == {"page.css", "page.js"}
