"""The plugin as its users meet it."""

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import asyncio, time, pytest

    @pytest.mark.virtual_time
    async def test_virtual():
        await asyncio.sleep(3600)

    @pytest.fixture
    def answer():
        return 42

    @pytest.mark.virtual_time
    async def test_virtual_with_a_fixture(answer):
        assert answer == 42

    @pytest.mark.real_time
    async def test_real():
        before = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - before > 0.04

    @pytest.mark.virtual_time
    async def test_stuck():
        await asyncio.Event().wait()
"""


def test_marked_tests_run_and_a_hang_is_a_failure(pytester, monkeypatch):
    monkeypatch.setattr("penstock.testing.clock._STUCK_AFTER", 0.1)
    pytester.makepyfile(TESTS)
    result = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:timeout")
    passed, _, failed = result.listoutcomes()
    assert [report.nodeid.split("::")[1] for report in failed] == ["test_stuck"]
    assert len(passed) == 3
    assert "no timer is set" in str(failed[0].longrepr)


@pytest.mark.parametrize("wanted", [True, False])
def test_settings_may_ask_for_virtual_time_everywhere(pytester, wanted):
    pytester.makepyfile("""
        import asyncio, pytest
        from penstock.testing import VirtualTimeLoop

        async def test_plain():
            assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

        @pytest.mark.real_time
        async def test_real():
            assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    """)
    words = ("-p", "no:cacheprovider", "-o", f"penstock_virtual_time={wanted}")
    passed, _, failed = pytester.inline_run(*words).listoutcomes()
    assert (len(passed), len(failed)) == ((2, 0) if wanted else (1, 1))


@pytest.mark.real_time
async def test_this_suite_has_real_time_too():
    import time

    before = time.monotonic()
    await __import__("asyncio").sleep(0.02)
    assert time.monotonic() - before >= 0.015
