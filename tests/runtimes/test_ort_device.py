"""ONNX Runtime timed on a device: the CPU provider computes from and to memory that a pretended device hands out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from pretended_gpu import HostDevice

from attnport.artifacts import DEVICE_PARTS, IOContract, Ran
from attnport.dims import Dim, TensorSpec
from attnport.errors import FeedError, UnavailableError, UsageError
from attnport.runtimes.base import GRAPH, STREAM
from attnport.runtimes.ort_cuda import OrtDeviceSession

ort = pytest.importorskip("onnxruntime")
IO = IOContract(
    (TensorSpec("x", "float32", ("B", 4)), TensorSpec("n", "int64", ("B",), high=9)),
    (TensorSpec("y", "float32", ("B", 4)), TensorSpec("m", "int64", ("B",))),
    (Dim("B", 1, 2, 64),),
)
HALF = "float16[B,4] x, int64[B] n) => (float16[B,4] y, int64[B] m) { y = Add(x, x) m = Add(n, n) }"
BF16 = "bfloat16[B,4] x, int64[B] n) => (bfloat16[B,4] y, int64[B] m) { y = Identity(x) m = Add(n, n) }"


class Opened:
    """Opens a model on the CPU; keeps the sessions and the options that each was opened with."""

    def __init__(self, body: str) -> None:
        self.model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> g ({body}').SerializeToString()
        self.options: list[dict[str, str]] = []
        self.problem: Exception | None = None
        self.runs: list[tuple[Any, Any]] = []

    def __call__(self, options: Mapping[str, str]) -> Any:
        if options and self.problem:
            raise self.problem
        self.options.append(dict(options))
        session = ort.InferenceSession(self.model, providers=["CPUExecutionProvider"])
        run = session.run_with_iobinding

        def recorded(binding: Any, run_options: Any = None) -> None:
            self.runs.append((binding, run_options))
            run(binding, run_options)

        session.run_with_iobinding = recorded
        return session


def made(body: str = HALF) -> tuple[OrtDeviceSession, HostDevice, Opened]:
    device, opened = HostDevice(), Opened(body)
    session = OrtDeviceSession(IO, opened, device, lambda session: Ran("GPU", "p", "fp16"), "cpu")  # type: ignore[arg-type]
    return session, device, opened


def feeds(batch: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(4 * batch, dtype=np.float32).reshape(batch, 4) / 3, "n": np.arange(batch) % 9}


def downloaded(device: HostDevice, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Copies of what the device gives back from now on."""
    found: list[np.ndarray] = []
    plain = device.download

    def download(array: np.ndarray, address: int) -> None:
        plain(array, address)
        found.append(array.copy())

    monkeypatch.setattr(device, "download", download)
    return found


@pytest.mark.parametrize("mode", [STREAM, GRAPH])
def test_a_timed_call_computes_on_the_device_from_these_inputs(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, device, _ = made()
    found = downloaded(device, monkeypatch)
    for batch in (2, 3, 1, 2):
        given = feeds(batch)
        given["x"] += batch
        assert session.run_timed(given, mode) == dict(zip(DEVICE_PARTS, (1000, 2001, 3002), strict=True))
        y, m = found[-2:]
        np.testing.assert_array_equal(y, 2 * given["x"].astype(np.float16))
        np.testing.assert_array_equal(m, 2 * given["n"])
        assert device.recorded == [0, 1, 2, 3]
    session.close()
    session.close()
    assert device.memory == {}
    assert device.closed == 1


def test_bfloat16_goes_through_as_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    session, device, _ = made(BF16)
    found = downloaded(device, monkeypatch)
    session.run_timed(feeds(3), STREAM)
    np.testing.assert_array_equal(found[0], feeds(3)["x"].astype(ml_dtypes.bfloat16))


def test_inputs_that_come_again_are_checked_and_converted_once_and_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    session, device, _ = made()
    found = downloaded(device, monkeypatch)
    converted: list[int] = []
    convert = session._in_own_types
    monkeypatch.setattr(session, "_in_own_types", lambda given: converted.append(1) or convert(given))
    given = feeds(2)
    for _ in range(3):
        session.run_timed(given, STREAM)
    assert len(converted) == 1
    other = {**given, "x": given["x"] + 1}
    session.run_timed(other, STREAM)
    assert len(converted) == 2
    np.testing.assert_array_equal(found[-2], 2 * other["x"].astype(np.float16))
    with pytest.raises(FeedError, match="x"):
        session.run_timed({**given, "x": given["x"][:, :3]}, STREAM)


def test_bindings_are_made_once_for_a_shape_and_a_graph_has_a_session_of_its_own() -> None:
    session, _, opened = made()
    for _ in range(3):
        session.run_timed(feeds(2), STREAM)
    assert opened.options == [{}]
    assert len(opened.runs) == 5  # one tells the shapes of outputs, one is the first with these buffers
    for _ in range(2):
        session.run_timed(feeds(2), GRAPH)
    assert opened.options == [{}, {"enable_cuda_graph": "1"}]
    assert len(opened.runs) == 8
    first = opened.runs[-1][1].get_run_config_entry("gpu_graph_id")
    session.run_timed(feeds(3), GRAPH)
    assert opened.runs[-1][1].get_run_config_entry("gpu_graph_id") != first
    timed = [options for _, options in opened.runs if options is not None]
    assert all(one.get_run_config_entry("disable_synchronize_execution_providers") == "1" for one in timed)


def test_what_cannot_be_captured_is_told_and_the_stream_goes_on() -> None:
    session, _, opened = made()
    opened.problem = RuntimeError("nodes have not been partitioned")
    with pytest.raises(UnavailableError, match=r"cannot capture it as a CUDA graph: .*partitioned"):
        session.run_timed(feeds(2), GRAPH)
    opened.problem = None
    with pytest.raises(UnavailableError, match="partitioned"):  # it is not tried again
        session.run_timed(feeds(2), GRAPH)
    session.run_timed(feeds(2), STREAM)
    with pytest.raises(UsageError, match="mode 'best'"):
        session.run_timed(feeds(2), "best")


def test_a_device_is_closed_where_the_model_does_not_open() -> None:
    device, opened = HostDevice(), Opened(HALF.replace("Add(x, x)", "Add(x)"))
    with pytest.raises(Exception, match="Add"):
        OrtDeviceSession(IO, opened, device, lambda session: Ran("GPU", "p", "fp16"), "cpu")  # type: ignore[arg-type]
    assert device.closed == 1
