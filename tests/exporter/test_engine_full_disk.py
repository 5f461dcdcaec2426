"""A builder whose disk is full says so; neither the graph nor the memory is blamed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from engine_graphs import contract, decomposed

from attnport.errors import UsageError
from attnport.exporter.engine import build as building
from attnport.exporter.engine.build import build_engine

pytest.importorskip("tensorrt_rtx")


def test_builder_that_cannot_write_its_answer_is_no_fault_of_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = building._command

    def limited(result: Path) -> list[str]:
        # The kernel's own full disk: no file may grow beyond so many bytes, and the process is told, not killed.
        code = (
            "import os, resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); os.execv(sys.argv[1], sys.argv[1:])"
        )
        return [sys.executable, "-c", code, *command(result)]

    monkeypatch.setattr(building, "_command", limited)
    with pytest.raises(UsageError, match="could not write its log or its result") as caught:
        build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert "TMPDIR" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]
