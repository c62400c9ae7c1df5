"""What an address says: pubsub://PROJECT?endpoint=HOST:PORT&credentials=FILE&compression=gzip"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from penstock.config import check_name
from penstock.errors import InvalidArgumentError

_GOOGLE = "pubsub.googleapis.com:443"
_KNOWN = ("endpoint", "emulator", "credentials", "compression")


@dataclass(frozen=True, kw_only=True, slots=True)
class GoogleOptions:
    """`plain`: neither TLS nor credentials, as emulators want it. `credentials`: a file of
    Google's; without one, what the environment offers (Application Default Credentials)."""

    project: str
    endpoint: str = _GOOGLE
    plain: bool = False
    credentials: str | None = None
    compression: bool = False

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str] = os.environ) -> GoogleOptions:
        """`emulator=HOST:PORT`, or PUBSUB_EMULATOR_HOST when no endpoint is named, leads to an
        emulator."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = [name for name in options if name not in _KNOWN]
        if unknown:
            raise InvalidArgumentError(
                f"pubsub:// has no option {unknown[0]!r}; it has {', '.join(_KNOWN)}"
            )
        compression = options.get("compression", "")
        if compression not in ("", "gzip"):
            raise InvalidArgumentError(f"compression can be gzip, not {compression!r}")
        emulator = options.get("emulator", "")
        if not emulator and "endpoint" not in options:
            emulator = environ.get("PUBSUB_EMULATOR_HOST", "")
        # Some write it as a URL.
        emulator = emulator.removeprefix("http://").rstrip("/")
        return cls(
            project=_project(parts.netloc, parts.path),
            endpoint=emulator or options.get("endpoint") or _GOOGLE,
            plain=bool(emulator),
            credentials=options.get("credentials"),
            compression=bool(compression),
        )


def _project(netloc: str, path: str) -> str:
    if path.strip("/") or not netloc:
        raise InvalidArgumentError("A Google broker's address is pubsub://PROJECT")
    try:
        check_name("Project", f"{netloc}/any")
    except InvalidArgumentError:
        raise InvalidArgumentError(f"{netloc!r} cannot be a project of Google's") from None
    return netloc
