"""`penstock dead`, on a real server."""

import asyncio
import base64
import json

import pytest
from typer.testing import CliRunner

from penstock import App, Draft, PubSub, Reject, Retry
from penstock.cli.brokers.dead import dead
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.jobs import JobStage
from tests.support.job_scenes import Place, jobs_on
from tests.support.servers import NatsServer
from tests.support.shop import Order

COUNT = 230


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("dead")) as server:
        yield server.url


@pytest.fixture(scope="module")
def few(url):
    asyncio.run(reject_all(url, "few", 3))
    return "few-dead"


async def reject_all(url, name, count):
    """Letters of `count` orders, and one of something that is no order."""
    app = App(url)

    @app.subscriber(name, f"{name}-billing")
    def bill(order: Order) -> None:
        raise Reject("odd" if order.id % 2 else "even") from ValueError(f"order\r\n{order.id}")

    async with app:
        for n in range(count):
            await app.publish(name, Order(n), attributes={"tenant": f"t{n % 3}"})
        await app.publish(name, b"\x1b[31mbroken\xff")
        letters = app.pubsub.dead_letters(f"{name}-dead")
        while await letters.count() < count + 1:
            await asyncio.sleep(0.05)


def run(url, *words, fails=0):
    ran = CliRunner().invoke(dead, [*words, "--url", url])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == fails, ran.output
    return ran.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


async def stored(url, topic):
    async with PubSub(url) as pubsub:
        log = (await pubsub.broker()).log
        extent = await log.extent(topic)
        return [r async for batch in log.read(topic, 1, extent.last) for r in batch]


def test_letters_are_listed_shown_replayed_and_discarded(url):
    asyncio.run(reject_all(url, "orders", COUNT))
    listed = lines(run(url, "list", "orders-dead", "--json"))
    assert sorted(one["number"] for one in listed) == list(range(1, COUNT + 2))
    assert {one["reason"] for one in listed} == {"odd", "even", "undecodable"}
    assert "ValueError: order 7" in {one["error"] for one in listed}
    assert (listed[0]["topic"], listed[0]["subscription"]) == ("orders", "orders-billing")
    assert "data" not in listed[0]
    odd = [one["number"] for one in listed if one["reason"] == "odd"]
    [broken] = [one["number"] for one in listed if one["reason"] == "undecodable"]

    some = lines(run(url, "list", "orders-dead", "--json", "--reason", "od*", "--limit", "3"))
    assert [one["number"] for one in some] == odd[:3]
    one_tenant = run(url, "list", "orders-dead", "--json", "--filter", 'attributes.tenant = "t1"')
    assert len(lines(one_tenant)) == 77
    assert run(url, "list", "orders-dead", "--json", "--since", "2d", "--until", "1d") == ""

    shown = run(url, "show", "orders-dead", str(broken))
    assert "undecodable" in shown and "\x1b" not in shown
    body = json.loads(run(url, "show", "orders-dead", str(odd[0]), "--json"))["data"]
    assert json.loads(base64.b64decode(body))["customer"] == "ann"
    assert '"customer": "ann"' in run(url, "show", "orders-dead", str(odd[0]))

    words = ("replay", "orders-dead", "--reason", "odd")
    assert run(url, *words, "--dry-run") == "115 would be sent again.\n"
    assert run(url, *words) == "Replayed 115.\n"
    assert run(url, *words) == "Replayed 0.\n"
    again = asyncio.run(stored(url, "orders"))[COUNT + 1 :]
    assert len(again) == 115 and all("replay-of" in record.attributes for record in again)

    left = [one["number"] for one in listed if one["reason"] == "even"][:2]
    assert run(url, "discard", "orders-dead", *map(str, left)) == "Discarded 2.\n"
    assert len(lines(run(url, "list", "orders-dead", "--json"))) == COUNT + 1 - 117
    settled = lines(run(url, "list", "orders-dead", "--json", "--settled"))
    deeds = {one["number"]: one["settled"] for one in settled}
    assert {deeds[number] for number in odd} == {"replayed"}
    assert {deeds[number] for number in left} == {"discarded"}
    assert json.loads(run(url, "discard", "orders-dead", "--all", "--json"))["discarded"] == 114
    assert run(url, "list", "orders-dead") == "No dead letters in orders-dead.\n"


