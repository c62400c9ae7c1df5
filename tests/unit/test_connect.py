"""The registry of brokers: what leads where, and what is said when nothing does."""

import sys

import pytest

from penstock import BrokerKind, PubSub, connect, register_broker
from penstock.brokers.memory import MemoryBroker
from penstock.clock import Clock
from penstock.connect import _installed, broker_kind
from penstock.errors import AlreadyExistsError, InvalidArgumentError


async def open_memory(url: str, clock: Clock) -> MemoryBroker:
    broker = MemoryBroker(clock)
    broker.opened_as = url
    return broker


async def open_other(url: str, clock: Clock) -> MemoryBroker:
    return MemoryBroker(clock)


KIND = BrokerKind(open_memory)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Pretend to install packages: each a folder of metadata, and a module for its broker."""

    def put(package: str, scheme: str, value: str, code: str = "") -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[penstock.brokers]\n{scheme} = {value}\n")
        if code:
            (tmp_path / f"{value.partition(':')[0]}.py").write_text(code)

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    _installed.cache_clear()
    yield put
    _installed.cache_clear()


async def test_a_registered_scheme_is_opened_with_the_whole_address_and_the_clock():
    register_broker("known-here", KIND)
    clock = Clock()
    async with PubSub("known-here://host/path?option=1", clock=clock) as pubsub:
        broker = await pubsub.broker()
        assert broker.opened_as == "known-here://host/path?option=1"
        assert broker._clock is clock


async def test_a_scheme_is_found_whatever_its_case():
    register_broker("any-case", KIND)
    assert broker_kind("Any-CASE://x") is KIND


async def test_an_unknown_scheme_names_the_known_ones_and_how_to_add_one():
    with pytest.raises(InvalidArgumentError) as caught:
        await connect("carrier-pigeon://ann:secret@loft")
    told = str(caught.value)
    assert told.startswith("No broker for carrier-pigeon://")
    for part in (
        "memory://",
        "local://",
        "nats://",
        "tls://",
        "penstock.brokers",
        "register_broker",
    ):
        assert part in told
    assert "secret" not in told and "loft" not in told


@pytest.mark.parametrize("address", ["", "memory", "nats:secret@host", "secret"])
async def test_an_address_without_a_scheme_is_refused_and_not_shown(address):
    with pytest.raises(InvalidArgumentError, match="No broker for no://") as caught:
        await connect(address)
    assert "secret" not in str(caught.value)


async def test_an_address_that_is_not_text_is_refused():
    with pytest.raises(InvalidArgumentError, match="must be text, not int"):
        await connect(4222)


async def test_a_scheme_is_taken_once_and_by_the_same_kind_as_often_as_it_likes():
    register_broker("taken", KIND)
    register_broker("taken", BrokerKind(open_memory))
    for scheme in ("taken", "memory", "nats"):
        with pytest.raises(AlreadyExistsError, match=f"{scheme}:// already"):
            register_broker(scheme, BrokerKind(open_other))
    assert broker_kind("taken://") == KIND


@pytest.mark.parametrize("scheme", ["", "Upper", "my_broker", "x://", "1st", None])
def test_what_cannot_be_the_scheme_of_an_address_is_refused(scheme):
    with pytest.raises(InvalidArgumentError, match="a scheme is"):
        register_broker(scheme, KIND)


def test_a_function_is_not_a_kind_of_broker():
    with pytest.raises(InvalidArgumentError, match="must lead to a BrokerKind, not to a function"):
        register_broker("plain", open_memory)


OUTSIDE = """
from penstock import BrokerKind
from penstock.brokers.memory import MemoryBroker

async def open_broker(url, clock):
    broker = MemoryBroker(clock)
    broker.opened_as = url
    return broker

kind = BrokerKind(open_broker)
"""


async def test_an_installed_package_brings_its_scheme_with_it(install):
    install("outside-broker", "outside", "outside_broker:kind", OUTSIDE)
    broker = await connect("outside://somewhere")
    assert broker.opened_as == "outside://somewhere"
    with pytest.raises(AlreadyExistsError, match="outside:// already"):
        register_broker("outside", KIND)
    with pytest.raises(InvalidArgumentError, match=r"known: .*outside://"):
        await connect("nowhere://")


async def test_two_packages_for_one_scheme_are_named(install):
    install("first-broker", "contested", "first_broker:kind", OUTSIDE)
    install("second-broker", "contested", "second_broker:kind", OUTSIDE)
    with pytest.raises(AlreadyExistsError, match="More than one broker for contested://") as caught:
        await connect("contested://")
    assert "first-broker" in str(caught.value) and "second-broker" in str(caught.value)


async def test_a_package_cannot_take_a_scheme_of_ours_in_silence(install):
    install("taker", "memory", "taker:kind", OUTSIDE)
    with pytest.raises(AlreadyExistsError, match=r"memory://.*package taker"):
        await connect("memory://")


async def test_a_package_that_does_not_load_is_named_with_its_reason(install):
    install("broken-broker", "broken", "no_such_module:kind")
    with pytest.raises(InvalidArgumentError, match=r"package broken-broker.*no_such_module"):
        await connect("broken://")
    install("wrong-broker", "wrong", "wrong_broker:open_broker", OUTSIDE)
    _installed.cache_clear()
    with pytest.raises(InvalidArgumentError, match="wrong-broker must name a BrokerKind"):
        await connect("wrong://")
