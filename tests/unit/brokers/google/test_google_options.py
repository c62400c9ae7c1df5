"""Addresses and errors of Google's adapter."""

import grpc
import pytest

from penstock import errors
from penstock.brokers.google.faults import fault_of
from penstock.brokers.google.options import GoogleOptions
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.calls import RPCS

CALLS = {rpc.name: rpc for rpc in RPCS}


def test_a_project_alone_leads_to_google_with_tls():
    options = GoogleOptions.of("pubsub://my-project", {})
    assert (options.project, options.plain) == ("my-project", False)
    assert options.endpoint == "pubsub.googleapis.com:443"


def test_the_environment_leads_to_an_emulator_unless_an_endpoint_is_named():
    environ = {"PUBSUB_EMULATOR_HOST": "127.0.0.1:8085"}
    emulated = GoogleOptions.of("pubsub://p", environ)
    assert (emulated.endpoint, emulated.plain) == ("127.0.0.1:8085", True)
    named = GoogleOptions.of("pubsub://p?endpoint=europe-west1-pubsub.googleapis.com:443", environ)
    assert not named.plain and named.endpoint.startswith("europe")
    other = GoogleOptions.of("pubsub://p?emulator=127.0.0.1:1", environ)
    assert (other.endpoint, other.plain) == ("127.0.0.1:1", True)
    as_url = GoogleOptions.of("pubsub://p", {"PUBSUB_EMULATOR_HOST": "http://127.0.0.1:8085/"})
    assert as_url == emulated


def test_options_are_read():
    options = GoogleOptions.of("pubsub://p?credentials=%2Fetc%2Fkey.json&compression=gzip", {})
    assert options.credentials == "/etc/key.json" and options.compression


@pytest.mark.parametrize(
    "url",
    [
        "pubsub://",
        "pubsub:///topic",
        "pubsub://p/topics/t",
        "pubsub://p q",
        "pubsub://p?emulatr=x",
        "pubsub://p?compression=br",
    ],
)
def test_addresses_that_lead_nowhere_are_refused(url):
    with pytest.raises(InvalidArgumentError):
        GoogleOptions.of(url, {})


class Failure:
    def __init__(self, code: grpc.StatusCode, details: str = "it says") -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("call", "resource", "role"),
    [
        ("Publish", "projects/p/topics/t", "roles/pubsub.publisher"),
        ("StreamingPull", "projects/p/subscriptions/s", "roles/pubsub.subscriber"),
        ("Acknowledge", "projects/p/subscriptions/s", "roles/pubsub.subscriber"),
        ("GetTopic", "projects/p/topics/t", "roles/pubsub.viewer"),
        ("CreateTopic", "projects/p/topics/t", "roles/pubsub.editor"),
    ],
)
def test_a_missing_permission_names_the_role(call, resource, role):
    error = fault_of(Failure(grpc.StatusCode.PERMISSION_DENIED), CALLS[call], resource)
    assert isinstance(error, errors.PermissionDeniedError)
    assert role in str(error) and resource in str(error)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_code_has_an_error_that_says_whether_to_try_again(code):
    error = fault_of(Failure(code), CALLS["Publish"], "projects/p/topics/t")
    passing = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED"}
    passing |= {"ABORTED", "CANCELLED", "UNKNOWN", "OK", "OUT_OF_RANGE"}
    assert error.retryable is (code.name in passing)


def test_what_is_missing_need_not_be_what_the_call_was_about():
    missing = Failure(grpc.StatusCode.NOT_FOUND, "Resource not found (resource=orders).")
    create = CALLS["CreateSubscription"]
    error = fault_of(missing, create, "projects/p/subscriptions/billing")
    assert not isinstance(error, errors.SubscriptionNotFoundError)
    assert "orders" in str(error) and "billing" in str(error)
    publish = fault_of(missing, CALLS["Publish"], "projects/p/topics/orders")
    assert isinstance(publish, errors.TopicNotFoundError)
