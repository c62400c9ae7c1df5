"""Everything here runs on SQLite and on PostgreSQL."""

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return request.getfixturevalue("postgres").new_database()
