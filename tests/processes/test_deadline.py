"""A wait for a child ends with the time of the verb, as a failure of no runtime."""

from __future__ import annotations

import time

import pytest

from attnport.processes.isolated import Child, OutOfTime, end_s, ending_at, in_time

SILENT = ("-c", "import time; time.sleep(60)")


@pytest.mark.parametrize("memory_bytes", [None, 1 << 40])
def test_a_wait_for_a_silent_child_ends_with_the_time(memory_bytes: int | None) -> None:
    child = Child(1, SILENT, memory_bytes)
    try:
        began_s = time.monotonic()
        with ending_at(began_s + 0.5), pytest.raises(OutOfTime):
            child.receive(60.0)
        assert 0.5 <= time.monotonic() - began_s < 5
        assert child.alive
    finally:
        child.kill()


def test_it_is_no_exception_that_a_runtime_s_row_could_take_for_its_own() -> None:
    assert not issubclass(OutOfTime, Exception)


def test_there_is_no_limit_outside() -> None:
    in_time()
    with ending_at(time.monotonic() - 1):
        with pytest.raises(OutOfTime):
            in_time()
        with ending_at(None):
            in_time()
    in_time()
    assert end_s() == float("inf")
