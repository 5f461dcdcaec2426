"""Opens one form of a bundle: checks the file, then its runtime's release, opens it, and compares it with the contract.

A release, provider or device that does not fit raises RuntimeMissing, as another form may run. A file that differs
from the manifest raises IntegrityError, as then nothing in the bundle can be trusted.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cuda, engine_header
from .cache import Cache, entry
from .engine_session import EngineSession
from .errors import IntegrityError, RuntimeMissing
from .external import opset
from .fitting import check_ports, check_profiles
from .manifest import ENGINES, Form, Manifest, Requires, package_of
from .onnxruntime_session import OnnxRuntimeSession
from .openvino_session import OpenVinoSession
from .regular import read_regular
from .runtime_cache import RuntimeCache
from .session import Session, gpu


@dataclass(frozen=True)
class Opener:
    """What opens the ONNX files of one runtime.

    Attributes:
        session: Makes the session; its arguments are the imported module, the path, the form, the number of threads
            (None = the runtime's own choice), and whether weights files may be mapped.
        oldest: The oldest release with which forms were tested; None = the writer finds it for each form.
    """

    session: Callable[[Any, Path, Form, int | None, bool], Session]
    oldest: str | None = None


OPENERS: Mapping[str, Opener] = {
    "onnxruntime": Opener(OnnxRuntimeSession),
    "openvino": Opener(OpenVinoSession, oldest="2026.4"),
}
"""By runtime. All of `manifest.RUNTIMES` are here except those of `manifest.ENGINES`."""

READ_BYTES = 1 << 28
"""Weights of a form up to this size are read; larger ones may be mapped (FORMAT.md, Changes in place)."""


def open_session(
    folder: Path, manifest: Manifest, name: str, threads: int | None = None, cache: Cache | None = None
) -> Session:
    """Opens the form `name`.

    Args:
        threads: Compute threads of a runtime on the CPU; None = the runtime's own choice.
        cache: Keeps what TensorRT-RTX compiles; None = it is not kept.

    Raises:
        RuntimeMissing: the runtime, provider or device is missing, or is not the one that the form requires.
        IntegrityError: the file is not the one that the manifest describes.
        BundleError: the runtime refuses the file.
    """
    form, path = manifest.forms[name], folder / manifest.forms[name].file
    _check_file(path, form)
    mapped = sum(manifest.files[external].bytes for external in form.external) > READ_BYTES
    module = _module(form.runtime, form.requires)
    session: Session
    try:
        if form.runtime in ENGINES:
            session = _engine(module, path, manifest, name, cache)
        else:
            session = OPENERS[form.runtime].session(module, path, form, threads, mapped)
    except UnicodeDecodeError as err:
        raise IntegrityError(f"{path}: the name of an input or output is no UTF-8.") from err
    try:
        check_ports(manifest.io, form, session, str(path))
    except BaseException:
        session.close()
        raise
    return session


def _check_file(path: Path, form: Form) -> None:
    """Raises IntegrityError unless the version, targets or opset in the file are the manifest's."""
    try:
        if form.runtime == "tensorrt_rtx":
            header = engine_header.read_header(path)
            got: object = (header.version, header.sm)
            stated: object = (form.requires.runtime, form.requires.sm)
        elif form.runtime == "tensorrt":
            return  # the header of these engines is not documented
        else:
            got, stated = opset(path), form.requires.opset
    except (OSError, ValueError) as err:
        raise IntegrityError(str(err) if str(path) in str(err) else f"{path}: {err}") from err
    if got != stated:
        what = "version and compute capabilities" if form.runtime in ENGINES else "opset"
        raise IntegrityError(f"{path}: got {what} {got}; the manifest says {stated}.")


def _bundled(path: Path, manifest: Manifest, form: Form) -> bytes:
    """The bytes of an engine. Raises IntegrityError unless they are the bundled ones.

    An engine is code for a device, so it is compared even if all files were. TensorRT gets exactly these bytes: the
    file is not read again.
    """
    data = read_regular(path)
    if hashlib.sha256(data).hexdigest() != manifest.files[form.file].sha256:
        raise IntegrityError(f"{path}: changed: its SHA-256 is not that of the manifest.")
    return data


def _module(runtime: str, requires: Requires) -> Any:
    """Imports the runtime's package. Raises RuntimeMissing if it is missing, or its release does not fit."""
    package = package_of(runtime)
    wanted = f"{package}=={requires.runtime}" if requires.exact else f"{package}>={requires.runtime}"
    try:
        module = importlib.import_module(runtime)
    except (ImportError, OSError) as err:  # OSError: a library that the package loads is missing
        absent = isinstance(err, ModuleNotFoundError) and err.name == runtime
        problem = "is not installed" if absent else f"cannot be imported: {err}"
        raise RuntimeMissing(f'{runtime} {problem}; pip install "{wanted}".') from err
    version = str(module.__version__)
    fits = version == requires.runtime if requires.exact else release(version) >= release(requires.runtime)
    if not fits:
        problem = ", that release exactly" if requires.exact else " or later"
        raise RuntimeMissing(f'got {runtime} {version}; expected {requires.runtime}{problem}; pip install "{wanted}".')
    return module


def release(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, for comparison; suffixes of a build are left out."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+-]", version)[0], re.ASCII)[:3])


def _engine(module: Any, path: Path, manifest: Manifest, name: str, cache: Cache | None) -> EngineSession:
    form = manifest.forms[name]
    device = cuda.Device()
    if form.requires.sm and device.sm not in form.requires.sm:
        targets = ", ".join(map(str, form.requires.sm))
        raise RuntimeMissing(f"the engine was built for SM {targets}; {device.name} is SM {device.sm}.")
    runtime_cache = None
    if cache is not None and form.runtime == "tensorrt_rtx":
        runtime_cache = RuntimeCache(cache, entry(manifest, name, str(module.__version__), gpu(device)))
    device.open()
    try:
        session = EngineSession(module, device, _bundled(path, manifest, form), str(path), runtime_cache)
    except BaseException:
        device.close()
        raise
    try:
        check_profiles(manifest.io, form, session.profiles, str(path))
    except BaseException:
        session.close()
        raise
    return session
