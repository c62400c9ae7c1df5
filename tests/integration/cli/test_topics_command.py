"""`penstock topics` and `penstock subscriptions`, on a real server."""

import asyncio
import base64
import json

import pytest
from typer.testing import CliRunner

from penstock import DeadLetterPolicy, PubSub, RetryPolicy
from penstock.cli.brokers.topics import subscriptions, topics
from penstock.cli.main import main
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from tests.support.nats_scenes import api
from tests.support.servers import NatsServer


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("topics")) as server:
        asyncio.run(prepare(server.url))
        yield server.url


async def prepare(url):
    async with PubSub(url) as pubsub:
        orders = await pubsub.topic("orders").create()
        await pubsub.topic("orders-dead").create()
        await orders.subscription(
            "billing",
            filter='attributes.kind = "odd"',
            dead_letter_policy=DeadLetterPolicy(topic="orders-dead", max_delivery_attempts=7),
            retry_policy=RetryPolicy(minimum_backoff=1, maximum_backoff=60),
        ).create()
        for n in range(3000):
            await orders.publish_message(b"order %d" % n, {"kind": "odd" if n % 2 else "even"})


def run(group, url, *words, text=None):
    ran = CliRunner().invoke(group, [*words, "--url", url], input=text)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_topics_and_subscriptions_are_listed_and_shown(url):
    listed = lines(run(topics, url, "list", "--json"))
    assert [row["topic"] for row in listed] == ["orders", "orders-dead"]
    assert listed[0]["published"] >= 3000 and listed[0]["subscriptions"] == 1
    assert "orders-dead" in run(topics, url, "list")
    shown = json.loads(run(topics, url, "show", "orders", "--json"))
    assert [one["subscription"] for one in shown["subscriptions"]] == ["billing"]
    assert "billing" in run(topics, url, "show", "orders")
    [billing] = lines(run(subscriptions, url, "list", "--topic", "orders", "--json"))
    assert billing["topic"] == "orders" and billing["waiting"] >= 1500
    assert lines(run(subscriptions, url, "list", "--topic", "orders-dead", "--json")) == []
    assert run(subscriptions, url, "list", "--topic", "orders-dead") == "No subscriptions.\n"
    about = run(subscriptions, url, "show", "billing")
    assert "orders-dead after 7" in about and "1 to 60 s" in about and 'kind = "odd"' in about


def test_the_last_messages_are_found_from_the_end_and_through_filters(url):
    last = lines(run(topics, url, "tail", "orders", "-n", "3", "--json"))
    assert [base64.b64decode(one["data"]) for one in last] == [
        b"order 2997", b"order 2998", b"order 2999",
    ]  # fmt: skip
    odd = lines(run(subscriptions, url, "tail", "billing", "-n", "1200", "--json", "--no-bodies"))
    assert len(odd) == 1200 and {one["attributes"]["kind"] for one in odd} == {"odd"}
    assert "data" not in odd[0]
    even = run(topics, url, "tail", "orders", "-n", "1", "--filter", 'attributes.kind = "even"')
    assert "order 2998" in even and "kind=even" in even
    assert run(topics, url, "tail", "orders", "--since", "0.001s") == ""
    assert (
        len(lines(run(topics, url, "tail", "orders", "--since", "1d", "-n", "5000", "--json")))
        == 3000
    )
    assert run(topics, url, "tail", "orders-dead") == ""


def test_messages_are_published_from_words_and_from_lines(url):
    asyncio.run(make(url, "letters"))
    run(topics, url, "publish", "letters", "grüße", "-a", "k=v=w", "--key", "ann", "--id", "mine")
    run(topics, url, "publish", "letters", "again", "--id", "mine")
    run(topics, url, "publish", "letters", "-", text="a\nb\n")
    assert len(run(topics, url, "publish", "letters", "--lines", text="c\nd\n").split()) == 2
    found = lines(run(topics, url, "tail", "letters", "--json"))
    assert [base64.b64decode(one["data"]).decode() for one in found] == [
        "grüße",
        "a\nb\n",
        "c",
        "d",
    ]
    assert found[0]["attributes"] == {"k": "v=w"}
    assert (found[0]["ordering_key"], found[0]["message_id"]) == ("ann", "mine")


def test_lines_are_messages_unless_they_are_empty_and_other_input_is_taken_as_it_is(url):
    asyncio.run(make(url, "inputs"))
    binary = bytes(range(256)) + b"\r\n"
    run(topics, url, "publish", "inputs", text=binary)
    said = run(topics, url, "publish", "inputs", "--lines", text=b"\na\r\n\n\n \xff\n\nb")
    assert len(said.split()) == 3
    found = lines(run(topics, url, "tail", "inputs", "--json"))
    assert [base64.b64decode(one["data"]) for one in found] == [binary, b"a", b" \xff", b"b"]


