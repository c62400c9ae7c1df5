"""What the server's refusals mean: stored, not stored, or nobody knows."""

import pytest

from penstock.brokers.nats.protocol.errors import api_error, refused_subject
from penstock.brokers.nats.protocol.requests import check_responders, stored
from penstock.errors import (
    FailedPreconditionError,
    ResourceExhaustedError,
    TopicNotFoundError,
    UnavailableError,
)
from penstock.message import PublishFault


def refused(code, number, text):
    payload = b'{"error":{"code":%d,"err_code":%d,"description":"%b"},"stream":"orders","seq":0}'
    return stored("orders", b"", payload % (code, number, text))


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [
        (409, 10158, b"duplicate message id is in process"),
        (503, 10008, b"JetStream system temporarily unavailable"),
        (500, 10118, b"stream is offline"),
        (503, 10077, b"stream store failed: write failed"),
    ],
)
def test_what_is_said_in_passing_leaves_it_open_whether_a_message_is_stored(code, number, text):
    error = refused(code, number, text)
    assert isinstance(error, UnavailableError)
    assert error.retryable
    assert not PublishFault(error).definite


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [
        (503, 10023, b"insufficient resources"),
        (500, 10047, b"insufficient storage resources available"),
        (400, 10002, b"resource limits exceeded for account"),
        (503, 10077, b"stream store failed: maximum messages exceeded"),
        (429, 10167, b"too many requests"),
    ],
)
def test_a_server_without_room_has_not_stored_it(code, number, text):
    error = refused(code, number, text)
    assert isinstance(error, ResourceExhaustedError)
    assert PublishFault(error).definite


def test_an_expectation_that_fails_is_definite():
    error = refused(400, 10071, b"wrong last sequence: 5")
    assert isinstance(error, FailedPreconditionError)
    assert PublishFault(error).definite


def test_nobody_there_to_answer_says_nothing_about_what_was_asked_for():
    with pytest.raises(UnavailableError):
        check_responders(b"NATS/1.0 503\r\n\r\n")
    missing = api_error({"code": 404, "err_code": 10059}, lambda: TopicNotFoundError("orders"))
    assert isinstance(missing, TopicNotFoundError)


@pytest.mark.parametrize(
    ("said", "subject"),
    [
        ("""nats: permissions violation for publish to "orders.B\"""", "orders.B"),
        ("""Permissions Violation for Publish to "a\\"b\\\\c\\u200d.Ü\"""", 'a"b\\c\u200d.Ü'),
        ("""permissions violation for subscription to "push.w" using queue "orders\"""", ""),
        ("permissions violation", ""),
        ("maximum payload violation", ""),
    ],
)
def test_where_nobody_may_publish_is_what_the_server_says_and_nothing_else(said, subject):
    assert refused_subject(said) == subject
