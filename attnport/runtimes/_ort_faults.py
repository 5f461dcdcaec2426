"""Errors of ONNX Runtime that are about the device, its libraries or its kernels, and not about the model."""

from __future__ import annotations

import re
from pathlib import Path

from attnport.errors import UnavailableError, whole_cause
from attnport.runtimes._onnx_file import broken
from attnport_bundle.runtimes.onnxruntime import CPU

_FAULT = re.compile(r"\b(cuda|cudnn(_fe)?|cublas(lt)?) (failure|error)\b|failed to load (shared )?library", re.I)
"""A fault that a library of NVIDIA reports, a provider's library that does not load."""
_NO_MEMORY = re.compile(r"out of memory|failed to allocate memory", re.I)


def unopened(model: Path, provider: str, err: BaseException) -> Exception:
    """The error for a session that could not be made: `ArtifactError`, unless `unavailable` has another."""
    return unavailable(provider, err) or broken(model, err)


def unavailable(provider: str, err: BaseException) -> UnavailableError | MemoryError | None:
    """The error of a device that cannot run the model; None on the CPU, and for errors about the model itself.

    A lack of memory may be over the next time, so it is a MemoryError, as of every runtime.
    """
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    if provider == CPU:
        return None
    if isinstance(err, NoKernel):
        return UnavailableError(
            f"{provider} cannot run it: {whole_cause(err)}",
            hint="This onnxruntime has no kernel there for these operators in these types; try another plan.",
        )
    if _NO_MEMORY.search(str(err)):
        return MemoryError(f"{provider} has not enough memory: {whole_cause(err)}")
    if _FAULT.search(str(err)):
        return UnavailableError(f"{provider} failed: {whole_cause(err)}", hint="attnport doctor says what it wants.")
    return None
