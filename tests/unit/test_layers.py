"""The contracts that import-linter keeps leave nobody out."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_but_connect_is_kept_from_the_adapters():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [one for one in settings["contracts"] if "adapters" in one["name"]]
    parts = {
        path.stem
        for path in (ROOT / "src/penstock").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    listed = {name.removeprefix("penstock.") for name in contract["source_modules"]}
    assert listed == parts - {"__init__", "connect", "brokers"}
