"""ONNX Runtime on CUDA, in process, and nothing that computes beside it on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from attnport.artifacts import Capabilities, Evidence, Ran, Session
from attnport.errors import UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes import _libraries, _ort
from attnport.runtimes._onnx_file import checked_model
from attnport.runtimes.base import Kind, Opening, Runtime, available
from attnport_bundle.cuda import load_driver

PROVIDER = "CUDAExecutionProvider"
# TF32 keeps 10 of float32's 23 bits of mantissa: a precision of its own, and never meant by fp32.
_OPTIONS = {"use_tf32": "0"}
_PIP = 'pip uninstall -y onnxruntime && pip install "attnport[gpu]"'
_TINY = '<ir_version: 10, opset_import: ["" : 18]> g (float[B] x) => (float[B] y) { y = Relu(x) }'


class OrtCuda(Runtime):
    """ONNX Runtime with the CUDA execution provider."""

    name: ClassVar[str] = "ort_cuda"
    opens: ClassVar[Kind] = "onnx"
    form: ClassVar[str] = "ort_cuda"
    gpu: ClassVar[bool] = True

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises.

        That a provider is built in says nothing about this machine, so a tiny model has to run on it.
        """
        try:
            ort = require("onnxruntime")
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, _PIP)
        try:
            if PROVIDER not in ort.get_available_providers():
                return Capabilities(self.name, False, f"this onnxruntime is built without {PROVIDER}.", _PIP)
            load_driver()
            _libraries.load_cuda()
            if answer := _ort.refusal(_TINY, (PROVIDER, _OPTIONS)):
                return Capabilities(
                    self.name, False, f"{PROVIDER} does not work here: {answer}", "It wants CUDA and cuDNN libraries."
                )
            return Capabilities(
                self.name,
                True,
                version=str(ort.__version__),
                devices=("CUDA",),
                plans=("fp32", "fp16", "bf16"),
                max_opset=_ort.max_opset((PROVIDER, _OPTIONS)),
            )
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint)
        except Exception as err:  # a half-installed wheel fails anywhere
            return Capabilities(self.name, False, f"onnxruntime does not work: {first_line(err)}", _PIP)

    def open(self, opening: Opening) -> Session:
        """Opens a form of `ort_cuda`; a run on small inputs has to show that nothing fell back to the CPU.

        Raises:
            UnavailableError: no device, or nodes that compute on floating-point tensors run on another provider.
            ArtifactError: the file is not a model that it can read and run, or not the contract's or the plan's.
            IntegrityError: external data outside the model's folder.
        """
        found = available(self)
        if opening.plan not in found.plans:
            raise UnavailableError(f"ort_cuda computes in {', '.join(found.plans)}; {opening.plan} was asked for.")
        path, _ = checked_model(self.name, opening)
        _ort.refuse_fallback(path, (PROVIDER, _OPTIONS))
        session = _ort.open_session(path, _ort.options(opening.threads), (PROVIDER, _OPTIONS))
        return _ort.OrtSession(opening.io, session, Ran("CUDA", session.get_providers()[0], opening.plan))

    def fusion_evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str = "fp32"
    ) -> dict[str, Evidence]:
        """As for ort_cpu, on the CUDA provider.

        Raises:
            UnavailableError: not installed, no device.
            ArtifactError: not a model that it can read or run.
        """
        available(self)
        return _ort.evidence(model, anchors, (PROVIDER, _OPTIONS))


RUNTIME = OrtCuda()
