"""A bundle's reader captures calls of shapes that come again as CUDA graphs, and goes on where it cannot."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from pretended_gpu import HostDevice
from pretended_onnxruntime import CUDA, Pretended

from attnport_bundle.runtimes import cuda as reader_cuda
from attnport_bundle.runtimes import onnxruntime as reader
from attnport_bundle.runtimes.onnxruntime import GRAPHS, OnnxRuntimeSession

MODEL = '<ir_version: 10, opset_import: ["" : 23]> g (float[B,S] x, int64[B] n) => (float[B,S] y, int64[B] m) { %s }'
BODY = "y = Mul(x, x) m = Add(n, n)"


class Form:
    provider = CUDA


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_cuda, "Device", HostDevice)


def opened(problem: str = "", body: str = BODY) -> tuple[OnnxRuntimeSession, Pretended]:
    model = onnx.parser.parse_model(MODEL % body).SerializeToString()
    pretended = Pretended(model, problem)
    return OnnxRuntimeSession(pretended.module, Path("model.onnx"), Form, None), pretended  # type: ignore[arg-type]


def feeds(batch: int, seq: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {"x": random.standard_normal((batch, seq), np.float32), "n": random.integers(0, 9, batch)}


def right(session: OnnxRuntimeSession, given: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    found = session.run(given)
    np.testing.assert_array_equal(found["y"], given["x"] * given["x"])
    np.testing.assert_array_equal(found["m"], 2 * given["n"])
    return found


def test_shapes_that_come_again_are_captured_once_and_then_replayed_on_the_inputs_of_the_call() -> None:
    session, pretended = opened()
    assert pretended.opened[0]["enable_cuda_graph"] == "1"
    first = right(session, feeds(2, 8))
    assert pretended.captures == 0  # a shape of one call is not worth a graph
    found = [right(session, feeds(2, 8, seed)) for seed in range(1, 4)]
    assert (pretended.captures, pretended.replays) == (1, 2)
    np.testing.assert_array_equal(found[0]["y"], feeds(2, 8, 1)["x"] ** 2)  # not the memory of the graph
    np.testing.assert_array_equal(first["y"], feeds(2, 8)["x"] ** 2)
    right(session, feeds(1, 8))
    right(session, feeds(1, 8, 5))
    assert (pretended.captures, pretended.replays, len(pretended.opened)) == (2, 2, 1)
    assert {number for number in pretended.ids if number != "-1"} == {"1", "2"}


def test_no_more_shapes_are_captured_than_there_is_memory_for_and_none_that_is_empty() -> None:
    session, pretended = opened()
    for seq in range(GRAPHS + 4):
        for seed in range(3):
            right(session, feeds(2, seq, seed))
    assert pretended.captures == GRAPHS
    assert pretended.replays == GRAPHS
    for seq in (1, GRAPHS + 3):
        right(session, feeds(2, seq))
    assert (pretended.captures, pretended.replays) == (GRAPHS, GRAPHS + 1)


@pytest.mark.parametrize(("problem", "sessions"), [("opening", 1), ("capturing", 2), ("numbers", 2)])
def test_what_cannot_be_captured_runs_without_a_graph_and_without_an_error(problem: str, sessions: int) -> None:
    session, pretended = opened(problem)
    for seed in range(5):
        right(session, feeds(2, 8, seed))
    assert pretended.replays == 0
    assert len(pretended.opened) == sessions
    assert "enable_cuda_graph" not in pretended.opened[-1]
    session.close()


def test_a_call_that_is_refused_is_told_and_graphs_go_on() -> None:
    session, pretended = opened(body="y = Mul(x, x) m = Gather(n, n)")
    good = {"x": feeds(2, 8)["x"], "n": np.array([0, 1])}
    for _ in range(3):
        with pytest.raises(InvalidArgument, match="out of data bounds"):
            session.run({**good, "n": np.array([0, 9])})
    for _ in range(3):
        session.run(good)
    assert (pretended.captures, pretended.replays, len(pretended.opened)) == (1, 1, 1)


def test_tensors_of_the_caller_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    session, pretended = opened()
    monkeypatch.setattr(reader, "bound", lambda module, real, given, place: real.real_binding(given))
    session._session.real_binding = lambda given: _bound(session._session, given)
    for _ in range(3):
        session.run_device(feeds(2, 8))
    assert set(pretended.ids) == {"-1"}


def _bound(session: Any, given: dict[str, np.ndarray[Any, Any]]) -> Any:
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    real = binding.bind_output
    binding.bind_output = lambda name, place: real(name)
    return binding


def test_calls_of_several_threads_take_turns() -> None:
    session, pretended = opened()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for each in range(30):
                right(session, feeds(2, 8, 100 * seed + each))
        except BaseException as err:
            failed.append(err)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert pretended.captures == 1
