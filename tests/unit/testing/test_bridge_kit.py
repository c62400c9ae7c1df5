"""The kit that people test their own programs with."""

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.testing.bridge import BridgeKit, make_event


async def test_what_was_published_is_found_by_any_of_its_fields():
    async with BridgeKit() as kit:
        await kit.bridge.publish(event_type="user.created", payload={"id": 1, "tags": ["a"]})
        await kit.bridge.publish(event_type="user.gone", payload={"id": 2})
        assert kit.assert_published(event_type="user.created").resource_id == "1"
        kit.assert_published(payload={"tags": ["a"]}, count=1)
        kit.assert_published(count=2)
        kit.assert_published(where=lambda event: event.payload["id"] == 2)
        kit.assert_not_published(event_type="user.renamed")


async def test_what_was_not_published_fails_and_shows_what_was():
    async with BridgeKit() as kit:
        with pytest.raises(AssertionError, match="nothing"):
            kit.assert_published()
        await kit.bridge.publish(event_type="user.created", payload={"id": 1})
        for wrong in (
            {"event_type": "user.gone"},
            {"payload": {"id": 2}},
            {"payload": {"name": "x"}},
            {"count": 2},
            {"where": lambda event: False},
        ):
            with pytest.raises(AssertionError, match=r"user\.created"):
                kit.assert_published(**wrong)
        with pytest.raises(AssertionError):
            kit.assert_not_published(event_type="user.created")


async def test_what_the_other_app_says_is_not_taken_for_ours():
    async with BridgeKit() as kit:
        await kit.tell(event_type="order.paid", payload={})
        assert kit.published() == []


async def test_an_unplugged_broker_answers_nobody():
    async with BridgeKit() as kit:
        kit.broker.unplug()
        with pytest.raises(UnavailableError):
            await kit.tell(event_type="a.b", payload={})
        with pytest.raises(UnavailableError):
            await kit.broker.ping()
        kit.broker.plug_in()
        await kit.tell(event_type="a.b", payload={})


def test_events_are_made_as_handlers_get_them():
    event = make_event("order.paid", {"id": 9}, headers={"k": "v"}, event_id="e-1")
    assert (event.event_id, event.resource_id, event.headers) == ("e-1", "9", {"k": "v"})
    assert make_event().payload == {"id": 1}
    with pytest.raises(InvalidArgumentError):
        make_event("")


async def test_events_told_and_never_taken_are_noticed():
    async with BridgeKit() as kit:
        await kit.tell(event_type="a.b", payload={})
        with pytest.raises(TimeoutError):
            await kit.processed(within=5)
