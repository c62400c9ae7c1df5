"""What goes out on the wire, and on whose insides it stands."""

import pytest

from penstock.brokers.nats.aio.client import SteadyClient, check_compatible
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.requests import publish_operation


def test_operations_are_complete():
    assert publish_operation(b"a", b"", b"", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert publish_operation(b"a", b"r", b"", b"") == b"PUB a r 0\r\n\r\n"
    assert publish_operation(b"a", b"", b"HH", b"xy") == b"HPUB a 2 4\r\nHHxy\r\n"
    assert publish_operation(b"a", b"r", b"HH", b"xy") == b"HPUB a r 2 4\r\nHHxy\r\n"


def test_this_nats_py_is_one_we_know():
    check_compatible()

    client = SteadyClient()
    assert Wire(client).connected is False


def test_a_nats_py_we_do_not_know_is_refused(monkeypatch):
    import nats.aio.client

    monkeypatch.delattr(nats.aio.client.Client, "_process_msg")
    with pytest.raises(Exception, match="_process_msg"):
        check_compatible()
