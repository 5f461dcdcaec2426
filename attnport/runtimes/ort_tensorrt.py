"""ONNX Runtime with its TensorRT provider, without falling back to CUDA or the CPU.

This provider is linked against one major release of TensorRT, which may differ from that of the package `tensorrt`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from attnport.artifacts import IOContract, Ran, Session
from attnport.errors import UnavailableError
from attnport.optional import require
from attnport.runtimes import _cuda, _ort
from attnport.runtimes.base import Opening, checked_model, usual_feeds
from attnport.runtimes.ort_cuda import GPU_PACKAGE
from attnport.runtimes.tensorrt import TensorRT
from attnport_bundle.runtimes.cuda import load_driver, needed

PROVIDER = "TensorrtExecutionProvider"


class OrtTensorRT(_ort.OrtRuntime):
    """The forms of `tensorrt`, compiled by ONNX Runtime on the device when they are opened."""

    name = "ort_tensorrt"
    install = GPU_PACKAGE
    form = "tensorrt"
    plans = ("fp16", "bf16", "fp16_islands", "bf16_islands")
    instead = "TensorRT may compute fp32 in TF32, and no option of the provider forbids that: use ort_cuda."
    fragile = True
    gpu = True
    distributions = (*_ort.ONNX_RUNTIMES, *TensorRT.distributions)

    def libraries(self) -> dict[str, str]:
        """The libraries that the provider needs."""
        library = _cuda.beside("onnxruntime", "capi/libonnxruntime_providers_tensorrt.so")
        if library is None:
            return {}
        _cuda.load_cuda()
        with contextlib.suppress(UnavailableError):
            require("tensorrt")  # loads the libraries in its wheel
        return {name: _cuda.path_of(name) for name in needed(library)}

    def able(self) -> dict[str, Any]:
        """Computes on CUDA, if the libraries are found by name."""
        self.require_built(PROVIDER)
        load_driver()
        if missing := [name for name, path in self.libraries().items() if not path]:
            raise UnavailableError(
                f"{PROVIDER} wants {', '.join(missing)}, which the loader does not find.", hint=_hint(missing)
            )
        return self.able_on(PROVIDER)

    def session(self, opening: Opening) -> Session:
        """Opens a form of `tensorrt` with one profile, that of the contract.

        The model is run at the contract's usual sizes to check that nothing fell back to CUDA or the CPU.
        """
        path, _ = checked_model(opening)
        provider = (PROVIDER, profile_options(opening.io, "trt_profile_{}_shapes"))
        _ort.refuse_fallback(path, provider, usual_feeds(opening.io))
        session = _ort.open_session(path, _ort.options(opening.threads), provider)
        return _ort.OrtSession(opening.io, session, Ran("CUDA", session.get_providers()[0], opening.plan))


def profile_options(io: IOContract, option: str) -> dict[str, str]:
    """The contract's sizes as options of the provider, such as `ids:1x1,mask:1x1` for the smallest.

    Args:
        option: The name of the options, with `{}` for `min`, `opt` and `max`.
    """
    profile = io.profile()

    def shapes(which: str) -> str:
        sizes = profile.sizes(which)
        return ",".join(f"{spec.name}:{'x'.join(map(str, spec.shape(sizes)))}" for spec in io.inputs if spec.dims)

    return {option.format(which): shapes(which) for which in ("min", "opt", "max")}


def _hint(missing: list[str]) -> str:
    versions = [name.rpartition(".so.")[2] for name in missing if name.startswith("libnvinfer.so.")]
    return f'pip install "tensorrt-cu13=={versions[0]}.*"' if versions else "It wants CUDA and cuDNN libraries."


RUNTIME = OrtTensorRT()
