"""ONNX Runtime with the TensorRT-RTX provider, a library of its own that is registered with ONNX Runtime.

What it compiles is kept in this user's cache as an engine context file: the model together with its compiled parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from attnport.artifacts import IOContract, Ran, Session
from attnport.errors import UnavailableError, first_line
from attnport.jsonfile import digest_file
from attnport.optional import require
from attnport.runtimes import _cuda, _ort
from attnport.runtimes.base import Opening, checked_model, external_files, usual_feeds
from attnport.runtimes.ort_tensorrt import OrtTensorRT, profile_options
from attnport.runtimes.tensorrt_rtx import TensorRTRTX
from attnport_bundle.runtimes.cuda import needed
from attnport_bundle.runtimes.kernels import RuntimeCache, find

PROVIDER = "NvTensorRTRTXExecutionProvider"
PACKAGE = "onnxruntime_ep_nv_tensorrt_rtx"


class OrtTensorRTRTX(_ort.OrtRuntime):
    """The forms of `tensorrt_rtx`, compiled by ONNX Runtime on the device when they are first opened."""

    name = "ort_tensorrt_rtx"
    form = "tensorrt_rtx"
    plans = OrtTensorRT.plans
    instead = OrtTensorRT.instead
    fragile = True
    gpu = True
    distributions = (
        *(*_ort.ONNX_RUNTIMES, "onnxruntime-ep-*"),
        *TensorRTRTX.distributions,
    )

    def version(self) -> str:
        """That of the plug-in."""
        super().version()
        return str(_package().__version__)

    def libraries(self) -> dict[str, str]:
        """The libraries that the plug-in needs."""
        with contextlib.suppress(UnavailableError):
            _package()
        library = _cuda.beside(PACKAGE, "libonnxruntime_providers_*.so")
        return {name: _cuda.path_of(name) for name in (needed(library) if library else ())}

    def able(self) -> dict[str, Any]:
        """Computes on CUDA, if the plug-in finds a device."""
        return self.able_on(_ort.Plugin(PROVIDER, registered_devices(), {}))

    def session(self, opening: Opening) -> Session:
        """Opens a form of `tensorrt_rtx` with one profile, that of the contract; from its context file if there is one.

        Before a context file is kept, the model is run at the contract's usual sizes to check that nothing fell back.
        """
        path, model = checked_model(opening)
        provider = _ort.Plugin(PROVIDER, registered_devices(), profile_options(opening.io, "nv_profile_{}_shapes"))
        entry = _context_file(path, external_files(model), self.version(), opening.io, provider)
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
        raise _ort.unopened(model, PROVIDER, err) from err


def _package() -> Any:
    """Imports the plug-in's package and loads the libraries that it needs. Raises MissingDependency."""
    package = require(PACKAGE)
    _cuda.load_bundled_cuda(PACKAGE)
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
