"""The example notebook runs from its first cell to its last, and draws."""

from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.timeout(600)
NOTEBOOK = Path(__file__).parents[3] / "examples" / "job_history.ipynb"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were shown, each with the titles of its parts."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = []

    def show():
        shown.append([(axes.get_title(), _marks(axes)) for axes in pyplot.gcf().axes])
        pyplot.close("all")

    monkeypatch.setattr(pyplot, "show", show)
    return shown


def _marks(axes):
    """Bars and points in it."""
    return len(axes.patches) + sum(len(line.get_xdata()) for line in axes.lines)


def test_the_notebook_draws_what_a_history_says(spark, drawn, capsys, monkeypatch):
    monkeypatch.delenv("PENSTOCK_HISTORY", raising=False)
    names = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(nbformat.read(NOTEBOOK, as_version=4).cells):
            if cell.cell_type == "code":
                exec(compile(cell.source, f"cell {number}", "exec"), names)  # noqa: S102
    finally:
        spark.sparkContext.setLogLevel("WARN")
    titles = [title for figure in drawn for title, _ in figure]
    assert titles == [
        "Jobs that reached a stage, by the hour",
        "Transcripts of audio: seconds, p50 to p95, by the hour",
        "Failures",
        "Retries",
        "Seconds until an event was published",
    ]
    assert all(marks > 0 for figure in drawn for _, marks in figure)
    assert names["table"].sum()["Queued"] == 400
    assert names["closed"].too_late.sum() > 0
    assert "hours_of_work" in capsys.readouterr().out
