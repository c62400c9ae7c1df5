"""Manifests for the pipeline on Kubernetes: a driver that is kept running, and executors that it
asks for. Nothing secret is in them: the database's address is read from a Secret of yours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.connect import check_shared, scheme_of
from penstock.errors import InvalidArgumentError

Manifest: TypeAlias = dict[str, Any]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
# As Spark and Kubernetes write them.
_SIZES = {
    "memory": (re.compile(r"[1-9]\d*[kmgt]", re.I), "512m or 2g"),
    "storage": (re.compile(r"[1-9]\d*([KMGTPE]i|[kMGTPE])?"), "20Gi or 500G"),
}
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
# Where the volume is that driver and executors share, and the template of executors.
_SHARED = "/shared"
_TEMPLATES = "/templates"
_DRIVER_PORT, _BLOCKS_PORT = 7078, 7079
# What the driver's drain takes, and some to end in.
_GRACE = 90
# Not root; the user of Spark's own images.
_USER = 185


@dataclass(frozen=True, kw_only=True)
class OnKubernetes:
    """`image`: Spark 4.3 with Penstock installed in its Python. `secret`: a Secret whose key
    `database` holds the address of the jobs. `executors`: how many, each with so many `cores` and
    so much `memory`. `storage`: of the volume for checkpoints, history and media. `arguments`: more
    for `penstock pipeline run`."""

    image: str
    url: str
    name: str = "penstock-pipeline"
    namespace: str = "default"
    secret: str = "penstock"  # noqa: S105
    executors: int = 2
    cores: int = 1
    memory: str = "2g"
    storage: str = "20Gi"
    arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        for what in ("name", "namespace", "secret"):
            if not _NAME.fullmatch(getattr(self, what)):
                raise InvalidArgumentError(
                    f"{what} must be a name of Kubernetes, a-z, 0-9 and hyphens, not "
                    f"{getattr(self, what)!r}"
                )
        if min(self.executors, self.cores) < 1:
            raise InvalidArgumentError("executors and cores must be at least 1")
        for what, (form, example) in _SIZES.items():
            if not form.fullmatch(getattr(self, what)):
                raise InvalidArgumentError(
                    f"{what} must be a size, as {example}, not {getattr(self, what)!r}"
                )
        check_shared(self.url)
        if scheme_of(self.url) == "local":
            raise InvalidArgumentError(
                "local:// is a server of one machine, and pods run on several; set url to "
                "nats://host of a server that all of them reach"
            )


def render(wanted: OnKubernetes) -> str:
    """All manifests, as YAML for `kubectl apply -f -`."""
    made = manifests(wanted)
    return "".join(f"---\n{_yaml(one)}" for one in made)


def manifests(wanted: OnKubernetes) -> list[Manifest]:
    return [
        _object(wanted, "v1", "ServiceAccount"),
        _role(wanted),
        _role_binding(wanted),
        _claim(wanted),
        _service(wanted),
        _templates(wanted),
        _deployment(wanted),
    ]


def _object(wanted: OnKubernetes, version: str, kind: str, **parts: Any) -> Manifest:
    labels = {"app.kubernetes.io/name": wanted.name}
    metadata = {"name": wanted.name, "namespace": wanted.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _role(wanted: OnKubernetes) -> Manifest:
    """What the driver may do: make executors, and clean up after them."""
    verbs = ["create", "get", "list", "watch", "update", "patch", "delete", "deletecollection"]
    resources = ["pods", "services", "configmaps", "persistentvolumeclaims"]
    rule = {"apiGroups": [""], "resources": resources, "verbs": verbs}
    return _object(wanted, "rbac.authorization.k8s.io/v1", "Role", rules=[rule])


def _role_binding(wanted: OnKubernetes) -> Manifest:
    group = "rbac.authorization.k8s.io"
    return _object(
        wanted,
        f"{group}/v1",
        "RoleBinding",
        roleRef={"apiGroup": group, "kind": "Role", "name": wanted.name},
        subjects=[
            {"kind": "ServiceAccount", "name": wanted.name, "namespace": wanted.namespace},
        ],
    )


def _claim(wanted: OnKubernetes) -> Manifest:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": wanted.storage}},
    }
    return _object(wanted, "v1", "PersistentVolumeClaim", spec=spec)


def _service(wanted: OnKubernetes) -> Manifest:
    """A name for the driver, which executors call back."""
    ports = {"driver": _DRIVER_PORT, "blocks": _BLOCKS_PORT}
    spec = {
        "clusterIP": "None",
        "selector": _selector(wanted),
        "ports": [{"name": name, "port": port} for name, port in ports.items()],
    }
    return _object(wanted, "v1", "Service", spec=spec)


def _templates(wanted: OnKubernetes) -> Manifest:
    executor = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "securityContext": _pod_security(),
            "containers": [
                {
                    "name": "executor",
                    "securityContext": _container_security(),
                    "volumeMounts": [{"name": "shared", "mountPath": _SHARED}],
                }
            ],
            "volumes": [_shared_volume(wanted)],
        },
    }
    return _object(wanted, "v1", "ConfigMap", data={"executor.yaml": _yaml(executor)})


def _deployment(wanted: OnKubernetes) -> Manifest:
    labels = _selector(wanted)
    template = {"metadata": {"labels": labels}, "spec": _driver(wanted)}
    spec = {
        "replicas": 1,
        # A second driver would do the same work again.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": template,
    }
    return _object(wanted, "apps/v1", "Deployment", spec=spec)


def _driver(wanted: OnKubernetes) -> Manifest:
    secret = {"secretKeyRef": {"name": wanted.secret, "key": "database"}}
    return {
        "serviceAccountName": wanted.name,
        "terminationGracePeriodSeconds": _GRACE,
        "securityContext": _pod_security(),
        "containers": [
            {
                "name": "driver",
                "image": wanted.image,
                "command": ["penstock", "pipeline", "run"],
                "args": [*_arguments(wanted), *wanted.arguments],
                "env": [
                    {"name": "PENSTOCK_URL", "value": wanted.url},
                    {"name": "PENSTOCK_DATABASE", "valueFrom": secret},
                    {
                        "name": "POD_NAME",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                    },
                ],
                "ports": [{"containerPort": _DRIVER_PORT}, {"containerPort": _BLOCKS_PORT}],
                "resources": {
                    "requests": {"cpu": "500m", "memory": "2Gi"},
                    "limits": {"memory": "2Gi"},
                },
                "securityContext": _container_security(),
                "volumeMounts": [
                    {"name": "shared", "mountPath": _SHARED},
                    {"name": "templates", "mountPath": _TEMPLATES},
                ],
            }
        ],
        "volumes": [
            _shared_volume(wanted),
            {"name": "templates", "configMap": {"name": wanted.name}},
        ],
    }


def _arguments(wanted: OnKubernetes) -> list[str]:
    given = {
        "master": "k8s://https://kubernetes.default.svc",
        "media": f"{_SHARED}/media",
        "checkpoints": f"{_SHARED}/checkpoints",
        "history": f"{_SHARED}/history",
    }
    settings = _settings(wanted)
    return [
        *(word for name, value in given.items() for word in (f"--{name}", value)),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
    ]


def _settings(wanted: OnKubernetes) -> Mapping[str, object]:
    return {
        "spark.driver.host": f"{wanted.name}.{wanted.namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104
        "spark.driver.port": _DRIVER_PORT,
        "spark.driver.blockManager.port": _BLOCKS_PORT,
        "spark.executor.instances": wanted.executors,
        "spark.executor.cores": wanted.cores,
        "spark.executor.memory": wanted.memory,
        "spark.authenticate": "true",
        "spark.kubernetes.namespace": wanted.namespace,
        "spark.kubernetes.container.image": wanted.image,
        # Executors go when their driver goes.
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": f"{_TEMPLATES}/executor.yaml",
    }


def _selector(wanted: OnKubernetes) -> dict[str, str]:
    return {"app.kubernetes.io/name": wanted.name, "app.kubernetes.io/component": "driver"}


def _shared_volume(wanted: OnKubernetes) -> Manifest:
    return {"name": "shared", "persistentVolumeClaim": {"claimName": wanted.name}}


def _pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Manifest:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _yaml(value: Manifest, indent: str = "") -> str:
    """Texts are quoted as JSON does, which YAML reads alike; so are keys that need it."""
    return "".join(
        f"{indent}{_key(key)}:{_part(part, indent + '  ')}" for key, part in value.items()
    )


def _part(part: Any, indent: str) -> str:
    if isinstance(part, dict) and part:
        return f"\n{_yaml(part, indent)}"
    if isinstance(part, list) and part:
        return "\n" + "".join(f"{indent}-{_item(one, indent + '  ')}" for one in part)
    return f" {json.dumps(part)}\n"


def _item(item: Any, indent: str) -> str:
    """What stands behind a dash: a mapping begins on the same line."""
    if isinstance(item, dict) and item:
        return f" {_yaml(item, indent).removeprefix(indent)}"
    return _part(item, indent)


def _key(key: str) -> str:
    return key if _PLAIN.fullmatch(key) else json.dumps(key)
