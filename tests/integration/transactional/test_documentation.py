"""The page's program runs; in real time, because a database does not wait for a virtual clock."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "outbox.md"


@pytest.mark.real_time
async def test_the_program_of_the_page_publishes(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec("\n".join(blocks), names)  # noqa: S102
    await names["main"]()
    assert capsys.readouterr().out == "published: 1\n"
