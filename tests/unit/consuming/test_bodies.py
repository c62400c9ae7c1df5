"""Bodies by annotation and content type."""

import datetime
import enum
from typing import Any, TypedDict

import pytest

from penstock.consuming.bodies import MSGPACK, content_type_of, decoder_of, encode
from penstock.errors import InvalidArgumentError
from penstock.message import Record
from penstock.outcomes import Reject
from tests.support.shop import Account, Invoice, Order, Parcel


class Point(TypedDict):
    x: int


class Colour(enum.Enum):
    RED = "red"


def record(data, content_type=None):
    attributes = {"content-type": content_type} if content_type else {}
    return Record(1, "id", data, attributes, None, "topic", 0)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bytes, b"\xff\x00"),
        (str, "grüße"),
        (dict, {"id": 1}),
        (dict[str, int], {"id": 1}),
        (Point, {"x": 1}),
        (Order, Order(1)),
        (Parcel, Parcel(1)),
        (Account, Account(name="ann")),
        (Order | None, Order(2)),
        (Account | None, None),
        (int, 7),
        (tuple[Order, ...], (Order(1), Order(2))),
        (datetime.date, datetime.date(2026, 1, 1)),
        (Any, [1, {"a": None}]),
        (object, [1]),
    ],
    ids=str,
)
def test_a_body_of_every_kind_comes_back_as_it_went(kind, value):
    assert decoder_of(kind)(record(encode(value))) == value


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/cloudevents+json",
        "TEXT/JSON",
    ],
)
def test_json_has_many_names(content_type):
    assert decoder_of(Order)(record(b'{"id": 1}', content_type)) == Order(1)


@pytest.mark.parametrize("value", [Order(1), Parcel(1), Account(name="ann"), {"a": 1}, "text"])
@pytest.mark.parametrize("name", [MSGPACK, "application/x-msgpack", "application/vnd.x+msgpack"])
def test_msgpack_is_read_where_it_is_announced(value, name):
    kind = type(value) if type(value) is not str else str | None
    assert decoder_of(kind)(record(encode(value, MSGPACK), name)) == value


@pytest.mark.parametrize(
    ("kind", "data", "content_type", "said"),
    [
        (Order, b'{"id": "secret"}', None, "Expected `int`, got `str` - at `\\$.id`"),
        (Order, b"{", None, "truncated"),
        (Any, b"[" * 100_000, None, "recursion"),
        (Colour, b'"secret"', None, "Invalid enum value$"),
        (Order, b'{"id": 1}', "application/xml", "application/xml"),
        (str, b"secret \xff", None, "not UTF-8.*byte 7"),
        (Account, b'{"name": ["secret"]}', None, "name: string_type"),
        (Account, b"{", None, "json_invalid"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_its_reason_and_never_its_content(
    kind, data, content_type, said
):
    with pytest.raises(Reject, match="undecodable") as caught:
        decoder_of(kind)(record(data, content_type))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ValueError, match=f"(?i){said}"):
        raise caught.value.__cause__
    assert "secret" not in str(caught.value.__cause__)


class Unknown:
    pass


@pytest.mark.parametrize("kind", [Unknown, dict[str, Unknown], Unknown | None])
def test_a_kind_that_nothing_can_decode_is_refused_before_the_first_message(kind):
    with pytest.raises(InvalidArgumentError, match="Unknown"):
        decoder_of(kind)


def test_a_value_that_cannot_be_sent_is_refused_with_its_kind():
    for value in (Unknown(), {"a": Unknown()}, object()):
        with pytest.raises(InvalidArgumentError, match="cannot be the body"):
            encode(value)


def test_models_inside_other_values_are_sent_as_what_they_hold():
    assert encode({"account": Account(name="ann")}) == b'{"account":{"name":"ann"}}'
    assert encode(bytearray(b"x")) == b"x"


def test_kinds_have_content_types():
    assert content_type_of(bytes) == "application/octet-stream"
    assert content_type_of(str) == "text/plain"
    assert content_type_of(Invoice) == "application/json"
