"""ONNX Runtime with its TensorRT provider, without falling back to CUDA or the CPU.

This provider is linked against one major release of TensorRT, which may differ from that of the package `tensorrt`.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar

from attnport.artifacts import Capabilities, IOContract, Ran, Session
from attnport.errors import UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes import _libraries, _ort
from attnport.runtimes._onnx_file import checked_model
from attnport.runtimes._session import usual_feeds
from attnport.runtimes.base import Kind, Opening, Runtime, available
from attnport.runtimes.tensorrt import TensorRT
from attnport_bundle.runtimes.cuda import load_driver

PROVIDER = "TensorrtExecutionProvider"
# fp32 is missing: TensorRT may compute it in TF32, and this provider has no option to forbid that.
PLANS = ("fp16", "bf16", "fp16_islands", "bf16_islands")
_PIP = 'pip uninstall -y onnxruntime && pip install "attnport[gpu]"'


class OrtTensorRT(Runtime):
    """The forms of `tensorrt`, compiled by ONNX Runtime on the device when they are opened."""

    name: ClassVar[str] = "ort_tensorrt"
    opens: ClassVar[Kind] = "onnx"
    form: ClassVar[str] = "tensorrt"
    gpu: ClassVar[bool] = True
    distributions = (*_ort.ONNX_RUNTIMES, *TensorRT.distributions)

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises.

        The libraries that the provider needs are searched by name, then a tiny model has to run on it.
        """
        try:
            ort = require("onnxruntime")
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, _PIP)
        libraries: dict[str, str] = {}
        try:
            version = str(ort.__version__)
            if PROVIDER not in ort.get_available_providers():
                return Capabilities(self.name, False, f"this onnxruntime is built without {PROVIDER}.", _PIP, version)
            libraries = wanted_libraries()
            load_driver()
            if missing := [name for name, path in libraries.items() if not path]:
                return Capabilities(
                    self.name, False, f"{PROVIDER} wants {', '.join(missing)}, which the loader does not find.",
                    _hint(missing), version, libraries=libraries,
                )  # fmt: skip
            if answer := _ort.refusal(_ort.TINY, PROVIDER):
                return Capabilities(
                    self.name, False, f"{PROVIDER} does not work here: {answer}", version=version, libraries=libraries
                )
            return Capabilities(
                self.name,
                True,
                version=version,
                devices=("CUDA",),
                plans=PLANS,
                max_opset=_ort.max_opset(PROVIDER),
                libraries=libraries,
            )
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint, version, libraries=libraries)
        except Exception as err:  # a half-installed wheel fails anywhere
            return Capabilities(self.name, False, f"onnxruntime does not work: {first_line(err)}", _PIP)

    def open(self, opening: Opening) -> Session:
        """Opens a form of `tensorrt` with one profile, that of the contract.

        The model is run at the contract's usual sizes to check that nothing fell back to CUDA or the CPU.

        Raises:
            UnavailableError: there is no device, the plan is not supported, or floating-point nodes run on another
                provider.
            ArtifactError: the model cannot be read or run, or does not fit the contract or the plan.
            IntegrityError: external data lies outside the model's folder.
        """
        capabilities = available(self)
        refuse_plan(self.name, opening.plan, capabilities.plans)
        path, _ = checked_model(self.name, opening)
        provider = (PROVIDER, profile_options(opening.io, "trt_profile_{}_shapes"))
        _ort.refuse_fallback(path, provider, usual_feeds(opening.io))
        session = _ort.open_session(path, _ort.options(opening.threads), provider)
        return _ort.OrtSession(opening.io, session, Ran("CUDA", session.get_providers()[0], opening.plan))


def refuse_plan(runtime: str, plan: str, plans: tuple[str, ...]) -> None:
    """Raises UnavailableError for a plan that is not among `plans`."""
    if plan not in plans:
        reason = " TensorRT may compute fp32 in TF32, and no option forbids that." * (plan == "fp32")
        raise UnavailableError(f"{runtime} computes in {', '.join(plans)}; {plan} was asked for.{reason}")


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


def wanted_libraries() -> dict[str, str]:
    """The libraries that the provider needs, by name, with the path that the loader finds; "" if it finds none."""
    library = _libraries.beside("onnxruntime", "capi/libonnxruntime_providers_tensorrt.so")
    if library is None:
        return {}
    _libraries.load_cuda()
    with contextlib.suppress(UnavailableError):
        require("tensorrt")  # loads the libraries in its wheel
    return {name: _libraries.found(name) for name in _libraries.needed(library)}


def _hint(missing: list[str]) -> str:
    versions = [name.rpartition(".so.")[2] for name in missing if name.startswith("libnvinfer.so.")]
    return f'pip install "tensorrt-cu13=={versions[0]}.*"' if versions else "It wants CUDA and cuDNN libraries."


RUNTIME = OrtTensorRT()
