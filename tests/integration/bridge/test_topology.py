"""Provisioning on a real server: what it makes, what it leaves, what it refuses."""

import asyncio

import pytest

from penstock.bridge.connection import opener
from penstock.bridge.settings import BridgeSettings
from penstock.bridge.topology import Provisioner
from penstock.connect import connect
from penstock.errors import FailedPreconditionError
from tests.support.jetstream_api import jetstream_api

pytestmark = pytest.mark.real_time


def settings_for(server, pair, **more):
    return BridgeSettings(url=server.url, **{**pair, **more})


async def provision(settings):
    names = settings.names
    broker = await opener(settings.url, names.stream_name, names.dlq_stream)()
    try:
        return await Provisioner(broker, settings).provision()
    finally:
        await broker.aclose()


async def problems(settings):
    names = settings.names
    broker = await opener(settings.url, names.stream_name, names.dlq_stream)()
    try:
        return await Provisioner(broker, settings).problems()
    finally:
        await broker.aclose()


async def test_streams_and_consumer_are_what_the_specification_says(nats_server, pair):
    settings = settings_for(nats_server, pair)
    names = settings.names
    done = await provision(settings)
    assert len(done.changed) == 3
    async with jetstream_api(nats_server.url) as request:
        events = (await request(f"STREAM.INFO.{names.stream_name}"))["config"]
        assert events["retention"] == "workqueue" and events["storage"] == "file"
        assert events["subjects"] == [names.source_subject, names.destination_subject]
        letters = (await request(f"STREAM.INFO.{names.dlq_stream}"))["config"]
        assert letters["retention"] == "limits"
        assert set(names.dlq_subjects) <= set(letters["subjects"])
        made = await request(f"CONSUMER.INFO.{names.stream_name}.{names.durable}")
        consumer = made["config"]
        assert consumer["durable_name"] == names.durable
        assert consumer["filter_subject"] == names.destination_subject
        assert consumer["ack_policy"] == "explicit" and consumer["deliver_policy"] == "all"
        assert consumer["ack_wait"] == 30_000_000_000
        assert "backoff" not in consumer


async def test_provisioning_again_changes_nothing(nats_server, pair):
    settings = settings_for(nats_server, pair)
    await provision(settings)
    async with jetstream_api(nats_server.url) as request:
        before = await request(f"STREAM.INFO.{settings.stream_name}")
        again = await provision(settings)
        after = await request(f"STREAM.INFO.{settings.stream_name}")
    assert again.changed == [] and len(again.unchanged) == 3
    assert before["config"] == after["config"]


async def test_both_apps_may_provision_at_the_same_time(nats_server, pair):
    here = settings_for(nats_server, pair)
    there = settings_for(
        nats_server,
        pair,
        app_name=pair["destination_app"],
        destination_app=pair["app_name"],
    )
    await asyncio.gather(*(provision(one) for one in [here, there] * 5))
    assert await problems(here) == await problems(there) == []


async def test_apps_that_join_a_stream_at_the_same_time_undo_nothing_of_each_other(
    nats_server, pair
):
    await provision(settings_for(nats_server, pair))
    joining = [
        settings_for(
            nats_server, pair, app_name=f"joins{n}", destination_app=f"{pair['app_name']}-{n}"
        )
        for n in range(5)
    ]
    await asyncio.gather(*(provision(one) for one in joining))
    assert [await problems(one) for one in joining] == [[]] * 5


