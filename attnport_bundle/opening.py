"""Opens one form of a bundle: checks the file, then its runtime's release, opens it, and compares it with the contract.

A release, provider or device that does not fit raises RuntimeMissing, as another form may run. A file that differs
from the manifest raises IntegrityError, as then nothing in the bundle can be trusted.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import IntegrityError, RuntimeMissing
from .format.files import open_regular
from .format.manifest import ENGINES, Form, Manifest, Requires, package_of
from .runtimes import Session, check_ports

if TYPE_CHECKING:
    from .runtimes.kernels import Cache

OLDEST: Mapping[str, str | None] = {"onnxruntime": None, "openvino": "2026.4"}
"""By runtime that opens ONNX files, the oldest release with which forms were tested; None = the writer finds it for
each form. `open_session` of `runtimes/NAME.py` takes the imported module, the path, the form, the number of threads
(None = the runtime's own choice), and whether weights files may be mapped."""

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
            session = _reader("tensorrt").open_engine(module, path, manifest, name, cache)
        else:
            session = _reader(form.runtime).open_session(module, path, form, threads, mapped)
    except UnicodeDecodeError as err:
        raise IntegrityError(f"{path}: the name of an input or output is no UTF-8.") from err
    try:
        check_ports(manifest.io, form, session, str(path))
    except BaseException:
        session.close()
        raise
    return session


def _reader(runtime: str) -> Any:
    """The part of this reader that is for a runtime. Raises RuntimeMissing where a copy of the reader is without it."""
    name = f"{__package__}.runtimes.{runtime}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name != name:
            raise
        raise RuntimeMissing(
            f"this copy of the reader opens no form of {runtime}; pip install attnport-bundle."
        ) from err


def _check_file(path: Path, form: Form) -> None:
    """Raises IntegrityError for a link, or for an engine whose header has another version or other devices."""
    try:
        open_regular(path).close()
        # The header of the other engines is not documented.
        header = _reader("tensorrt").read_header(path) if form.runtime == "tensorrt_rtx" else None
    except (OSError, ValueError) as err:
        raise IntegrityError(str(err) if str(path) in str(err) else f"{path}: {err}") from err
    stated = (form.requires.runtime, form.requires.sm)
    if header and (header.version, header.sm) != stated:
        got = (header.version, header.sm)
        raise IntegrityError(f"{path}: got version and compute capabilities {got}; the manifest says {stated}.")


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
