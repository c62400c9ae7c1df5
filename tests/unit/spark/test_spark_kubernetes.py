"""Manifests for Kubernetes, held to its own schema: a field it does not know is an error."""

import gzip
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from penstock.errors import InvalidArgumentError
from penstock.spark.kubernetes import OnKubernetes, manifests, render
from tests.support.processes import command_here

SCHEMA = Path(__file__).parents[2] / "support/schemas/kubernetes-1.37.0.json.gz"
KINDS = {
    "ServiceAccount": "core.v1",
    "Role": "rbac.v1",
    "RoleBinding": "rbac.v1",
    "PersistentVolumeClaim": "core.v1",
    "Service": "core.v1",
    "ConfigMap": "core.v1",
    "Deployment": "apps.v1",
    "Pod": "core.v1",
}


def check(manifest):
    kind = manifest["kind"]
    schema = json.loads(gzip.decompress(SCHEMA.read_bytes()))
    whole = {"$ref": f"#/$defs/io.k8s.api.{KINDS[kind]}.{kind}", **schema}
    jsonschema.Draft202012Validator(whole).validate(manifest)


def made(**given):
    wanted = OnKubernetes(**{"image": "registry/penstock:1", "url": "nats://nats:4222", **given})
    return {one["kind"]: one for one in yaml.safe_load_all(render(wanted))}


def driver(found):
    return found["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def settings(found):
    words = driver(found)["args"]
    pairs = [words[at + 1] for at, word in enumerate(words) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_kubernetes_knows_every_field():
    found = made(arguments=["--stages", "metadata"], storage="1Ti")
    assert set(found) == set(KINDS) - {"Pod"}
    for one in found.values():
        check(one)
    check(yaml.safe_load(found["ConfigMap"]["data"]["executor.yaml"]))


def test_the_schema_refuses_what_kubernetes_does_not_know():
    found = made()
    driver(found)["imagee"] = "misspelt"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        check(found["Deployment"])


def test_what_is_printed_is_what_was_meant():
    wanted = OnKubernetes(
        image='a: "b"\n- #', url="nats://h", arguments=["", "yes", "-1", "ä: ß", "{}", "~"]
    )
    assert list(yaml.safe_load_all(render(wanted))) == manifests(wanted)


def test_executors_find_their_driver_by_the_name_and_ports_of_its_service():
    found = made(name="films", namespace="media")
    service, given = found["Service"], settings(found)
    assert given["spark.driver.host"] == "films.media.svc"
    ports = {port["name"]: str(port["port"]) for port in service["spec"]["ports"]}
    assert ports["driver"] == given["spark.driver.port"]
    assert ports["blocks"] == given["spark.driver.blockManager.port"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert given["spark.kubernetes.namespace"] == "media"


def test_driver_and_executors_see_the_same_folder():
    found = made()
    executor = yaml.safe_load(found["ConfigMap"]["data"]["executor.yaml"])["spec"]
    mounts = [
        {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for container in (driver(found), executor["containers"][0])
    ]
    assert mounts[0]["shared"] == mounts[1]["shared"]
    assert mounts[0]["templates"] in settings(found)["spark.kubernetes.executor.podTemplateFile"]
    words = driver(found)["args"]
    for option in ("--checkpoints", "--history", "--media"):
        assert words[words.index(option) + 1].startswith(mounts[0]["shared"] + "/")


def test_the_password_stays_in_its_secret():
    assert [one for one in driver(made())["env"] if one["name"] == "PENSTOCK_DATABASE"] == [
        {
            "name": "PENSTOCK_DATABASE",
            "valueFrom": {"secretKeyRef": {"name": "penstock", "key": "database"}},
        }
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": "My Jobs"}, {"secret": "-a"}, {"executors": 0}),
        *({"memory": "2q"}, {"memory": "2Gi"}, {"storage": "much"}, {"storage": "20g"}),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        OnKubernetes(image="i", url="nats://h", **wrong)


@pytest.mark.parametrize("url", ["local:///srv/data", "memory://", "pigeons://h"])
def test_a_broker_that_pods_cannot_reach_is_refused(url):
    with pytest.raises(InvalidArgumentError, match=url.partition(":")[0]):
        OnKubernetes(image="i", url=url)


def test_the_command_prints_them():
    words = ["--image", "i", "--url", "nats://h", "--executors", "5", "--", "--stages", "metadata"]
    ended = command_here("pipeline", "manifests", *words)
    found = {one["kind"]: one for one in yaml.safe_load_all(ended.out)}
    assert settings(found)["spark.executor.instances"] == "5"
    assert driver(found)["args"][-2:] == ["--stages", "metadata"]
