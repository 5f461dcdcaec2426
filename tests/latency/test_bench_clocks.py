from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnport.latency.measuring import processors
from attnport.runtimes import base


def test_processes_stay_on_one_processor_of_each_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}

    class Topology(type(tmp_path)):  # type: ignore[misc]
        def is_file(self) -> bool:
            return True

        def read_text(self, *args: object, **kwargs: object) -> str:
            return siblings[int("".join(filter(str.isdigit, self.parts[5])))]

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(base, "Path", Topology)
    assert processors(1) == [1]
    assert processors(2) == [0, 1]
    assert processors(3) == [0, 1, 2, 3]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors(1) == []
