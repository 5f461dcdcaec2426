"""What tests of `bench` share."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.latency import measuring


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that `bench` starts run nothing, see `idle_worker`: a runtime's own take seconds to start."""
    monkeypatch.setattr(measuring, "COMMAND", (str(Path(__file__).with_name("idle_worker.py")),))
