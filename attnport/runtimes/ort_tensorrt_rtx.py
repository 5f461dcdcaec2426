"""ONNX Runtime with the TensorRT-RTX provider, a library of its own that is registered with ONNX Runtime.

What it compiles is kept in this user's cache as an engine context file: the model together with its compiled parts.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

from attnport.artifacts import Capabilities, IOContract, Ran, Session
from attnport.errors import MissingDependency, UnavailableError, first_line
from attnport.jsonfile import digest_file
from attnport.optional import require
from attnport.runtimes import _libraries, _ort
from attnport.runtimes._onnx_file import checked_model, external_files
from attnport.runtimes._ort_faults import unopened
from attnport.runtimes._session import usual_feeds
from attnport.runtimes.base import Kind, Opening, Runtime, available
from attnport.runtimes.ort_tensorrt import PLANS, profile_options, refuse_plan
from attnport.runtimes.tensorrt_rtx import TensorRTRTX
from attnport_bundle.runtimes.kernels import RuntimeCache, find

PROVIDER = "NvTensorRTRTXExecutionProvider"
PACKAGE = "onnxruntime_ep_nv_tensorrt_rtx"
_PIP = "pip install onnxruntime-ep-nv-tensorrt-rtx"


class OrtTensorRTRTX(Runtime):
    """The forms of `tensorrt_rtx`, compiled by ONNX Runtime on the device when they are first opened."""

    name: ClassVar[str] = "ort_tensorrt_rtx"
    opens: ClassVar[Kind] = "onnx"
    form: ClassVar[str] = "tensorrt_rtx"
    gpu: ClassVar[bool] = True
    distributions = (*_ort.ONNX_RUNTIMES, "onnxruntime-ep-*", *TensorRTRTX.distributions)

    def probe(self) -> Capabilities:
        """What the installed versions can do here; never raises. A tiny model has to run on the provider."""
        version, libraries = "", {}
        try:
            require("onnxruntime")
            version = str(_package().__version__)
            library = _libraries.beside(PACKAGE, "libonnxruntime_providers_*.so")
            libraries = {name: _libraries.found(name) for name in (_libraries.needed(library) if library else ())}
            devices = registered_devices()
            if answer := _ort.refusal(_ort.TINY, _ort.Plugin(PROVIDER, devices, {})):
                reason = f"{PROVIDER} does not work here: {answer}"
                return Capabilities(self.name, False, reason, version=version, libraries=libraries)
            return Capabilities(
                self.name,
                True,
                version=version,
                devices=("CUDA",),
                plans=PLANS,
                max_opset=_ort.max_opset(_ort.Plugin(PROVIDER, devices, {})),
                libraries=libraries,
            )
        except UnavailableError as err:
            hint = _PIP if isinstance(err, MissingDependency) and PACKAGE in err.message else err.hint
            return Capabilities(self.name, False, err.message, hint, version, libraries=libraries)
        except Exception as err:  # a half-installed wheel fails anywhere
            return Capabilities(self.name, False, f"{PACKAGE} does not work: {first_line(err)}", _PIP, version)

    def open(self, opening: Opening) -> Session:
        """Opens a form of `tensorrt_rtx` with one profile, that of the contract; from its context file if there is one.

        Before a context file is kept, the model is run at the contract's usual sizes to check that nothing fell back.

        Raises:
            UnavailableError: there is no device, the plan is not supported, or floating-point nodes run on another
                provider.
            ArtifactError: the model cannot be read or run, or does not fit the contract or the plan.
            IntegrityError: external data lies outside the model's folder.
        """
        capabilities = available(self)
        refuse_plan(self.name, opening.plan, capabilities.plans)
        path, model = checked_model(self.name, opening)
        provider = _ort.Plugin(PROVIDER, registered_devices(), profile_options(opening.io, "nv_profile_{}_shapes"))
        entry = _context_file(path, external_files(model), capabilities.version, opening.io, provider)
        context = entry.read() if entry is not None else None
        if context is None:
            _ort.refuse_fallback(path, provider, usual_feeds(opening.io))
            context = compiled_context(path, provider)
            if entry is not None:
                entry.write(context)
        session = _ort.open_session(context, _ort.options(opening.threads), provider)
        return _ort.OrtSession(opening.io, session, Ran("CUDA", session.get_providers()[0], opening.plan))


def registered_devices() -> tuple[Any, ...]:
    """The provider's first device, as it accepts only one; the first call registers its library.

    Raises:
        UnavailableError: the library cannot be loaded, or it finds no device.
    """
    import onnxruntime as ort

    if not (devices := _devices(ort)):
        package = _package()
        try:
            ort.register_execution_provider_library(package.get_ep_name(), package.get_library_path())
        except Exception as err:  # a runtime's own exceptions share no base
            # Before the reason stands the long path of the library.
            reason = first_line(RuntimeError(str(err).rpartition(" with error: ")[2]))
            raise UnavailableError(
                f"{PROVIDER} cannot be registered: {reason}", hint="It wants an NVIDIA GPU and its driver."
            ) from err
        devices = _devices(ort)
    if not devices:
        raise UnavailableError(
            f"{PROVIDER} finds no device.", hint="It wants an RTX GPU of compute capability 8.6, 8.9, 12.0 or newer."
        )
    return devices[:1]


def compiled_context(model: Path, provider: _ort.Plugin) -> bytes:
    """The model as an engine context file, with what the provider compiled. Raises as `open_session`."""
    import onnxruntime as ort

    settings = _ort.options(1)
    settings.add_provider_for_devices(list(provider.devices), dict(provider.options))
    try:
        compiler = ort.ModelCompiler(settings, str(model), embed_compiled_data_into_model=True)
        return bytes(compiler.compile_to_bytes())
    except Exception as err:  # a runtime's own exceptions share no base
        raise unopened(model, PROVIDER, err) from err


def _package() -> Any:
    """Imports the plug-in's package and loads the libraries that it needs. Raises MissingDependency."""
    package = require(PACKAGE)
    _libraries.load_bundled_cuda(PACKAGE)
    return package


def _devices(ort: Any) -> tuple[Any, ...]:
    return tuple(device for device in ort.get_ep_devices() if device.ep_name == PROVIDER)


def _context_file(
    model: Path, external: tuple[str, ...], version: str, io: IOContract, provider: _ort.Plugin
) -> RuntimeCache | None:
    """The cache entry for this model's context, by release, device and profile; None without a cache."""
    import onnxruntime as ort

    cache = find(model.parent)
    if cache is None:
        return None
    facts = {
        "model": digest_file(model),
        "weights": [digest_file(model.parent / name) for name in external],
        "versions": [version, str(ort.__version__)],
        "devices": [sorted(map(str, device.device.metadata.items())) for device in provider.devices],
        "options": dict(provider.options),
        "inputs": list(map(str, io.inputs)),
    }
    entry = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return RuntimeCache(cache, entry)


RUNTIME = OrtTensorRTRTX()
