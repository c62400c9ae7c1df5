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
    """One JSON object a line, with whatever fields a record was given: ids, attempts, seconds.
    Whatever is logged, it is a line: whoever reads them by machine cannot read a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        # No field of a record can pretend to be one of these.
        hidden = _STANDARD | fields.keys()
        fields |= {key: value for key, value in vars(record).items() if key not in hidden}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(fields, enc_hook=str).decode()
        except Exception:
            # A name that is no UTF-8, or a value that cannot be shown.
            return msgspec.json.encode({key: _shown(fields[key]) for key in fields}).decode()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # Arguments that do not fit are a mistake of whoever logs; what it is about is still said.
        return str(record.msg)


def _shown(value: Any) -> str:
    try:
        text = str(value)
    except Exception as error:
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text.encode(errors="backslashreplace").decode()
