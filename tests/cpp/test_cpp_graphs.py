"""C++ on a pretended CUDA provider: calls of shapes that come again are captured as graphs where they can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cpp_builds import Build
from cpp_engines import OnCuda

Calls = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def calls(cpp_build: Build, app: Path, tmp_path: Path) -> Calls:
    """Runs calls on the pretended provider; gives what was noted of sessions and runs, and the outputs' digests."""
    on_cuda = OnCuda(cpp_build, app, tmp_path)

    def run(how: str, *sizes: str, problem: str = "") -> tuple[list[str], list[str]]:
        found, noted = on_cuda.run("captured", how, *sizes, PRETENDED_GRAPHS=problem)
        if how == "run":
            assert found == cpp_build.run("captured", app, "ort_cpu", how, *sizes).stdout
        return noted, found.splitlines()

    return run


def test_the_second_call_of_a_shape_is_captured_and_later_ones_replay_it_on_their_own_inputs(calls: Calls) -> None:
    noted, digests = calls("run", "2,8,0", "2,8,1", "2,8,2", "1,8,0", "2,8,3", "1,8,1", "1,8,2")
    assert noted == [
        "session 1", "plain", "plain", "graph 1", "graph 1", "plain", "graph 1", "plain", "graph 2", "graph 2",
    ]  # fmt: skip
    assert len(set(digests)) == 7


def test_no_more_than_eight_shapes_are_captured(calls: Calls) -> None:
    noted, _ = calls("run", *(f"1,{length},{seed}" for length in range(1, 11) for seed in range(3)))
    assert noted.count("session 1") == 1
    assert {line for line in noted if line.startswith("graph")} == {f"graph {number}" for number in range(1, 9)}
    assert noted[-6:] == ["plain"] * 6


@pytest.mark.parametrize(
    ("problem", "sessions"),
    [("opening", ["session 0"]), ("capturing", ["session 1", "session 0"]), ("numbers", ["session 1", "session 0"])],
)
def test_what_cannot_be_captured_runs_without_a_graph(calls: Calls, problem: str, sessions: list[str]) -> None:
    noted, _ = calls("run", *(f"2,8,{seed}" for seed in range(4)), problem=problem)
    assert [line for line in noted if line.startswith("session")] == sessions
    assert noted[-2:] == ["plain", "plain"]


def test_a_call_that_onnxruntime_refuses_is_told_and_graphs_go_on(calls: Calls) -> None:
    noted, found = calls("map", *(f"2,8,{seed}" for seed in range(6)), problem="calling")
    assert ["a value is out of bounds" in line for line in found] == [True] * 3 + [False] * 3
    assert noted == ["session 1", "plain", "plain", "plain", "plain", "plain", "graph 1", "graph 1"]


def test_items_are_padded_to_multiples_of_eight_so_that_shapes_come_again(calls: Calls) -> None:
    noted, _ = calls("map", "2,5,0", "2,6,1", "2,7,2")
    assert noted == ["session 1", "plain", "plain", "graph 1", "graph 1"]
