"""Push subscriptions: what reaches an endpoint, and what its answers do."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from google.api_core import exceptions
from google.auth import jwt
from google.protobuf.field_mask_pb2 import FieldMask


class Endpoint:
    """Keeps what it is sent; answers with the first of `answers`, then 204."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                endpoint.requests.append((self.path, dict(self.headers.items()), body))
                self.send_response(endpoint.answers.pop(0) if endpoint.answers else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/push?token=1"

    def wait_for(self, count: int, within: float = 10) -> None:
        until = time.monotonic() + within
        while len(self.requests) < count:
            assert time.monotonic() < until, f"only {len(self.requests)} of {count} came"
            time.sleep(0.01)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    yield served
    served.close()


def pushing(google, endpoint, **options):
    push = {"push_endpoint": endpoint.url, **options.pop("push_config", {})}
    return google.pair(push_config=push, **options)


def stop(google, sub: str) -> None:
    google.subscriber.modify_push_config(request={"subscription": sub, "push_config": {}})


def test_a_message_is_pushed_in_googles_wrapper(google, endpoint):
    topic, sub = pushing(google, endpoint)
    [message_id] = google.publish(topic, "hello", kind="test")
    endpoint.wait_for(1)
    path, headers, body = endpoint.requests[0]
    sent = json.loads(body)
    message = sent["message"]
    assert path == "/push?token=1"
    assert headers["content-type"] == "application/json"
    assert sent["subscription"] == sub
    assert base64.b64decode(message["data"]) == b"hello"
    assert message["attributes"] == {"kind": "test"}
    assert message["messageId"] == message["message_id"] == message_id
    assert message["publishTime"] == message["publish_time"]
    assert message["publishTime"].endswith("Z")
    assert "deliveryAttempt" not in sent
    stop(google, sub)
    assert google.pull(sub) == []


def test_data_is_pushed_as_it_is_without_the_wrapper(google, endpoint):
    options = {"no_wrapper": {"write_metadata": True}}
    topic, sub = pushing(google, endpoint, push_config=options)
    [message_id] = google.publish(topic, "raw", kind="test", Host="evil")
    endpoint.wait_for(1)
    _, headers, body = endpoint.requests[0]
    assert body == b"raw"
    assert headers["x-goog-pubsub-message-id"] == message_id
    assert headers["x-goog-pubsub-subscription-name"] == sub
    assert headers["x-goog-pubsub-publish-time"].endswith("Z")
    assert headers["kind"] == "test"
    assert headers["Host"] != "evil"
    stop(google, sub)


def test_what_the_endpoint_refuses_comes_again(google, endpoint):
    endpoint.answers = [500, 302, 404]
    topic, sub = pushing(google, endpoint)
    google.publish(topic, "x")
    endpoint.wait_for(4)
    time.sleep(0.2)
    assert len(endpoint.requests) == 4
    stop(google, sub)
    assert google.pull(sub) == []


def test_a_push_that_fails_too_often_is_a_dead_letter(google, endpoint):
    endpoint.answers = [500] * 5
    dead = google.topic()
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    graveyard = google.subscription(dead)
    topic, sub = pushing(google, endpoint, dead_letter_policy=policy)
    google.publish(topic, "poison")
    endpoint.wait_for(5)
    assert [json.loads(body)["deliveryAttempt"] for *_, body in endpoint.requests] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip
    [letter] = google.pull_until(graveyard, 1)
    assert letter.message.data == b"poison"
    stop(google, sub)


def test_an_endpoint_that_cannot_be_reached_loses_nothing(google, endpoint):
    endpoint.close()
    topic, sub = pushing(google, endpoint)
    google.publish(topic, "kept")
    time.sleep(0.3)
    stop(google, sub)
    assert [m.message.data for m in google.pull_until(sub, 1)] == [b"kept"]


def test_keys_are_pushed_in_order_whatever_fails(google, endpoint):
    endpoint.answers = [500, 204, 500]
    topic, sub = pushing(google, endpoint, enable_message_ordering=True)
    google.publish(topic, *"abc", ordering_key="key")
    endpoint.wait_for(5)
    sent = [json.loads(body)["message"] for *_, body in endpoint.requests]
    assert [base64.b64decode(m["data"]).decode() for m in sent] == list("aabbc")
    assert {m["orderingKey"] for m in sent} == {"key"}
    stop(google, sub)


def test_a_token_says_who_pushes_and_to_whom(google, endpoint):
    account = "pusher@example.iam.gserviceaccount.com"
    oidc = {"oidc_token": {"service_account_email": account, "audience": "shop"}}
    topic, sub = pushing(google, endpoint, push_config=oidc)
    google.publish(topic, "x")
    endpoint.wait_for(1)
    kind, _, token = endpoint.requests[0][1]["authorization"].partition(" ")
    keys = httpx.get(f"http://{google.address}/oauth2/v1/certs").json()
    claims = jwt.decode(token, certs=keys, clock_skew_in_seconds=10**9)
    with pytest.raises(ValueError, match="signature"):
        jwt.decode(token[:-8] + "AAAAAAAA", certs=keys)
    assert kind == "Bearer"
    assert (claims["email"], claims["aud"]) == (account, "shop")
    assert claims["iss"] == "https://accounts.google.com"
    assert claims["email_verified"] and claims["exp"] > claims["iat"]
    stop(google, sub)


def test_a_push_subscription_is_not_pulled_until_it_pulls_again(google, endpoint):
    topic, sub = pushing(google, endpoint)
    error = google.refusal(google.pull, sub)
    assert isinstance(error, exceptions.FailedPrecondition)
    google.subscriber.update_subscription(
        request={"subscription": {"name": sub}, "update_mask": FieldMask(paths=["push_config"])}
    )
    google.publish(topic, "pulled")
    assert [m.message.data for m in google.pull_until(sub, 1)] == [b"pulled"]
    assert endpoint.requests == []


def test_a_deleted_push_subscription_pushes_no_more(google, endpoint):
    topic, sub = pushing(google, endpoint)
    google.publish(topic, "one")
    endpoint.wait_for(1)
    google.subscriber.delete_subscription(request={"subscription": sub})
    google.publish(topic, "two")
    time.sleep(0.2)
    assert len(endpoint.requests) == 1
