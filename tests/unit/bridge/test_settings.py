"""What is asked of a bridge, and what is refused where it is said."""

import pytest

from penstock.bridge.settings import BridgeSettings
from penstock.errors import InvalidArgumentError

APPS = {"app_name": "api", "destination_app": "worker"}


def test_the_defaults_are_those_of_the_specification():
    settings = BridgeSettings(**APPS)
    assert settings.stream_name == "jetstream-bridge-stream"
    assert (settings.use_outbox, settings.use_inbox, settings.use_dlq) == (False, False, True)
    assert (settings.max_deliver, settings.ack_wait) == (5, 30)
    assert settings.backoff == (1, 5, 15, 30, 60)
    assert settings.consumer_mode == "pull"
    assert settings.auto_provision and not settings.lazy_connect
    assert (settings.connect_retry_attempts, settings.connect_retry_delay) == (3, 2)
    assert settings.push_subject == "worker.sync.api.worker"


def test_an_event_comes_back_later_each_time_it_failed():
    settings = BridgeSettings(**APPS)
    assert [settings.delay(n) for n in (1, 2, 3, 4, 5, 6, 99)] == [1, 5, 15, 30, 60, 60, 60]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"app_name": "a.b"}, "app_name"),
        ({"max_deliver": 0}, "max_deliver"),
        ({"ack_wait": 0}, "ack_wait"),
        ({"backoff": ()}, "backoff"),
        ({"backoff": [1, 2]}, "backoff"),
        ({"backoff": (1, -1)}, "backoff"),
        ({"consumer_mode": "poll"}, "consumer_mode"),
        ({"delivery_subject": "a.*"}, "is not allowed"),
        ({"use_outbox": True}, "needs a database_url"),
        ({"use_inbox": True}, "needs a database_url"),
        ({"connect_retry_attempts": 0}, "connect_retry_attempts"),
        ({"dead_letter_stream": "jetstream-bridge-stream"}, "a stream of their own"),
        (
            {"use_inbox": True, "database_url": "sqlite://", "replay_horizon": 60},
            "shorter than dead letters are kept",
        ),
    ],
)
def test_what_cannot_work_is_refused(wrong, why):
    with pytest.raises(InvalidArgumentError, match=why):
        BridgeSettings(**{**APPS, **wrong})


def test_settings_are_read_from_the_environment():
    settings = BridgeSettings.read(
        {
            "PENSTOCK_BRIDGE_APP_NAME": "api",
            "PENSTOCK_BRIDGE_DESTINATION_APP": "worker",
            "PENSTOCK_BRIDGE_USE_DLQ": "no",
            "PENSTOCK_BRIDGE_MAX_DELIVER": "7",
            "PENSTOCK_BRIDGE_BACKOFF": "1,2.5",
            "PENSTOCK_BRIDGE_ACK_WAIT": "12.5",
            "UNRELATED": "x",
        },
        app_name="mine",
        url=None,
    )
    assert settings.app_name == "mine" and settings.destination_app == "worker"
    assert not settings.use_dlq and settings.max_deliver == 7
    assert settings.backoff == (1, 2.5) and settings.ack_wait == 12.5


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "set PENSTOCK_BRIDGE_APP_NAME, PENSTOCK_BRIDGE_DESTINATION_APP"),
        ({"PENSTOCK_BRIDGE_MAX_DELIVERIES": "3"}, "MAX_DELIVERIES is no setting"),
        ({"PENSTOCK_BRIDGE_USE_DLQ": "perhaps"}, "USE_DLQ cannot be 'perhaps'; it is yes or no"),
        ({"PENSTOCK_BRIDGE_BACKOFF": "soon"}, "seconds, separated by commas"),
    ],
)
def test_a_misspelt_variable_is_noticed(variables, why):
    with pytest.raises(InvalidArgumentError, match=why):
        BridgeSettings.read(variables)


def test_no_address_is_ever_shown():
    settings = BridgeSettings(**APPS, url="nats://u:secret@h", database_url="postgresql://u:pw@h/d")
    assert "secret" not in repr(settings) and "pw" not in repr(settings)