async def test_a_third_app_adds_its_subjects_and_resets_nothing(nats_server, pair):
    await provision(settings_for(nats_server, pair))
    stream = pair["stream_name"]
    async with jetstream_api(nats_server.url) as request:
        config = (await request(f"STREAM.INFO.{stream}"))["config"]
        # What an operator set, and what a topic of ours cannot even say.
        config |= {
            "max_msgs": 12_345,
            "max_bytes": 99_999_999,
            "max_age": 40 * 86_400 * 10**9,
            "max_msg_size": 77_777,
            "description": "the operator's",
            "duplicate_window": 33 * 10**9,
            "metadata": {**config["metadata"], "team": "billing"},
        }
        await request(f"STREAM.UPDATE.{stream}", config)
        before = (await request(f"STREAM.INFO.{stream}"))["config"]
        third = settings_for(nats_server, pair, app_name="mailer", destination_app=pair["app_name"])
        done = await provision(third)
        after = (await request(f"STREAM.INFO.{stream}"))["config"]
    added = [f"mailer.sync.{pair['app_name']}", f"{pair['app_name']}.sync.mailer"]
    assert done.changed[0] == f"added {', '.join(added)} to stream {stream}"
    assert after["subjects"] == [*before["subjects"], *added]
    differing = {key for key in before if before[key] != after[key]}
    assert differing == {"subjects"}


async def test_a_stream_that_has_our_subjects_is_named_and_nothing_is_made(nats_server, pair):
    settings = settings_for(nats_server, pair)
    other = f"other-{pair['stream_name']}"
    async with jetstream_api(nats_server.url) as request:
        config = {"name": other, "subjects": [f"{pair['app_name']}.>"], "storage": "file"}
        await request(f"STREAM.CREATE.{other}", config)
        with pytest.raises(FailedPreconditionError) as refused:
            await provision(settings)
        assert f"overlaps '{pair['app_name']}.>' of stream '{other}'" in str(refused.value)
        assert "another stream_name" in str(refused.value)
        found = await problems(settings)
        assert f"Stream {settings.stream_name!r} is missing" in found[0]
        await request(f"STREAM.DELETE.{other}")
    await provision(settings)


async def test_adding_a_subject_that_another_stream_has_is_refused_too(nats_server, pair):
    await provision(settings_for(nats_server, pair))
    other = f"other-{pair['stream_name']}"
    async with jetstream_api(nats_server.url) as request:
        await request(f"STREAM.CREATE.{other}", {"name": other, "subjects": ["audit.sync.*"]})
        third = settings_for(nats_server, pair, app_name="audit", destination_app="mailer")
        with pytest.raises(FailedPreconditionError, match=r"overlaps 'audit\.sync\.\*'"):
            await provision(third)
        assert any(r"overlaps 'audit.sync.*'" in one for one in await problems(third))
        await request(f"STREAM.DELETE.{other}")


@pytest.mark.parametrize("retention", ["limits", "interest"])
async def test_a_stream_that_keeps_differently_is_an_error_that_says_what_to_do(
    nats_server, pair, retention
):
    settings = settings_for(nats_server, pair)
    async with jetstream_api(nats_server.url) as request:
        config = {
            "name": settings.stream_name,
            "subjects": list(settings.names.subjects),
            "retention": retention,
        }
        await request(f"STREAM.CREATE.{settings.stream_name}", config)
    for look in (provision(settings), _raising(problems(settings))):
        with pytest.raises(FailedPreconditionError, match="drain the stream, delete it"):
            await look


async def _raising(found):
    raise FailedPreconditionError("\n".join(await found))


async def test_the_consumer_of_another_pair_of_apps_is_left_alone(nats_server, pair):
    await provision(settings_for(nats_server, pair))
    billing = settings_for(nats_server, pair, destination_app="billing")
    async with jetstream_api(nats_server.url) as request:
        before = await request(f"STREAM.INFO.{pair['stream_name']}")
        with pytest.raises(FailedPreconditionError, match="another pair of apps has it"):
            await provision(billing)
        after = await request(f"STREAM.INFO.{pair['stream_name']}")
    assert before["config"] == after["config"]
    elsewhere = settings_for(
        nats_server, pair, destination_app="billing", stream_name=f"{pair['stream_name']}-2"
    )
    # This app's dead letters are in the first pair's stream of them; see the next test.
    with pytest.raises(FailedPreconditionError, match="overlaps"):
        await provision(elsewhere)
    assert f"Stream {elsewhere.stream_name!r} is missing" in (await problems(elsewhere))[0]


