"""ONNX Runtime on CPU, the default for embedding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from attnport.artifacts import Capabilities, Evidence, IOContract, Ran, Session
from attnport.errors import UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes import _ort, _ort_evidence
from attnport.runtimes._onnx_file import checked_model
from attnport.runtimes.base import Kind, Opening, Runtime

PROVIDER = "CPUExecutionProvider"
PLANS = ("fp32", "int8", "int4")


class OrtCpu(Runtime):
    """ONNX Runtime with only the CPU execution provider."""

    name: ClassVar[str] = "ort_cpu"
    opens: ClassVar[Kind] = "onnx"
    form: ClassVar[str] = "ort_cpu"
    isolated: ClassVar[bool] = False
    distributions = _ort.ONNX_RUNTIMES

    def probe(self) -> Capabilities:
        """What the installed version can do; never raises."""
        try:
            ort = require("onnxruntime")
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint)
        try:
            if PROVIDER not in ort.get_available_providers():
                return Capabilities(self.name, False, f"this onnxruntime has no {PROVIDER}.")
            return Capabilities(
                self.name,
                True,
                version=str(ort.__version__),
                devices=("CPU",),
                plans=PLANS,
                max_opset=_ort.max_opset(PROVIDER),
            )
        except Exception as err:  # a half-installed wheel fails anywhere
            return Capabilities(self.name, False, f"onnxruntime does not work: {first_line(err)}")

    def open(self, opening: Opening) -> Session:
        """Opens the form `ort_cpu`.

        Raises:
            UnavailableError: ONNX Runtime is not installed, it does not compute in the plan, or the session fell back
                to another provider.
            ArtifactError: ONNX Runtime cannot read the file, or its inputs and outputs are not the contract's.
            IntegrityError: external data lies outside the model's folder.
        """
        require("onnxruntime")
        if opening.plan not in PLANS:
            raise UnavailableError(
                f"ort_cpu computes in {', '.join(PLANS)}; {opening.plan} was asked for.",
                hint="ONNX Runtime's CPU kernels cast half precision to fp32 and so hide its overflow: "
                "use onnx_reference for the numbers of a half-precision form.",
            )
        path, _ = checked_model(self.name, opening)
        settings = _ort.options(opening.threads)
        if opening.lean:
            _ort.keep_memory_low(settings)
        session = _ort.open_session(path, settings, PROVIDER)
        return _ort.OrtSession(opening.io, session, Ran("CPU", session.get_providers()[0], opening.plan))

    def fusion_evidence(
        self,
        model: Path,
        anchors: Mapping[str, tuple[str, ...]],
        plan: str = "fp32",
        io: IOContract | None = None,
    ) -> dict[str, Evidence]:
        """Evidence for attentions that are one operator in the session's optimised model and ran as one kernel.

        Raises:
            UnavailableError: ONNX Runtime is not installed.
            ArtifactError: the model cannot be read or run.
        """
        require("onnxruntime")
        return _ort_evidence.evidence(model, anchors, PROVIDER, io)


RUNTIME = OrtCpu()
