"""Logs of a process that keeps running, for people or for machines."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from select import select
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


def last_words(text: str) -> None:
    """A warning of a process that ends at once. It waits for no lock and no reader: whoever holds
    the one up may never let go of it."""
    record = logging.LogRecord("penstock.app", logging.WARNING, "", 0, text, (), None)
    for handler in logging.getLogger().handlers:
        line = f"{handler.format(record)}\n".encode()
        out = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        if select([], [out], [], 0.1)[1]:
            os.write(out, line)


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
