"""Async tests run in virtual time unless they ask for real time."""

import inspect

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
        if is_async and not item.get_closest_marker("real_time"):
            item.add_marker("virtual_time")