async def test_an_app_with_two_partners_has_two_streams_and_one_for_its_dead_letters(
    nats_server, pair
):
    letters = {"dead_letter_stream": f"{pair['app_name']}-dead"}
    here = settings_for(nats_server, pair, **letters)
    other = settings_for(
        nats_server,
        pair,
        destination_app=f"{pair['destination_app']}-2",
        stream_name=f"{pair['stream_name']}-2",
        **letters,
    )
    assert here.names.durable == other.names.durable
    await provision(here)
    assert len((await provision(other)).changed) == 3
    assert await problems(here) == await problems(other) == []


async def test_a_consumer_that_another_implementation_made_is_used_as_it_is(nats_server, pair):
    settings = settings_for(nats_server, pair)
    names = settings.names
    await provision(settings)
    async with jetstream_api(nats_server.url) as request:
        await request(f"CONSUMER.DELETE.{names.stream_name}.{names.durable}")
        config = {
            "durable_name": names.durable,
            "filter_subject": names.destination_subject,
            "ack_policy": "explicit",
            "ack_wait": 30 * 10**9,
            "max_deliver": 5,
            "max_ack_pending": 17,
        }
        await request(
            f"CONSUMER.CREATE.{names.stream_name}.{names.durable}",
            {"stream_name": names.stream_name, "config": config},
        )
        assert (await provision(settings)).changed == []
        longer = settings_for(nats_server, pair, ack_wait=60)
        done = await provision(longer)
        assert done.changed == [f"set ack_wait of consumer {names.durable} to 60 s"]
        made = await request(f"CONSUMER.INFO.{names.stream_name}.{names.durable}")
    assert made["config"]["ack_wait"] == 60 * 10**9
    assert made["config"]["max_deliver"] == 5 and made["config"]["max_ack_pending"] == 17


async def test_a_consumer_whose_backoff_overrides_its_ack_wait_is_named(nats_server, pair):
    """As another implementation makes them, in units that the server takes for nanoseconds."""
    settings = settings_for(nats_server, pair)
    names = settings.names
    await provision(settings)
    place = f"{names.stream_name}.{names.durable}"
    async with jetstream_api(nats_server.url) as request:
        await request(f"CONSUMER.DELETE.{place}")
        config = {
            "durable_name": names.durable,
            "filter_subject": names.destination_subject,
            "ack_policy": "explicit",
            "max_deliver": 5,
            "backoff": [1000, 5000, 15_000],
        }
        made = {"stream_name": names.stream_name, "config": config}
        await request(f"CONSUMER.CREATE.{place}", made)
        with pytest.raises(FailedPreconditionError, match=r"made with a backoff.*delete"):
            await provision(settings)
        await request(f"CONSUMER.DELETE.{place}")
    assert (await provision(settings)).changed == [
        f"created consumer {names.durable} ({names.destination_subject})"
    ]


async def test_a_push_consumer_delivers_where_it_is_told(nats_server, pair):
    settings = settings_for(nats_server, pair, consumer_mode="push")
    names = settings.names
    await provision(settings)
    async with jetstream_api(nats_server.url) as request:
        made = await request(f"CONSUMER.INFO.{names.stream_name}.{names.durable}")
    assert made["config"]["deliver_subject"] == f"{names.destination_subject}.worker"
    with pytest.raises(FailedPreconditionError, match="Change consumer_mode"):
        await provision(settings_for(nats_server, pair))


async def test_without_dead_letters_no_stream_is_made_for_them(nats_server, pair):
    settings = settings_for(nats_server, pair, use_dlq=False)
    assert len((await provision(settings)).changed) == 2
    broker = await connect(nats_server.url)
    assert settings.names.dlq_stream not in await broker.admin.list_topics()
    await broker.aclose()
