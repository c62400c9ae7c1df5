"""Apps described by AsyncAPI 3, held against its official schema."""

import gzip
import json
from pathlib import Path
from typing import Annotated

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from penstock import App, Attribute, Message, Reject, Router
from penstock.cli.apps import asyncapi as command
from penstock.consuming.asyncapi import describe
from penstock.errors import InvalidArgumentError
from tests.support.shop import Account, Invoice, Order, Parcel

SCHEMA = Path(__file__).parents[2] / "support/schemas/asyncapi-3.0.0.json.gz"


@pytest.fixture(scope="module")
def valid():
    official = json.loads(gzip.decompress(SCHEMA.read_bytes()))
    validator = jsonschema.Draft7Validator(official)

    def check(document):
        validator.validate(json.loads(json.dumps(document)))
        return document

    return check


def resolve(document, reference):
    found = document
    for part in reference["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_an_app_is_described_by_what_it_receives_and_sends(valid):
    app = App("nats://user:secret@nats.example:4222", title="Shop", version="2.1.0")

    @app.subscriber("orders", "billing", max_attempts=3)
    @app.publishes("invoices")
    async def bill(order: Order, tenant: Annotated[str, Attribute("tenant")]) -> Invoice | None:
        """Write an invoice."""

    document = valid(describe(app))
    assert document["info"] == {"title": "Shop", "version": "2.1.0"}
    assert document["servers"] == {"broker": {"host": "nats.example:4222", "protocol": "nats"}}
    assert "secret" not in json.dumps(document)
    assert {name: one["address"] for name, one in document["channels"].items()} == {
        "orders": "orders",
        "invoices": "invoices",
    }
    receive = document["operations"]["billing.receive"]
    assert (receive["action"], receive["description"]) == ("receive", "Write an invoice.")
    assert receive["x-penstock"]["dead-letters"] == "orders-dead"
    message = resolve(document, resolve(document, receive["messages"][0]))
    assert message["headers"]["required"] == ["tenant"]
    order = resolve(document, message["payload"])
    assert order["required"] == ["id"] and set(order["properties"]) == {"id", "customer"}
    send = document["operations"]["billing.send.invoices"]
    assert send["action"] == "send"
    invoice = resolve(document, resolve(document, send["messages"][0]))
    assert resolve(document, invoice["payload"])["properties"] == {"order": {"type": "integer"}}


def test_the_official_schema_refuses_what_is_none(valid):
    document = describe(App())
    valid(document)
    for broken in ({"asyncapi": "9"}, {"operations": {"x": {"action": "eat"}}}, {"info": {}}):
        with pytest.raises(jsonschema.ValidationError):
            valid({**document, **broken})


def test_bodies_of_every_kind_are_described(valid):
    app = App()
    kinds = [bytes, str, dict, Order, Parcel, Account, Order | None, list[Order], dict[str, Order]]
    kinds += [tuple[Order, ...], Account | None]
    for number, kind in enumerate(kinds):

        def handle(body: kind) -> None: ...

        app.subscriber(f"topic-{number}", f"sub-{number}")(handle)

    @app.subscriber("topic", "no-body")
    @app.publishes("raw")
    @app.publishes("packed", content_type="application/msgpack")
    def nothing(message: Message) -> list[Parcel] | Reject: ...

    document = valid(describe(app))
    assert "servers" not in document
    types = {message["contentType"] for message in document["components"]["messages"].values()}
    assert types == {
        "application/json", "application/msgpack", "application/octet-stream", "text/plain",
    }  # fmt: skip
    assert document["operations"]["sub-7.receive"]["x-penstock"]["batch"]
    packed = document["operations"]["no-body.send.packed"]["messages"][0]
    assert resolve(document, resolve(document, packed))["contentType"] == "application/msgpack"
    for operation in document["operations"].values():
        for message in operation["messages"]:
            assert resolve(document, resolve(document, message))["payload"]


def test_names_that_are_no_keys_are_described_by_ones_that_are(valid):
    router = Router()

    @router.subscriber("orders+eu~1", "billing%x")
    def bill(order: Order) -> None: ...

    app = App()
    app.include(router, prefix="a.")
    document = valid(describe(app))
    [channel] = document["channels"].values()
    assert channel["address"] == "a.orders+eu~1"
    [operation] = document["operations"].values()
    assert resolve(document, operation["channel"]) is channel


def test_the_same_body_with_other_headers_is_another_message(valid):
    app = App()

    @app.subscriber("orders", "billing")
    def bill(order: Order, tenant: Annotated[str, Attribute("tenant")] = "") -> None: ...

    @app.subscriber("orders", "shipping")
    def ship(order: Order) -> None: ...

    document = valid(describe(app))
    assert set(document["components"]["messages"]) == {"Order", "Order.2"}
    assert set(document["channels"]["orders"]["messages"]) == {"Order", "Order.2"}


def test_an_app_that_could_not_start_is_not_described():
    app = App()
    app.subscriber("orders", "billing")(lambda order: None)
    with pytest.raises(InvalidArgumentError, match="no annotation"):
        describe(app)


def test_the_command_prints_it_or_writes_it(tmp_path, monkeypatch, valid):
    (tmp_path / "asyncapi_shop.py").write_text(
        "from penstock import App\napp = App()\n"
        "@app.subscriber('orders', 'billing')\ndef bill(order: dict) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    cli = typer.Typer()
    cli.command()(command.asyncapi)
    printed = CliRunner().invoke(cli, ["asyncapi_shop:app"])
    assert printed.exit_code == 0, printed.output
    document = valid(json.loads(printed.stdout))
    assert document["info"]["title"] == "asyncapi_shop"
    assert CliRunner().invoke(cli, ["asyncapi_shop:app", "-o", "it.json"]).exit_code == 0
    assert json.loads((tmp_path / "it.json").read_text()) == document
