"""Google's REST surface, on the same port."""

import asyncio
import base64
import gc
import http.client
import json
import socket

import pytest

from penstock.emulator import Emulator
from penstock.testing import eventually


@pytest.fixture
def rest(google):
    """Requests on one connection; answers are status and decoded body."""
    connection = http.client.HTTPConnection(google.address, timeout=20)

    def call(verb: str, path: str, body: object = None):
        content = json.dumps(body) if body is not None else None
        connection.request(verb, path, content)
        answer = connection.getresponse()
        text = answer.read().decode()
        is_json = answer.headers["content-type"].startswith("application/json")
        return answer.status, json.loads(text) if is_json and text else text

    yield call
    connection.close()


def test_probes_are_answered(rest):
    assert rest("GET", "/") == (200, "Ok\n")
    assert rest("GET", "/healthz") == (200, "ok\n")
    assert rest("HEAD", "/") == (200, "")


def test_a_message_goes_round(google, rest):
    topic, sub = google.path("topics"), google.path("subscriptions")
    assert rest("PUT", f"/v1/{topic}", {"labels": {"a": "b"}})[0] == 200
    made = {"topic": topic, "ackDeadlineSeconds": 20, "retryPolicy": {"minimumBackoff": "3.5s"}}
    status, shown = rest("PUT", f"/v1/{sub}", made)
    assert status == 200
    assert shown["ackDeadlineSeconds"] == 20
    assert shown["retryPolicy"] == {"minimumBackoff": "3.500s", "maximumBackoff": "600s"}
    data = base64.b64encode(b"hello").decode()
    messages = [{"data": data, "attributes": {"k": "v"}, "orderingKey": "key"}]
    status, published = rest("POST", f"/v1/{topic}:publish", {"messages": messages})
    assert status == 200
    status, pulled = rest("POST", f"/v1/{sub}:pull", {"maxMessages": 10})
    [received] = pulled["receivedMessages"]
    message = received["message"]
    assert message["data"] == data and message["attributes"] == {"k": "v"}
    assert [message["messageId"]] == published["messageIds"]
    assert message["orderingKey"] == "key" and message["publishTime"].endswith("Z")
    acks = {"ackIds": [received["ackId"]]}
    assert rest("POST", f"/v1/{sub}:modifyAckDeadline", {**acks, "ackDeadlineSeconds": 30}) == (
        200,
        {},
    )
    assert rest("POST", f"/v1/{sub}:acknowledge", acks) == (200, {})
    pull_now = {"maxMessages": 1, "returnImmediately": True}
    assert rest("POST", f"/v1/{sub}:pull", pull_now) == (200, {})


def test_resources_are_listed_changed_and_deleted(google, rest):
    topic, sub = google.pair()
    google.topic()  # Two at least, whatever other tests have made.
    project = f"/v1/projects/{google.project}"
    status, listed = rest("GET", f"{project}/topics?pageSize=1&prettyPrint=true")
    assert status == 200 and len(listed["topics"]) == 1
    status, more = rest("GET", f"{project}/topics?pageSize=1&pageToken={listed['nextPageToken']}")
    assert more["topics"][0]["name"] > listed["topics"][0]["name"]
    assert rest("GET", f"/v1/{topic}/subscriptions") == (200, {"subscriptions": [sub]})
    change = {
        "subscription": {"ackDeadlineSeconds": 44, "labels": {"x": "y"}},
        "updateMask": "ackDeadlineSeconds,labels",
    }
    status, changed = rest("PATCH", f"/v1/{sub}", change)
    assert (changed["ackDeadlineSeconds"], changed["labels"]) == (44, {"x": "y"})
    assert rest("GET", f"/v1/{sub}")[1]["ackDeadlineSeconds"] == 44
    assert rest("DELETE", f"/v1/{sub}") == (200, {})
    assert rest("GET", f"/v1/{sub}")[0] == 404


def test_schemas_policies_and_snapshots_are_there(google, rest):
    topic, sub = google.pair()
    project = f"/v1/projects/{google.project}"
    definition = {"type": "AVRO", "definition": '{"type": "string"}'}
    status, schema = rest("POST", f"{project}/schemas?schemaId=rest-schema", definition)
    assert status == 200 and schema["name"].endswith("/rest-schema")
    check = {"schema": definition, "message": "Img=", "encoding": "JSON"}
    assert rest("POST", f"{project}/schemas:validateMessage", check)[0] == 400
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": ["user:a@b.c"]}]}}
    assert rest("POST", f"/v1/{topic}:setIamPolicy", policy) == (200, policy["policy"])
    assert rest("GET", f"/v1/{topic}:getIamPolicy") == (200, policy["policy"])
    snapshot = google.path("snapshots")
    status, made = rest("PUT", f"/v1/{snapshot}", {"subscription": sub})
    assert status == 200 and made["topic"] == topic
    assert rest("POST", f"/v1/{sub}:seek", {"snapshot": snapshot}) == (200, {})


