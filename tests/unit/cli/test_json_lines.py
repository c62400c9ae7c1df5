"""What `--json` writes."""

import io
import sys

from penstock.cli.brokers.broker import print_json


def test_a_line_is_there_for_whoever_reads_through_a_pipe_as_soon_as_it_is_written(monkeypatch):
    pipe = io.BytesIO()
    buffered = io.TextIOWrapper(io.BufferedWriter(pipe), write_through=False)
    monkeypatch.setattr(sys, "stdout", buffered)
    print_json({"stage": "Queued"})
    assert pipe.getvalue() == b'{"stage":"Queued"}\n'
