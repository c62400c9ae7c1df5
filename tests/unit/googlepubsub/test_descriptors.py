"""What we know of Google's protocol is what its own client knows."""

import runpy
import subprocess
import sys
from pathlib import Path

import google.pubsub_v1 as client
from google.iam.v1 import iam_policy_pb2

from penstock.googlepubsub.calls import IAM, PUBLISHER, RPCS, SCHEMAS, SUBSCRIBER
from penstock.googlepubsub.messages import message

ROOT = Path(__file__).parents[3]


def test_the_messages_are_those_of_the_installed_client():
    script = runpy.run_path(str(ROOT / "scripts/make_descriptors.py"))
    assert script["TARGET"].read_bytes() == script["descriptors"](), (
        "google-cloud-pubsub has changed; run scripts/make_descriptors.py"
    )


def test_bytes_mean_the_same_to_the_client_and_to_us():
    theirs = client.Schema(name="s", type_="AVRO", definition="d", revision_id="1")
    ours = message("Schema").FromString(client.Schema.serialize(theirs))
    assert (ours.name, ours.type, ours.definition, ours.revision_id) == ("s", 2, "d", "1")


def test_every_call_of_the_client_is_in_the_table():
    served = {(rpc.service, rpc.method) for rpc in RPCS}
    for service, calls in (
        (PUBLISHER, client.PublisherClient),
        (SUBSCRIBER, client.SubscriberClient),
        (SCHEMAS, client.SchemaServiceClient),
    ):
        transport = calls.get_transport_class()
        made = {n for n in dir(transport) if isinstance(getattr(transport, n), property)}
        kinds = {"kind", "grpc_channel", "operations_client", "host"}
        policies = {"get_iam_policy", "set_iam_policy", "test_iam_permissions"}
        assert {(service, name) for name in made - kinds - policies} <= served
        assert {(IAM, name) for name in policies} <= served
    methods = iam_policy_pb2.DESCRIPTOR.services_by_name["IAMPolicy"].methods
    assert len(RPCS) == 38 and len(methods) == 3


def test_importing_penstock_loads_neither_grpc_nor_google():
    program = (
        "import sys, penstock\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'grpc', 'google'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_emulator_does_not_load_googles_client():
    program = (
        "import sys, penstock.emulator\n"
        "print([m for m in ('google.pubsub_v1', 'httpx', 'fastavro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