def test_mistakes_are_answered_as_google_does(google, rest):
    status, body = rest("GET", f"/v1/projects/{google.project}/topics/missing")
    assert (status, body["error"]["code"], body["error"]["status"]) == (404, 404, "NOT_FOUND")
    assert "Resource not found" in body["error"]["message"]
    topic = google.topic()
    assert rest("PUT", f"/v1/{topic}", {})[1]["error"]["status"] == "ALREADY_EXISTS"
    status, body = rest("PUT", f"/v1/{google.path('topics')}", {"colour": "red"})
    assert status == 400 and "colour" in body["error"]["message"]
    status, body = rest("GET", f"/v1/projects/{google.project}/topics?pageSize=many")
    assert status == 400 and "pageSize" in body["error"]["message"]
    assert rest("GET", "/v2/nothing")[0] == 404
    assert rest("PUT", f"/v1/projects/{google.project}/topics/goog")[0] == 400


@pytest.mark.parametrize("body", [b"123", b"null", b"[]", b'"text"', b"[" * 100_000, b"\xff", b"{"])
def test_a_body_that_is_no_object_is_a_mistake_of_the_caller(google, body):
    connection = http.client.HTTPConnection(google.address, timeout=20)
    connection.request("POST", f"/v1/{google.topic()}:publish", body)
    answer = connection.getresponse()
    assert (answer.status, b"Invalid JSON payload" in answer.read()) == (400, True)
    connection.close()


def test_parameters_are_read_and_those_of_the_api_left_out(google, rest):
    topics = f"/v1/projects/{google.project}/topics"
    status, body = rest("GET", f"{topics}?pageSize=1&pageSize.x=2")
    assert status == 400 and "pageSize" in body["error"]["message"]
    assert rest("GET", f"{topics}?alt=json&prettyPrint=false&upload_protocol=x&key=k")[0] == 200


def stranger_to(google) -> socket.socket:
    host, port = google.address.split(":")
    return socket.create_connection((host, int(port)), 20)


def test_a_target_that_is_none_is_refused_and_not_kept_waiting(google):
    with stranger_to(google) as stranger:
        stranger.sendall(b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n")
        assert stranger.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_who_asks_before_a_large_body_is_told_to_go_on(google):
    topic, body = google.topic(), b'{"messages": [{"data": "YQ=="}]}'
    with stranger_to(google) as stranger:
        head = f"POST /v1/{topic}:publish HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        stranger.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        assert stranger.recv(65536).startswith(b"HTTP/1.1 100 ")
        stranger.sendall(body)
        assert stranger.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_who_sends_ahead_of_the_answers_is_made_to_wait(unhurried):
    _, sub = unhurried.pair()
    body = b'{"maxMessages": 1}'
    head = f"POST /v1/{sub}:pull HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with stranger_to(unhurried) as stranger:
        stranger.settimeout(1)  # less than an empty pull takes
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                stranger.sendall((head.encode() + body) * 1000)


def test_who_reads_no_answers_is_asked_for_no_more_requests(google):
    with stranger_to(google) as stranger:
        stranger.settimeout(3)
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                stranger.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 10_000)


def test_exactly_once_a_refused_ack_says_why_of_each_id(google, rest):
    topic, sub = google.pair(enable_exactly_once_delivery=True)
    google.publish(topic, "x")
    [received] = google.pull(sub)
    google.ack(sub, received)
    status, body = rest("POST", f"/v1/{sub}:acknowledge", {"ackIds": [received.ack_id]})
    [info] = body["error"]["details"]
    assert (status, info["@type"]) == (400, "type.googleapis.com/google.rpc.ErrorInfo")
    assert info["reason"] == "EXACTLY_ONCE_ACKID_FAILURE"
    assert info["metadata"] == {received.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}


def test_what_is_no_http_is_refused_and_others_are_served(google, rest):
    for nonsense in (b"\x00\x01\x02\x03\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"P" * 100_000):
        with stranger_to(google) as stranger:
            stranger.sendall(nonsense)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
    assert rest("GET", "/") == (200, "Ok\n")


def test_a_body_beyond_the_limit_is_refused(google):
    connection = http.client.HTTPConnection(google.address, timeout=20)
    connection.putrequest("POST", f"/v1/{google.topic()}:publish")
    connection.putheader("content-length", str(40 * 2**20))
    connection.endheaders()
    try:
        for _ in range(40):
            connection.send(b"x" * 2**20)
    except OSError:
        pass  # it does not have to read on
    else:
        assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.real_time
async def test_a_connection_that_has_ended_is_forgotten():
    async with Emulator() as emulator:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"ok\n")
            writer.close()
        assert emulator._front is not None
        gc.collect()
        await eventually(lambda: not emulator._front._open)
