"""ONNX Runtime on CPU, the default for embedding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnport.artifacts import Evidence, IOContract, Ran, Session
from attnport.runtimes import _ort
from attnport.runtimes.base import Opening, checked_model

PROVIDER = "CPUExecutionProvider"


class OrtCpu(_ort.OrtRuntime):
    """ONNX Runtime with only the CPU execution provider."""

    name = "ort_cpu"
    form = "ort_cpu"
    plans = ("fp32", "fp16", "int8", "int4", "int4_fp16")
    instead = (
        "ONNX Runtime's CPU kernels cast half precision to fp32 and so hide its overflow: "
        "use onnx_reference for the numbers of a half-precision form."
    )
    isolated = False

    def able(self) -> dict[str, Any]:
        """Computes models up to an opset."""
        self.require_built(PROVIDER)
        return {"max_opset": _ort.max_opset(PROVIDER)}

    def session(self, opening: Opening) -> Session:
        """Opens the form `ort_cpu`."""
        path, _ = checked_model(opening)
        settings = _ort.options(opening.threads)
        if opening.lean:
            _ort.keep_memory_low(settings)
        session = _ort.open_session(path, settings, PROVIDER)
        return _ort.OrtSession(opening.io, session, Ran("CPU", session.get_providers()[0], opening.plan))

    def evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str, io: IOContract | None
    ) -> dict[str, Evidence]:
        """Attentions that are one operator in the session's optimised model and ran as one kernel."""
        return _ort.evidence(model, anchors, PROVIDER, io)


RUNTIME = OrtCpu()
