"""Logs as JSON lines."""

import json
import logging

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
