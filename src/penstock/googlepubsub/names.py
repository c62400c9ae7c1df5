"""Google's resource names, and what the broker calls the same things."""

from __future__ import annotations

import re
from functools import lru_cache

from penstock.config import check_name, split_name
from penstock.errors import InvalidArgumentError

TOPICS, SUBSCRIPTIONS, SNAPSHOTS, SCHEMAS = "topics", "subscriptions", "snapshots", "schemas"
DELETED_TOPIC = "_deleted-topic_"
DELETED_SCHEMA = "_deleted-schema_"

_PROJECT = re.compile(r"projects/([A-Za-z0-9][A-Za-z0-9.:_\-]{0,62})")
_RULES = "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names"
_MOST_REMEMBERED = 4096


class Names:
    """What is in the emulator's own project goes by its bare name in the broker, so that programs
    which use the broker directly find it there; the rest by `project/name`."""

    def __init__(self, project: str) -> None:
        self.project = project
        # Every call names something, mostly the same few.
        self.of = lru_cache(maxsize=_MOST_REMEMBERED)(self._of)
        self.resource = lru_cache(maxsize=_MOST_REMEMBERED)(self._resource)

    def _of(self, kind: str, resource: str, field: str) -> str:
        """The broker's name of `projects/P/kind/N`."""
        parts = resource.split("/")
        if len(parts) != 4 or parts[2] != kind or not _PROJECT.fullmatch("/".join(parts[:2])):
            raise _refused(kind, resource, field)
        try:
            check_name(kind, parts[3])
        except InvalidArgumentError:
            raise _refused(kind, resource, field) from None
        return parts[3] if parts[1] == self.project else f"{parts[1]}/{parts[3]}"

    def _resource(self, kind: str, name: str) -> str:
        project, within = split_name(name, self.project)
        return f"projects/{project}/{kind}/{within}"

    def project_of(self, resource: str, field: str) -> str:
        """The project of `projects/P`."""
        found = _PROJECT.fullmatch(resource)
        if found is None:
            raise _refused("projects", resource, field)
        return found[1]

    def is_in(self, project: str, name: str) -> bool:
        return split_name(name, self.project)[0] == project


def _refused(kind: str, resource: str, field: str) -> InvalidArgumentError:
    shown = resource if len(resource) <= 300 else f"{resource[:300]}…"
    form = "projects/P" if kind == "projects" else f"projects/P/{kind}/N"
    return InvalidArgumentError(
        f"Invalid [{kind}] name: (name={shown}), in {field}: it must be {form}. Refer to {_RULES} "
        "for more information."
    )
