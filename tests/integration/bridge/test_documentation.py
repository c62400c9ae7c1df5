"""The programs of the page run."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "bridge.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.real_time
async def test_the_program_of_the_page_is_heard(tmp_path, capsys):
    names = {}
    exec(BLOCKS[0], names)  # noqa: S102
    databases = (f"sqlite:///{tmp_path}/{name}.db" for name in ("api", "worker"))
    await names["main"](f"local://{tmp_path}/broker", *databases)
    assert capsys.readouterr().out == "heard of one user\n"


async def test_the_test_of_the_page_passes():
    names = {}
    exec(BLOCKS[1], names)  # noqa: S102
    await names["test_a_new_user_is_told"]()
