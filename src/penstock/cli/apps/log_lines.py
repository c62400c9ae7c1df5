"""Logs of a process that keeps running, for people or for machines."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

_CHATTY = ("httpx", "uvicorn", "nats")
_STANDARD = set(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}


def write_logs(level: str = "INFO", *, as_json: bool = False) -> None:
    """To standard error, from `level` on."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """One JSON object a line, with whatever fields a record was given: ids, attempts, seconds."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()
