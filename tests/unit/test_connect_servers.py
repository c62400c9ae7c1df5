"""What else stands behind an address: ranges, a server of our own, who may share it."""

import pytest

from penstock.connect import (
    BrokerKind,
    check_shared,
    hold_server,
    open_ranges,
    own_server,
    register_broker,
)
from penstock.errors import InvalidArgumentError, UnimplementedError


def test_a_broker_inside_the_process_has_no_ranges_for_others():
    with pytest.raises(UnimplementedError, match="memory:// keeps no log that other processes"):
        open_ranges("memory://")
    with pytest.raises(InvalidArgumentError, match="is one process's own"):
        check_shared("memory://")


def test_opening_ranges_connects_to_nothing():
    for url in ("nats://127.0.0.1:1", "tls://127.0.0.1:1", "local:///nonexistent"):
        open_ranges(url).close()


def test_only_a_server_of_our_own_is_operated():
    with pytest.raises(UnimplementedError, match="nats:// is not Penstock's to start"):
        own_server("nats://user:secret@127.0.0.1")
    assert hold_server("nats://127.0.0.1") is None
    assert own_server("local:///nonexistent").state() is None


def test_a_local_address_needs_a_folder():
    for call in (own_server, open_ranges):
        with pytest.raises(InvalidArgumentError, match="needs a folder"):
            call("local://")


def test_an_address_that_depends_on_the_working_folder_is_not_shared():
    with pytest.raises(InvalidArgumentError, match="absolute path"):
        check_shared("local://data", everywhere=True)
    check_shared("local:///data", everywhere=True)
    check_shared("nats://host", everywhere=True)


def test_whoever_registers_a_broker_of_one_process_need_not_refuse_by_itself():
    async def nobody(url, clock):
        raise AssertionError("it is not opened")

    register_broker("alone", BrokerKind(nobody, shared=False))
    for url in ("alone://", "ALONE://x"):
        with pytest.raises(InvalidArgumentError, match="alone:// is one process's own"):
            check_shared(url)
