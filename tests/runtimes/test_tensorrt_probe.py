"""What the TensorRT runtimes say of a machine without a driver."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from attnport.errors import UnavailableError
from attnport.runtimes import _cuda, base
from attnport_bundle import cuda


def test_without_a_driver_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARIES", ("libthere-is-none.so.1",))
    with pytest.raises(UnavailableError, match="no NVIDIA driver"):
        _cuda.Device()
    found = base.get("tensorrt_rtx").probe()
    assert not found.available
    assert found.reason


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_rtx_without_a_driver_says_that_it_builds_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnport.runtimes import tensorrt_rtx

    monkeypatch.setattr(cuda, "_LIBRARIES", ("libthere-is-none.so.1",))
    assert tensorrt_rtx.RUNTIME.probe().hint.startswith("engines can be built here")
    monkeypatch.setattr(tensorrt_rtx.TensorRTRTX, "module", "tensorrt_of_nowhere")
    assert "built here" not in tensorrt_rtx.RUNTIME.probe().hint
