"""A TensorRT call timed by events and as a CUDA graph, on a pretended device: what is shown is what we ask of it."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretended_engine import VERSION
from pretended_gpu import Context, Engine, HostDevice, trt
from test_tensorrt import RUNTIME, feeds, opening

from attnport.artifacts import DEVICE_PARTS
from attnport.errors import FeedError, UnavailableError, UsageError
from attnport.runtimes import _cuda, base


@pytest.fixture
def session(device: HostDevice, engine: Path) -> Any:
    return RUNTIME.open(opening(engine))


def test_copies_and_computing_are_told_apart_by_events_in_order(session: Any, device: HostDevice) -> None:
    assert session.modes == ("stream", "graph")
    assert session.run_timed(feeds(4), "stream") == dict(zip(DEVICE_PARTS, (1000, 2001, 3002), strict=True))
    assert device.recorded == [0, 1, 2, 3]
    assert device.launched == []


def test_a_graph_is_captured_once_for_a_shape_and_anew_for_another(session: Any, device: HostDevice) -> None:
    for _ in range(3):
        session.run_timed(feeds(4), "graph")
    assert (len(device.graphs), device.launched, device.dropped) == (1, [1, 1, 1], [])
    session.run_timed(feeds(8), "graph")
    assert (len(device.graphs), device.launched[-1], device.dropped) == (2, 2, [1])
    session.run_timed(feeds(64), "graph")  # another profile, larger buffers
    assert (len(device.graphs), device.dropped) == (3, [1, 2])
    session.close()
    session.close()
    assert device.dropped == [1, 2, 3]
    assert device.memory == {}


def test_a_call_that_tensorrt_cannot_capture_is_told_and_not_captured(
    session: Any, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def capturable(context: Context, stream: int) -> bool:
        asked.append(stream)
        return context.shapes["x"][0] != 8

    monkeypatch.setattr(Context, "is_stream_capturable", capturable, raising=False)
    session.run_timed(feeds(4), "graph")
    with pytest.raises(UnavailableError, match="cannot be captured"):
        session.run_timed(feeds(8), "graph")
    assert (len(device.graphs), device.dropped, asked) == (1, [1], [7, 7])
    session.run_timed(feeds(8), "stream")
    session.run_timed(feeds(4), "graph")
    session.close()
    assert device.dropped == [1, 2]


@pytest.mark.parametrize("kept", [False, True])
def test_kernels_for_the_shapes_of_a_call_are_not_made_behind_it(
    kept: bool, device: HostDevice, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = trt(device, VERSION)
    module.DynamicShapesKernelSpecializationStrategy = SimpleNamespace(LAZY="lazy", EAGER="eager")
    monkeypatch.setattr(base, "require", lambda name: module)
    real, given = Engine.create_execution_context, []

    def create(engine: Engine, *configs: Any) -> Context:
        given.extend(configs)
        return real(engine, *configs)

    monkeypatch.setattr(Engine, "create_execution_context", create)
    session = RUNTIME.open(dataclasses.replace(opening(engine), cache=tmp_path if kept else None))
    session.run_timed(feeds(4), "stream")
    assert device.engine is not None
    (config,) = device.engine.configs
    assert config.dynamic_shapes_kernel_specialization_strategy == "eager"
    assert given == [config]
    assert (config.cache is not None) == kept
    session.close()


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_the_installed_tensorrt_has_the_names_for_it() -> None:
    import tensorrt_rtx

    assert hasattr(tensorrt_rtx.DynamicShapesKernelSpecializationStrategy, "EAGER")
    assert hasattr(tensorrt_rtx.IRuntimeConfig, "dynamic_shapes_kernel_specialization_strategy")
    assert hasattr(tensorrt_rtx.IExecutionContext, "is_stream_capturable")


def test_a_timed_call_leaves_the_numbers_as_they_are(session: Any, device: HostDevice) -> None:
    expected = session.run(feeds(4))["y"]
    session.run_timed(feeds(4), "graph")
    session.run_timed(feeds(5), "stream")
    np.testing.assert_array_equal(session.run(feeds(4))["y"], expected)


def test_a_timed_call_refuses_what_a_call_refuses(session: Any, device: HostDevice) -> None:
    with pytest.raises(FeedError, match="'x'"):
        session.run_timed({**feeds(4), "x": np.zeros((4, 2), np.float32)}, "stream")
    with pytest.raises(FeedError, match="profiles"):
        session.run_timed(feeds(12), "graph")
    with pytest.raises(UsageError, match="stream, graph"):
        session.run_timed(feeds(4), "graphs")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run_timed(feeds(4), "stream")


class Driver:
    """Answers every call with success but those that it is told to refuse; keeps their names."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.called = refused, []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.called.append(name)
            return int(name == self.refused)

        return call


@dataclasses.dataclass
class Pretended(_cuda.Device):
    """A device whose driver is a list of names."""

    _driver: Any
    stream: int = 7


def test_a_call_that_cannot_be_captured_ends_the_capture_and_says_so() -> None:
    driver = Driver()

    def work() -> None:
        raise ValueError("not here")

    with pytest.raises(ValueError, match="not here"):
        Pretended(driver).captured(work)
    assert driver.called == ["cuStreamBeginCapture_v2", "cuStreamEndCapture"]
    driver = Driver("cuStreamEndCapture")
    with pytest.raises(UnavailableError, match="cuStreamEndCapture"):
        Pretended(driver).captured(lambda: None)


def test_events_are_given_back_even_where_a_call_fails() -> None:
    driver = Driver("cuEventRecord")
    with pytest.raises(UnavailableError, match="cuEventRecord"), Pretended(driver).events(4) as events:
        Pretended(driver).record(events[0])
    assert driver.called.count("cuEventDestroy_v2") == 4
