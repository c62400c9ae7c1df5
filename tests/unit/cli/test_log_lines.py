"""Logs as JSON lines."""

import json
import logging

import pytest

from penstock.cli.apps.log_lines import JsonLines


def test_a_record_is_one_line_with_its_fields_and_its_error():
    record = logging.LogRecord("penstock.app", logging.INFO, __file__, 1, "got %r", ("x\ny",), None)
    record.message_id, record.odd = "order-1", {1, 2}
    try:
        raise ValueError("no\nprice")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    [line] = JsonLines().format(record).splitlines()
    read = json.loads(line)
    assert (read["level"], read["message"]) == ("INFO", "got 'x\\ny'")
    assert read["message_id"] == "order-1" and read["odd"] == [1, 2]
    assert read["error"].endswith("ValueError: no\nprice")
    assert read["time"].endswith("+00:00")
    # For people who look at it all the same.
    assert list(read)[:4] == ["time", "level", "logger", "message"]


class _Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("text", "given", "fields", "message"),
    [
        ("sent %s", ("bad\udcff.wav",), {}, "sent bad\\udcff.wav"),
        ("sent", (), {"odd": _Unshowable()}, "sent"),
        ("sent %d", ("many",), {}, "sent %d"),
        ("sent", (), {"level": "low", "time": "never", "logger": "me"}, "sent"),
    ],
    ids=["no-unicode", "unshowable", "misfit", "pretender"],
)
def test_whatever_is_logged_is_one_line_of_json(text, given, fields, message):
    record = logging.LogRecord("penstock.app", logging.INFO, __file__, 1, text, given, None)
    vars(record).update(fields)
    [line] = JsonLines().format(record).splitlines()
    read = json.loads(line)
    assert (read["level"], read["logger"], read["message"]) == ("INFO", "penstock.app", message)
    assert read["time"].endswith("+00:00")
