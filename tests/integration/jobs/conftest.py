"""Flows run on every pair of a broker and a database that users will choose."""

import pytest

from tests.support.job_scenes import Place


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture(params=["memory+sqlite", "jetstream+sqlite", "jetstream+postgresql"])
def place(request, tmp_path) -> Place:
    """Where a job system lives."""
    broker, _, database = request.param.partition("+")
    if database == "sqlite":
        address = f"sqlite:///{tmp_path}/jobs.db"
    else:
        address = request.getfixturevalue("postgres").new_database()
    url = "memory://" if broker == "memory" else f"local://{tmp_path}/broker"
    return Place(url, address)


@pytest.fixture
def quick(tmp_path) -> Place:
    """The quickest place, for what does not depend on it."""
    return Place("memory://", f"sqlite:///{tmp_path}/jobs.db")
