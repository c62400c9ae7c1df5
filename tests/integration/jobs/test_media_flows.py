"""Real media through the real stages."""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import wave
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import av
import pytest
from faster_whisper.audio import decode_audio

from penstock.jobs import JobStage, MediaType
from penstock.jobs.store.said import known_event_of
from penstock.media import MediaError
from tests.support.job_scenes import Place, impatient, jobs_on, until
from tests.support.media_server import serving

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]
SAMPLES = Path(__file__).parents[3] / "examples" / "media"
MANIFEST = json.loads((SAMPLES / "manifest.json").read_text())


@asynccontextmanager
async def media_on(place, root, *, run=("metadata", "transcription"), **settings):
    media = {"root": str(root), **settings.pop("media", {})}
    async with AsyncExitStack() as stack:
        scene = await stack.enter_async_context(jobs_on(place, media=media, **settings))
        await stack.enter_async_context(scene.system.working(*run))
        yield scene


def words(text):
    return re.findall(r"[a-z']+", text.lower())


async def test_every_sample_is_looked_at_and_written_down(quick):
    async with media_on(quick, SAMPLES) as scene:
        made = {
            name: await scene.submit(name, media_type=MediaType(about["kind"]))
            for name, about in MANIFEST.items()
        }
        for name, record in made.items():
            view = await scene.ended(record.job.job_id, within=240)
            assert view.stage is JobStage.TRANSCRIPT_COMPLETE, (name, view.reason)
            text = await scene.system.store.text(record.job.job_id)
            said = words(" ".join(segment.text for segment in text.segments))
            expected = words(MANIFEST[name]["text"])
            missing = [word for word in expected if word not in said]
            assert len(missing) <= len(expected) / 3, (name, said)
            if "seconds" in MANIFEST[name]:
                assert view.duration == pytest.approx(MANIFEST[name]["seconds"], abs=0.3)


@pytest.mark.parametrize(
    ("name", "limit", "pages", "truncated"),
    [
        ("note.pdf", {"max_pages": 2}, 2, True),
        ("note.pdf", {"max_pages": 3}, 3, False),
        ("note.txt", {"max_characters": 40}, 1, True),
    ],
)
async def test_a_document_that_is_longer_than_the_limits_says_so_wherever_it_is_asked_for(
    quick, name, limit, pages, truncated
):
    async with media_on(quick, SAMPLES, media=limit) as scene:
        record = await scene.submit(name, media_type=MediaType.DOCUMENT)
        view = await scene.ended(record.job.job_id)
        assert (view.stage, view.pages) == (JobStage.TRANSCRIPT_COMPLETE, pages)
        assert view.truncated is truncated
        told = json.loads((await scene.stored("job-events"))[-1].data)
        assert told.get("truncated", False) is truncated and told["pages"] == pages
        text = await scene.system.store.text(record.job.job_id)
        assert (text.truncated, text.pages) == (truncated, pages)
        assert view.characters == told["characters"] == text.characters > 0
        kept = await scene.system.store.get(record.job.job_id)
        assert known_event_of(scene.system.store.pipeline, kept).truncated is truncated


def sound_alone(source, target):
    """The sound of a video in a container of the same kind."""
    with av.open(str(source)) as video, av.open(str(target), "w") as container:
        (sound,) = video.streams.audio
        stream = container.add_stream_from_template(sound)
        for packet in video.demux(sound):
            if packet.dts is not None:
                packet.stream = stream
                container.mux(packet)


async def test_sound_alone_in_a_container_for_video_completes(quick, tmp_path):
    """By its name it is a video; what is said in it is written down all the same."""
    made = {"a.webm": "winter.webm", "b.mkv": "winter.webm", "c.mp4": "river.mp4"}
    for name, source in made.items():
        sound_alone(SAMPLES / source, tmp_path / name)
    async with media_on(quick, tmp_path) as scene:
        for name, source in made.items():
            record = await scene.submit(name, media_type=MediaType.VIDEO)
            view = await scene.ended(record.job.job_id)
            assert (view.stage, view.reason) == (JobStage.TRANSCRIPT_COMPLETE, None)
            assert view.duration == pytest.approx(MANIFEST[source]["seconds"], abs=0.3)
            info = (await scene.system.store.get(record.job.job_id)).job.info
            assert (info.codec, info.width) == ("none", 0) and info.audio_codec
            assert view.doubtful is False


