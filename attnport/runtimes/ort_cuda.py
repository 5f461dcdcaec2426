"""ONNX Runtime on CUDA, without falling back to the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from attnport.artifacts import Capabilities, Evidence, IOContract, Ran, Session
from attnport.errors import UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes import _cuda, _libraries, _ort, _ort_evidence
from attnport.runtimes._onnx_file import checked_model
from attnport.runtimes._ort_device import OrtDeviceSession
from attnport.runtimes.base import Kind, Opening, Runtime, available
from attnport_bundle.runtimes.cuda import load_driver

PROVIDER = "CUDAExecutionProvider"
# TF32 keeps 10 of float32's 23 bits of mantissa: it is a precision of its own, not fp32.
_OPTIONS = {"use_tf32": "0"}
_PIP = 'pip uninstall -y onnxruntime && pip install "attnport[gpu]"'


class OrtCuda(Runtime):
    """ONNX Runtime with the CUDA execution provider."""

    name: ClassVar[str] = "ort_cuda"
    opens: ClassVar[Kind] = "onnx"
    form: ClassVar[str] = "ort_cuda"
    gpu: ClassVar[bool] = True
    distributions = (*_ort.ONNX_RUNTIMES, "nvidia-*")

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises.

        A provider that is built in may still not work on this machine, so a tiny model has to run on it.
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
            if answer := _ort.refusal(_ort.TINY, (PROVIDER, _OPTIONS)):
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
        """Opens a form of `ort_cuda`. The model is run on small inputs to check that nothing fell back to the CPU.

        Raises:
            UnavailableError: there is no device, it fails, it has no kernel for the model, or nodes on floating-point
                tensors run on another provider.
            ArtifactError: the model cannot be read or run, or does not fit the contract or the plan.
            IntegrityError: external data lies outside the model's folder.
        """
        capabilities = available(self)
        if opening.plan not in capabilities.plans:
            raise UnavailableError(
                f"ort_cuda computes in {', '.join(capabilities.plans)}; {opening.plan} was asked for."
            )
        path, _ = checked_model(self.name, opening)
        _ort.refuse_fallback(path, (PROVIDER, _OPTIONS), io=opening.io)
        device = _cuda.Device()
        device.open()

        def opened(options: Mapping[str, str]) -> Any:
            provider = PROVIDER, {**_OPTIONS, "user_compute_stream": str(device.stream), **options}
            return _ort.open_session(path, _ort.options(opening.threads), provider)

        def ran(session: Any) -> Ran:
            return Ran(f"{device.name} (SM {device.sm})", session.get_providers()[0], opening.plan)

        return OrtDeviceSession(opening.io, opened, device, ran)

    def fusion_evidence(
        self,
        model: Path,
        anchors: Mapping[str, tuple[str, ...]],
        plan: str = "fp32",
        io: IOContract | None = None,
    ) -> dict[str, Evidence]:
        """Evidence for attentions that are one operator, for which ONNX Runtime printed a kernel that is one kernel.

        Its choice depends on the lengths: those of the run are multiples of 8, the least that the contract allows.

        Raises:
            UnavailableError: ONNX Runtime is not installed, there is no device, or it has no kernel for the model.
            ArtifactError: the model cannot be read or run.
        """
        available(self)
        return _ort_evidence.evidence(model, anchors, (PROVIDER, _OPTIONS), io, printing=True)


RUNTIME = OrtCuda()