def test_the_table_names_what_matters_and_no_body(url, few):
    shown = run(url, "list", few)
    assert "even: ValueError: order 2" in shown and "few-billing" in shown
    assert "customer" not in shown and "broken" not in shown
    assert "4 in few-dead." in shown


def test_what_cannot_be_sent_is_told_and_stays(url, few):
    run(url, "replay", few, "1", "--to", "nowhere-at-all", fails=1)
    assert len(lines(run(url, "list", few, "--json"))) == 4


def test_everything_must_be_meant(url, few):
    for command in ("replay", "discard"):
        with pytest.raises(InvalidArgumentError, match="--all"):
            run(url, command, few)


def test_a_live_topic_is_not_written_to_by_a_slip(url, few):
    before = asyncio.run(stored(url, "few"))
    for words in (("discard", "few", "--all"), ("discard", "few", "1", "--dry-run")):
        with pytest.raises(FailedPreconditionError, match="'few' says that it is a dead letter"):
            run(url, *words)
    with pytest.raises(FailedPreconditionError, match="is another topic meant, such as 'few-dead'"):
        run(url, "replay", "few", "1", "--to", "few")
    assert asyncio.run(stored(url, "few")) == before
    assert run(url, "discard", "few", "1", "--force") == "Discarded 1.\n"


def test_letters_and_topics_that_are_not_there(url, few):
    with pytest.raises(NotFoundError, match="No dead letter 9999"):
        run(url, "show", few, "9999")
    with pytest.raises(NotFoundError, match="nothing-here"):
        run(url, "list", "nothing-here")


def test_a_broker_in_memory_is_nobodys_but_its_processs():
    with pytest.raises(InvalidArgumentError, match="memory:// is one process's own"):
        run("memory://", "list", "orders-dead")


def test_moments_are_written_in_two_ways(url):
    with pytest.raises(InvalidArgumentError, match="yesterday"):
        run(url, "list", "orders-dead", "--since", "yesterday")


async def give_up_jobs(url, database):
    """A job that failed too often, and a message that is no job; the failed job's id."""
    stages = {"metadata": {"max_attempts": 2, "minimum_backoff": 0, "maximum_backoff": 0}}
    async with jobs_on(Place(url, database), stages=stages) as scene:
        async with scene.working(metadata=gives_up):
            job = (await scene.submit()).job
            await scene.dead_letters(1)
            broker = await scene.system.pubsub.broker()
            stranger = Draft.of(b"not a job", {"stage": "Queued"}, message_id="stranger")
            await broker.publish("job-processing", [stranger])
            await scene.dead_letters(2)
    return job.job_id


async def gives_up(_):
    return Retry("busy")


async def run_again(url, database, job_id):
    """What becomes of the job, and of what is no job, once their letters are replayed."""
    async with jobs_on(Place(url, database)) as scene, scene.working():
        view = await scene.ended(job_id, run=2)
        dead = await scene.dead_letters(4)
    return view, dead


def test_letters_of_jobs_are_listed_shown_and_replayed_as_others_are(url, tmp_path):
    database = f"sqlite:///{tmp_path}/jobs.db"
    job_id = asyncio.run(give_up_jobs(url, database))
    busy, broken = lines(run(url, "list", "job-processing-dead", "--json"))
    assert (busy["reason"], busy["attempt"], busy["topic"]) == ("busy", 2, "job-processing")
    assert (busy["subscription"], busy["attributes"]["jobId"]) == ("job-metadata", job_id)
    assert (broken["reason"], broken["message_id"]) == ("unknown-media-type", "stranger")
    shown = json.loads(run(url, "show", "job-processing-dead", str(busy["number"]), "--json"))
    assert job_id.encode() in base64.b64decode(shown["data"])

    run(url, "replay", "job-processing-dead", "--all")
    view, dead = asyncio.run(run_again(url, database, job_id))
    assert view.stage is JobStage.TRANSCRIPT_COMPLETE
    # The two letters, the mark that they were replayed, and what is still no job.
    assert dead[-1].attributes["replay-of"] == "stranger"
