"""Who speaks where: roles of channels and speakers, by opaque ids."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from penstock.media.errors import MediaError


class SpeakerRole(StrEnum):
    # No docstring: it would become part of the schema of the messages that carry it.
    HOST = "host"
    GUEST = "guest"
    NARRATOR = "narrator"
    UNKNOWN = "unknown"


# Ids, not names of people: no spaces and no @, so a name or an address does not slip in.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}|[_-][A-Za-z0-9_.:-]{1,127}")
_ROLES = tuple(role.value for role in SpeakerRole)
_MOST = 100_000
_LARGEST_FILE = 16 << 20


class SpeakerRoleRegistry:
    """Roles by channel or speaker id; what is not listed is `"unknown"`.

    [channels]
    UC_x5XG1OV2P6uZZ5FSM9Ttw = "host"
    [speakers]
    spk-17 = "guest"
    """

    def __init__(
        self,
        channels: Mapping[str, str] | None = None,
        speakers: Mapping[str, str] | None = None,
    ) -> None:
        self._channels = _checked(channels or {}, "channels")
        self._speakers = _checked(speakers or {}, "speakers")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> SpeakerRoleRegistry:
        unknown = sorted(set(data) - {"channels", "speakers"})
        if unknown:
            raise _wrong(f"unknown table {unknown[0]!r}; there are `channels` and `speakers`")
        return cls(data.get("channels"), data.get("speakers"))

    @classmethod
    def load(cls, path: Path | str) -> SpeakerRoleRegistry:
        """From a .toml or .json file."""
        path = Path(path)
        try:
            if path.stat().st_size > _LARGEST_FILE:
                raise _wrong(f"{path} is larger than {_LARGEST_FILE:,} bytes")
            text = path.read_text("utf-8")
            if path.suffix == ".json":
                data = msgspec.json.decode(text, type=dict[str, Any])
            else:
                data = tomllib.loads(text)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise _wrong(f"{path} cannot be read: {error}") from error
        return cls.from_mapping(data)

    def role(self, *, channel: str | None = None, speaker: str | None = None) -> SpeakerRole:
        """The speaker's role, else the channel's, else `"unknown"`."""
        if speaker is not None and speaker in self._speakers:
            return self._speakers[speaker]
        if channel is not None:
            return self._channels.get(channel, SpeakerRole.UNKNOWN)
        return SpeakerRole.UNKNOWN

    def __len__(self) -> int:
        return len(self._channels) + len(self._speakers)


def _checked(table: Any, name: str) -> dict[str, SpeakerRole]:
    if not isinstance(table, Mapping):
        raise _wrong(f"`{name}` is a table of ids and roles")
    if len(table) > _MOST:
        raise _wrong(f"`{name}` holds more than {_MOST:,} ids")
    for key, role in table.items():
        if not isinstance(key, str) or not _ID.fullmatch(key):
            raise _wrong(f"`{name}` has a key that is no id: letters, digits and _ . : - only")
        if role not in _ROLES:
            raise _wrong(f"`{name}.{key}` is none of {', '.join(_ROLES)}")
    return {key: SpeakerRole(role) for key, role in table.items()}


def _wrong(what: str) -> MediaError:
    return MediaError("configuration", f"Speaker roles: {what}")