async def test_a_doubtful_transcript_says_so_wherever_it_is_asked_for(quick, tmp_path):
    sound = decode_audio(str(SAMPLES / "garden.ogg"))[::-1]
    with wave.open(str(tmp_path / "backwards.wav"), "wb") as target:
        target.setparams((1, 2, 16_000, 0, "NONE", ""))
        target.writeframes((sound * 32_767).astype("<i2").tobytes())
    async with media_on(quick, tmp_path) as scene:
        record = await scene.submit("backwards.wav")
        view = await scene.ended(record.job.job_id)
        assert (view.stage, view.doubtful) == (JobStage.TRANSCRIPT_COMPLETE, True)
        assert view.language == "und"
        told = json.loads((await scene.stored("job-events"))[-1].data)
        assert told["doubtful"] is True
        assert (await scene.system.store.text(record.job.job_id)).doubtful


def mutated(chance, data):
    damaged = bytearray(data)
    match chance.randrange(4):
        case 0:
            del damaged[chance.randrange(len(damaged)) :]
        case 1:
            for _ in range(chance.randrange(1, 60)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        case 2:
            head = chance.randrange(4, 64)
            damaged[:head] = chance.randbytes(head)
        case 3:
            damaged = bytearray(chance.randbytes(chance.randrange(1, 4000)))
    return bytes(damaged)


async def test_malformed_media_ends_with_a_reason_and_kills_no_worker(quick, tmp_path):
    """Each ends; whatever was damaged too little to matter completes."""
    chance = random.Random(20260301)
    root = tmp_path / "media"
    root.mkdir()
    files = []
    for number in range(200):
        name = chance.choice(sorted(MANIFEST))
        path = root / f"{number}{Path(name).suffix}"
        path.write_bytes(mutated(chance, (SAMPLES / name).read_bytes()))
        files.append((path.name, MediaType(MANIFEST[name]["kind"])))
    (root / "good.wav").write_bytes((SAMPLES / "weather.wav").read_bytes())
    async with media_on(quick, root, run=["metadata"]) as scene:
        made = [await scene.submit(name, media_type=kind) for name, kind in files]
        reasons = set()
        for record in made:
            view = await scene.view_at(
                record.job.job_id, JobStage.FAILED, JobStage.METADATA_READY, within=240
            )
            if view.stage is JobStage.FAILED:
                reasons.add(view.reason)
                assert view.reason and view.reason != "handler-error"
        assert "malformed" in reasons
        good = await scene.submit("good.wav")
        view = await scene.view_at(good.job.job_id, JobStage.FAILED, JobStage.METADATA_READY)
        assert view.stage is JobStage.METADATA_READY


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("nothing.wav", "audio", "not_found"),
        ("../../etc/passwd", "document", "forbidden"),
        ("/etc/passwd", "document", "forbidden"),
        ("https://example.org/a.wav", "audio", "forbidden"),
        ("http://127.0.0.1/a.wav", "audio", "forbidden"),
        ("ftp://example.org/a.wav", "audio", "bad_reference"),
        ("uploads/user-2/med_x.wav", "audio", "forbidden"),
        ("./uploads/user-2/med_x.wav", "audio", "forbidden"),
        ("file:uploads/user-2/med_x.wav", "audio", "forbidden"),
        ("note.txt", "audio", "unsupported"),
        ("weather.wav", "document", "unsupported"),
        ("weather.wav", "video", "no_video"),
        ("dQw4w9WgXcQ", "youtube", "no_youtube_key"),
    ],
)
async def test_media_that_may_not_or_cannot_be_used_fails_the_job(
    quick, tmp_path, source, kind, reason
):
    root = shutil.copytree(SAMPLES, tmp_path / "media")
    (root / "uploads" / "user-2").mkdir(parents=True)
    shutil.copy(SAMPLES / "weather.wav", root / "uploads" / "user-2" / "med_x.wav")
    async with media_on(quick, root) as scene:
        record = await scene.submit(source, media_type=MediaType(kind))
        view = await scene.ended(record.job.job_id)
        assert (view.stage, view.reason) == (JobStage.FAILED, reason)
        assert view.attempts == 1


