"""An engine file and the device that runs it, pretended: what a session of TensorRT does can be seen without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from pretended_gpu import HostDevice, engine_bytes, trt

from attnport.runtimes import _cuda, base

VERSION = "9.9.9"


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "one.engine"
    path.write_bytes(engine_bytes())
    return path


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    made = HostDevice()
    monkeypatch.setattr(base, "require", lambda name: trt(made, VERSION))
    monkeypatch.setattr(_cuda, "Device", lambda: made)
    return made