def test_topics_and_subscriptions_are_made_by_name(url):
    assert run(topics, url, "create", "made") == "Made topic made.\n"
    said = run(subscriptions, url, "create", "reader", "--topic", "made")
    assert said == "Made subscription reader of topic made.\n"
    [reader] = lines(run(subscriptions, url, "list", "--topic", "made", "--json"))
    assert reader["subscription"] == "reader"
    with pytest.raises(AlreadyExistsError, match="made"):
        run(topics, url, "create", "made")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("topics", "tail", "nowhere"), "`penstock topics create nowhere` makes it"),
        (("topics", "tail", "no~where"), "`penstock topics create 'no~where'` makes it"),
        (("topics", "publish", "nowhere", "x"), "`penstock topics list` lists those there are"),
        (("dead", "list", "nowhere"), "Topic not found: 'nowhere'; `penstock topics list`"),
        (
            ("subscriptions", "show", "nobody"),
            "`penstock subscriptions create nobody --topic TOPIC` makes it",
        ),
    ],
)
def test_what_is_not_there_is_told_with_commands_and_not_with_python(
    url, words, said, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", ["penstock", *words, "--url", url])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 4
    assert said in told and "await" not in told


@pytest.mark.parametrize("address", ["local:///proc/x", "local:///dev/null", "nats://[::1"])
def test_an_address_that_cannot_work_is_one_line(address, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["penstock", "topics", "list", "--url", address])
    with pytest.raises(SystemExit):
        main()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("penstock: ") and ("local" in line or "nats" in line)


async def make(url, name):
    async with PubSub(url) as pubsub:
        await pubsub.topic(name).create()


def test_what_cannot_be_is_told(url):
    with pytest.raises(InvalidArgumentError, match="KEY=VALUE"):
        run(topics, url, "publish", "orders", "x", "-a", "novalue")
    with pytest.raises(InvalidArgumentError, match="--lines"):
        run(topics, url, "publish", "orders", "--lines", "--id", "x")
    with pytest.raises(InvalidArgumentError, match="'k' is given twice"):
        run(topics, url, "publish", "orders", "x", "-a", "k=v", "-a", "k=w")
    with pytest.raises(InvalidArgumentError, match="--lines is for the input"):
        run(topics, url, "publish", "orders", "x", "--lines")
    with pytest.raises(InvalidArgumentError, match="--id is empty; leave it out"):
        run(topics, url, "publish", "orders", "x", "--id", "")
    with pytest.raises(NotFoundError, match="nowhere"):
        run(topics, url, "tail", "nowhere")
    with pytest.raises(NotFoundError, match="nobody"):
        run(subscriptions, url, "show", "nobody")


def test_what_others_made_is_shown_by_its_name(tmp_path):
    with NatsServer(tmp_path) as server:
        for stream in ("1Q", "2Q"):
            api(
                server.url, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.*"]}
            )
            config = {"name": "w", "durable_name": "w", "ack_policy": "explicit"}
            body = {"stream_name": stream, "config": config}
            api(server.url, f"CONSUMER.CREATE.{stream}.w", body)
        run(topics, server.url, "publish", "1Q", "a body", "--subject", "1Q.a")
        listed = lines(run(topics, server.url, "list", "--json"))
        assert [row["topic"] for row in listed] == ["1Q", "2Q"]
        shown = json.loads(run(topics, server.url, "show", "1Q", "--json"))
        assert [one["waiting"] for one in shown["subscriptions"]] == [1]
        assert "a body" in run(topics, server.url, "tail", "1Q")
        both = lines(run(subscriptions, server.url, "list", "--json"))
        assert [(one["topic"], one["waiting"]) for one in both] == [("1Q", 1), ("2Q", 0)]
        [second] = lines(run(subscriptions, server.url, "list", "--topic", "2Q", "--json"))
        assert second["topic"] == "2Q"
        with pytest.raises(FailedPreconditionError, match="1Q, 2Q"):
            run(subscriptions, server.url, "show", "w")
        about = json.loads(run(subscriptions, server.url, "show", "w", "--topic", "1Q", "--json"))
        assert (about["subscription"], about["waiting"]) == ("w", 1)
        assert "a body" in run(subscriptions, server.url, "tail", "w", "--topic", "1Q")
