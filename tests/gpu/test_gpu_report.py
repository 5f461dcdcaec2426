"""Times on the device are compared with an interval of their own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnport.artifacts import DEVICE_PARTS, LatencyRow, Ran
from attnport.latency.rows import Measured, rows


def samples(call_ms: float, device_ms: float | None, rounds: int = 30) -> Measured:
    rng = np.random.default_rng(int(call_ms * 10))
    noise = 1 + 0.01 * rng.standard_normal((rounds, 2))
    timed = [tuple(int(ns) for ns in one) for one in call_ms * 1e6 * noise]
    parts = {part: [int(1e5)] * (2 * rounds) for part in DEVICE_PARTS}
    if device_ms:
        parts["device"] = [int(device_ms * 1e6 * one) for one in noise.ravel()]
    return Measured(timed, parts if device_ms else {}, row=LatencyRow(ran=Ran("GPU", "x", "fp16")))


def test_device_times_are_compared_with_an_interval_of_their_own() -> None:
    by_runtime = {
        "torch_eager_cuda": samples(10, 5),
        "torch_compile_cuda (graph)": samples(8, 2.5),
        "ort_tensorrt_rtx": samples(20, None),
    }
    found = rows(by_runtime, "torch_eager_cuda", 32, 65536)
    graph = found["torch_compile_cuda (graph)"]
    assert graph.ratio is not None
    assert graph.ratio[1] == pytest.approx(0.8, rel=0.02)
    assert graph.device_ratio is not None
    assert graph.device_ratio[0] < 0.5 < graph.device_ratio[2]
    assert found["torch_eager_cuda"].device_ratio is None
    assert found["ort_tensorrt_rtx"].device_ratio is None


def test_times_that_do_not_fit_the_rounds_have_no_device_ratio() -> None:
    base, short = samples(10, 5), samples(10, 5)
    short = dataclasses.replace(short, parts_ns={"device": short.parts_ns["device"][:-1]})
    nothing = dataclasses.replace(base, parts_ns={"device": [0] * 60})
    found = rows({"base": base, "short": short, "nothing": nothing}, "base", 1, 1)
    assert found["short"].device_ratio is None
    assert found["nothing"].device_ratio is None