def worker_process(place, root, name, *extra):
    environment = {
        **os.environ,
        "PENSTOCK_STAGES__TRANSCRIPTION__ACK_DEADLINE": "10",
        "PENSTOCK_STAGES__TRANSCRIPTION__EXTENSION_INTERVAL": "2",
        "PENSTOCK_STAGES__TRANSCRIPTION__MINIMUM_BACKOFF": "0",
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from penstock.cli.main import main; main()"),
            *("worker", name, "--url", place.url, "--database", place.database),
            *("--media", str(root), *extra),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


async def test_a_worker_killed_in_the_middle_of_a_transcription_loses_nothing(tmp_path):
    """The job completes once: by the worker that is started after the kill."""
    place = Place(f"local://{tmp_path}/broker", f"sqlite:///{tmp_path}/jobs.db")
    root = tmp_path / "media"
    root.mkdir()
    long_recording(root / "long.wav", times=6)
    lease = {"ack_deadline": 10, "extension_interval": 2, "minimum_backoff": 0}
    async with media_on(place, root, run=["metadata"], stages={"transcription": lease}) as scene:
        record = await scene.submit("long.wav")
        await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
        first = worker_process(place, root, "transcription")
        try:
            async with asyncio.timeout(60):
                while not await _has_it(scene):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        assert (await scene.system.store.get(record.job.job_id)).job.stage is (
            JobStage.METADATA_READY
        )
        second = worker_process(place, root, "transcription")
        try:
            view = await scene.ended(record.job.job_id, within=240)
        finally:
            second.terminate()
            assert second.wait(30) == 0
        assert view.stage is JobStage.TRANSCRIPT_COMPLETE
        text = await scene.system.store.text(record.job.job_id)
        said = words(" ".join(segment.text for segment in text.segments))
        assert {"afternoon", "coffee", "garden", "london"} <= set(said)
        kinds = [r.attributes["stage"] for r in await scene.stored("job-events")]
        assert kinds == ["Queued", "MetadataReady", "TranscriptComplete"]


async def _has_it(scene):
    status = await scene.system.pubsub.subscription("job-transcription").describe()
    return status.leased > 0


def long_recording(path, times):
    """Every sample with sound, over and over: long enough to be killed in."""
    spoken = [name for name, about in sorted(MANIFEST.items()) if about["kind"] == "audio"]
    pieces = [decode_audio(str(SAMPLES / name)) for name in spoken]
    with wave.open(str(path), "wb") as target:
        target.setparams((1, 2, 16_000, 0, "NONE", ""))
        for _ in range(times):
            for piece in pieces:
                target.writeframes((piece * 32_767).astype("<i2").tobytes() + bytes(16_000))


VIDEO = {
    "id": "dQw4w9WgXcQ",
    "snippet": {
        "publishedAt": "2024-05-06T07:08:09Z",
        "channelId": "UC_x5XG1OV2P6uZZ5FSM9Ttw",
        "title": "A talk by Zoe",
        "liveBroadcastContent": "none",
    },
    "contentDetails": {"duration": "PT3S", "caption": "false"},
    "status": {"privacyStatus": "public", "embeddable": True},
}


async def test_a_youtube_job_takes_its_metadata_from_youtube_and_its_sound_from_us(quick, tmp_path):
    root = tmp_path / "media"
    (root / "youtube").mkdir(parents=True)
    shutil.copy(SAMPLES / "train.m4a", root / "youtube" / "dQw4w9WgXcQ.m4a")
    roles = tmp_path / "roles.toml"
    roles.write_text('[channels]\nUC_x5XG1OV2P6uZZ5FSM9Ttw = "host"\n')
    with serving() as server:
        body = json.dumps({"items": [VIDEO]}).encode()
        busy = json.dumps({"error": {"code": 503, "errors": [{"reason": "backendError"}]}}).encode()
        server.answers["/videos"] = (503, {"Retry-After": "0"}, busy)
        media = {
            "youtube_api_key": "a-key-of-ours",
            "youtube_url": f"http://127.0.0.1:{server.port}",
            "youtube_media": "youtube/{video_id}.m4a",
            "speakers": str(roles),
        }
        async with media_on(quick, root, media=media, stages=impatient()) as scene:
            record = await scene.submit(
                "https://youtu.be/dQw4w9WgXcQ", media_type=MediaType.YOUTUBE
            )
            async with asyncio.timeout(20):
                while not server.requests:
                    await asyncio.sleep(0.01)
            server.answers["/videos"] = (200, {}, body)
            view = await scene.ended(record.job.job_id, within=240)
            assert (view.stage, view.reason) == (JobStage.TRANSCRIPT_COMPLETE, None)
            kept = await scene.system.store.get(record.job.job_id)
            assert kept.title == "A talk by Zoe"
            assert kept.job.info.speaker_role == "host"
            text = await scene.system.store.text(record.job.job_id)
            assert "london" in words(text.segments[0].text)
            sent = b"".join(r.data for r in await scene.stored("job-processing"))
            assert b"Zoe" not in sent


async def test_a_video_without_a_recording_of_ours_fails_after_its_metadata(quick, tmp_path):
    with serving() as server:
        server.answers["/videos"] = (200, {}, json.dumps({"items": [VIDEO]}).encode())
        media = {
            "youtube_api_key": "a-key-of-ours",
            "youtube_url": f"http://127.0.0.1:{server.port}",
        }
        async with media_on(quick, tmp_path, media=media) as scene:
            record = await scene.submit("dQw4w9WgXcQ", media_type=MediaType.YOUTUBE)
            view = await scene.ended(record.job.job_id)
            assert (view.stage, view.reason) == (JobStage.FAILED, "no_recording")
            assert view.duration == 3.0


@pytest.mark.parametrize(
    ("status", "why", "reason", "attempts"),
    [(403, "quotaExceeded", "quota", 2), (404, "videoNotFound", "not_found", 1)],
)
async def test_what_youtube_refuses_is_retried_or_not_as_it_says(
    quick, tmp_path, status, why, reason, attempts
):
    with serving() as server:
        errors = {"error": {"code": status, "errors": [{"reason": why}]}}
        server.answers["/videos"] = (
            status,
            {"Retry-After": "0"},
            json.dumps(errors).encode(),
        )
        media = {
            "youtube_api_key": "a-key-of-ours",
            "youtube_url": f"http://127.0.0.1:{server.port}",
        }
        stages = impatient(max_attempts=2)
        async with media_on(quick, tmp_path, media=media, stages=stages) as scene:
            record = await scene.submit("dQw4w9WgXcQ", media_type=MediaType.YOUTUBE)
            view = await scene.ended(record.job.job_id)
            assert (view.stage, view.reason) == (JobStage.FAILED, reason)
            assert view.attempts == attempts


async def test_a_key_that_youtube_refuses_fails_no_job(quick, tmp_path, caplog):
    """It is the operator's trouble: the job waits until the key is a good one."""
    with serving() as server:
        errors = {"error": {"code": 400, "errors": [{"reason": "keyInvalid"}]}}
        server.answers["/videos"] = (400, {}, json.dumps(errors).encode())
        media = {
            "youtube_api_key": "a-key-of-ours",
            "youtube_url": f"http://127.0.0.1:{server.port}",
        }
        stages = impatient(max_attempts=2)
        async with media_on(quick, tmp_path, media=media, stages=stages) as scene:
            record = await scene.submit("dQw4w9WgXcQ", media_type=MediaType.YOUTUBE)
            async with asyncio.timeout(60):
                while len(server.requests) < 4:
                    await asyncio.sleep(0.01)
            assert (await scene.system.store.get(record.job.job_id)).job.stage is JobStage.QUEUED
            server.answers["/videos"] = (200, {}, json.dumps({"items": [VIDEO]}).encode())
            view = await scene.ended(record.job.job_id)
            assert (view.reason, view.attempts) == ("no_recording", 1)
    said = [r.getMessage() for r in caplog.records if "cannot work on youtube" in r.getMessage()]
    assert len(said) == 1 and "a-key-of-ours" not in said[0]


@pytest.mark.parametrize(
    ("media", "stage", "said"),
    [
        ({"root": None}, "metadata", "--media DIR"),
        ({"root": "nowhere"}, "metadata", "nowhere"),
        ({"root": None, "hosts": ["a.example"], "model": "no-weights"}, "transcription", "weights"),
        ({"root": "{here}", "language": "fr"}, "transcription", "'fr'"),
    ],
)
async def test_a_worker_that_cannot_work_does_not_start_and_leaves_the_jobs_alone(
    quick, tmp_path, media, stage, said
):
    if media["root"] == "{here}":
        media = {**media, "root": str(tmp_path)}
    async with jobs_on(quick, media=media) as scene:
        record = await scene.submit()
        with pytest.raises(MediaError, match=said) as refused:
            async with scene.system.working(stage):
                pytest.fail("it takes jobs")
        assert refused.value.reason == "configuration"
        assert (await scene.system.store.get(record.job.job_id)).attempts == 0


async def test_a_stage_starts_without_what_another_needs(quick, tmp_path):
    async with (
        media_on(quick, SAMPLES, run=["metadata"], media={"model": str(tmp_path)}) as scene,
    ):
        record = await scene.submit("weather.wav")
        await scene.view_at(record.job.job_id, JobStage.METADATA_READY)


async def test_a_media_folder_that_goes_away_fails_no_job(quick, tmp_path):
    root = shutil.copytree(SAMPLES, tmp_path / "media")
    async with media_on(quick, root, run=["metadata"], stages=impatient()) as scene:
        root.rename(tmp_path / "elsewhere")
        record = await scene.submit("weather.wav")
        upload = await scene.submit("upload:user-1/med_x.wav")
        await asyncio.sleep(0.5)
        for one in (record, upload):
            assert (await scene.system.store.get(one.job.job_id)).job.stage is JobStage.QUEUED
        (tmp_path / "elsewhere").rename(root)
        await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
        # There is no folder for uploads in it: another one was meant.
        assert (await scene.system.store.get(upload.job.job_id)).job.stage is JobStage.QUEUED


async def test_weights_that_do_not_load_fail_no_job(quick, tmp_path, caplog):
    weights = tmp_path / "weights"
    weights.mkdir()
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (weights / name).write_bytes(b"{}")
    media = {"model": str(weights)}
    async with media_on(quick, SAMPLES, media=media, stages=impatient(max_attempts=2)) as scene:
        made = [await scene.submit("weather.wav") for _ in range(5)]

        async def said():
            return "do not load" in caplog.text

        await until(said)
        for record in made:
            await scene.view_at(record.job.job_id, JobStage.METADATA_READY)
        await asyncio.sleep(0.5)
        for record in made:
            kept = await scene.system.store.get(record.job.job_id)
            assert kept.job.stage is JobStage.METADATA_READY
    assert caplog.text.count("cannot work on audio jobs here") == 1


async def test_media_is_fetched_from_a_host_that_is_allowed(quick, tmp_path):
    with serving() as server:
        sound = (SAMPLES / "coffee.flac").read_bytes()
        server.answers["/coffee.flac"] = (200, {}, sound)
        server.answers["/moved"] = (302, {"Location": "http://localhost:9/coffee.flac"}, b"")
        host = f"127.0.0.1:{server.port}"
        media = {"hosts": [host], "allow_http": True, "allow_loopback": True}
        async with media_on(quick, tmp_path, media=media) as scene:
            record = await scene.submit(f"http://{host}/coffee.flac?signature=zoe")
            moved = await scene.submit(f"http://{host}/moved")
            view = await scene.ended(record.job.job_id, within=240)
            assert view.stage is JobStage.TRANSCRIPT_COMPLETE
            text = await scene.system.store.text(record.job.job_id)
            assert "coffee" in words(text.segments[0].text)
            sent = b"".join(r.data for r in await scene.stored("job-processing"))
            assert b"zoe" not in sent and host.encode() not in sent
            refused = await scene.ended(moved.job.job_id)
            assert (refused.stage, refused.reason) == (JobStage.FAILED, "forbidden")
