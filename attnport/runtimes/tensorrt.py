"""TensorRT engines on an NVIDIA GPU. The same code serves TensorRT and TensorRT-RTX, which share one API.

An engine is deserialised only after its digest, the installed version, its header and the device have been checked.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from attnport.artifacts import CASTS, Capabilities, EngineRecord, Session
from attnport.errors import ArtifactError, IntegrityError, UnavailableError, UsageError, first_line
from attnport.jsonfile import digest_file, digest_text
from attnport.optional import require
from attnport.runtimes import _cuda, _libraries
from attnport.runtimes._engine_session import EngineSession
from attnport.runtimes.base import Kind, Opening, Runtime
from attnport_bundle.runtimes.cuda import driver_release
from attnport_bundle.runtimes.kernels import Cache, RuntimeCache


class TensorRT(Runtime):
    """TensorRT, whose engines run on the kind of GPU that they were built on."""

    name: ClassVar[str] = "tensorrt"
    opens: ClassVar[Kind] = "engine"
    form: ClassVar[str] = "tensorrt"
    module: ClassVar[str] = "tensorrt"
    gpu: ClassVar[bool] = True
    distributions: ClassVar[tuple[str, ...]] = ("tensorrt", "tensorrt-cu*", "nvidia-*")

    def probe(self) -> Capabilities:
        """What the installed version and the driver can do; never raises."""
        version, libraries = "", {}
        try:
            libraries = self.libraries()
            version = str(require(self.module).__version__)
            device = _cuda.Device()
        except UnavailableError as err:
            return Capabilities(self.name, False, err.message, err.hint, version, libraries=libraries)
        except Exception as err:  # a half-installed wheel or driver fails anywhere
            reason = f"{self.module} does not work: {first_line(err)}"
            return Capabilities(self.name, False, reason, version=version, libraries=libraries)
        devices = (f"{device.name} (SM {device.sm})",)
        return Capabilities(self.name, True, version=version, devices=devices, plans=CASTS, libraries=libraries)

    def libraries(self) -> dict[str, str]:
        """The libraries that the installed bindings need, by name, with the path that the loader finds."""
        folders = (f"{self.module}_bindings", self.module)
        bindings = next(filter(None, (_libraries.beside(name, f"{self.module}*.so") for name in folders)), None)
        if bindings is None:
            return {}
        with contextlib.suppress(UnavailableError):
            require(self.module)  # loads the libraries in its wheel
        return {name: _libraries.found(name) for name in _libraries.needed(bindings)}

    def open(self, opening: Opening) -> Session:
        """Checks the engine against its record, then deserialises it.

        Raises:
            UsageError: no engine or no record was given.
            IntegrityError: the file is not the recorded one, or another version of TensorRT is installed.
            UnavailableError: TensorRT is not installed, there is no GPU, or the engine was not built for this GPU.
            ArtifactError: TensorRT cannot read the engine, or its inputs and outputs are not the contract's.
        """
        record, path = opening.engine, opening.model
        if record is None or path is None:
            raise UsageError(f"{self.name} opens an engine and its record; got {'no record' if path else 'no file'}.")
        if opening.plan != record.plan:
            raise UnavailableError(
                f"{path} computes in {record.plan}; {opening.plan} was asked for.",
                hint=f"Build it with: attnport build FOLDER --target {self.name} --dtype {opening.plan}",
            )
        check_engine_file(path, record)
        trt = require(self.module)
        if str(trt.__version__) != record.version:
            raise IntegrityError(
                f"{path} was built by {self.module} {record.version}; installed is {trt.__version__}.",
                hint=f"Build it again, or install {self.module} {record.version}.",
            )
        self.check_header(path)
        device = _cuda.Device()
        if record.sm and device.sm not in record.sm:
            raise UnavailableError(
                f"{path} was built for SM {', '.join(map(str, record.sm))}; {device.name} is SM {device.sm}.",
                hint=f"Build it again with --sm {device.sm}.",
            )
        device.open()
        try:
            cache = None if opening.cache is None or not self.keeps else _kept(opening.cache, device, record)
            return EngineSession(self.module, trt, device, path, opening.io, record, cache)
        except BaseException:
            device.close()
            raise

    def check_header(self, path: Path) -> None:
        """Checks the engine's header, if its layout is known; that of TensorRT is not."""


def _kept(folder: Path, device: _cuda.Device, record: EngineRecord) -> RuntimeCache:
    """The cache entry for what this release compiled from this engine for this device and driver."""
    entry = digest_text(record.digest, record.version, device.uuid, driver_release())
    return RuntimeCache(Cache(folder), entry)


def check_engine_file(path: Path, record: EngineRecord) -> None:
    """Compares an engine's size and digest with its record.

    Raises:
        ArtifactError: there is no such file.
        IntegrityError: the file is not the one that was written.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is missing.", hint="Build the engine again.")
    size, digest = path.stat().st_size, digest_file(path)
    if (size, digest) != (record.size_bytes, record.digest):
        raise IntegrityError(
            f"{path} is not the engine of its record: got {size} bytes, SHA-256 {digest[:12]}; "
            f"expected {record.size_bytes} bytes, {record.digest[:12]}.",
            hint="It was changed or cut short; build it again.",
        )


RUNTIME = TensorRT()
