"""Opens one form of a bundle: checks the file, then its runtime's release, opens it, and compares it with the contract.

A release, provider or device that does not fit raises RuntimeMissing, as another form may run. A file that differs
from the manifest raises IntegrityError, as then nothing in the bundle can be trusted.

`onnxruntime`, `openvino` and `tensorrt` have a session each, and are imported when a form asks for them;
a bundle carries those of its forms. `cuda` is the driver, for TensorRT and for ONNX Runtime on a GPU; `kernels` keeps
what TensorRT-RTX compiled.
"""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BundleError, IntegrityError, RuntimeMissing, escaped, of_this_copy
from ..feeds import through_numpy
from ..format.contract import IO, Profile, TensorSpec
from ..format.files import open_regular
from ..format.manifest import ENGINES, Form, Manifest, Requires, package_of, shown_name

if TYPE_CHECKING:
    import numpy as np

    from .kernels import Cache

    Arrays = dict[str, np.ndarray[Any, Any]]

_CPU_INFO = Path("/proc/cpuinfo")
Range = tuple[tuple[int, ...], tuple[int, ...]]
"""The smallest and the largest shape."""


@dataclass(frozen=True)
class Port:
    """An input or output of the model file. `shape` is None if the rank is unknown, an axis None if it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Machine:
    """The device that a session runs on. `uuid`, `sm` and `driver` are for GPUs."""

    device: str
    uuid: str = ""
    sm: int = 0
    driver: str = ""


class Session(Protocol):
    """A model file that a runtime has open.

    Attributes:
        provider, version, machine: As of `model.Model`.
        inputs, outputs: The inputs and outputs of the file.
        profiles: For each optimization profile of an engine, the smallest and largest shape of each input by name.
        wants_eights: Whether lengths that are multiples of 8 are much quicker than others.
        keeps: Whether what is compiled for the device is kept for the next time.
    """

    provider: str
    version: str
    machine: Machine
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    profiles: Sequence[Mapping[str, Range]] = ()
    wants_eights: bool = False
    keeps: bool = False

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """Every output by name, in the file's own dtypes; `feeds` fit the contract."""

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, for tensors with `__dlpack__`; the outputs have it too.

        Inputs come from the CPU and outputs are copied there, unless a runtime keeps them on its device.
        """
        return dict(self.run(through_numpy(feeds)))

    def close(self) -> None:
        """Frees the session."""


@contextmanager
def refusals(runtime: str) -> Iterator[None]:
    """Turns what a runtime raises in the block into a BundleError, as its own exceptions share no base."""
    try:
        yield
    except BundleError:
        raise
    except Exception as err:  # a runtime's own exceptions share no base
        raise BundleError(f"{runtime} failed: {escaped(str(err))}") from err


def cpu() -> Machine:
    """The processor."""
    name = platform.processor()
    if _CPU_INFO.is_file():
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return Machine(f"{platform.machine()} {name}".strip())


def check_ports(io: IO, form: Form, session: Session, where: str) -> None:
    """Raises IntegrityError unless names, dtypes, ranks, fixed sizes and profiles of a session are the manifest's.

    An ONNX file does not tell the largest size of a named dim, so that the manifest's cannot be checked.
    """
    ends = tuple(Profile(io.dims).sizes(which) for which in ("min", "max"))
    for kind, specs, ports in (("inputs", io.inputs, session.inputs), ("outputs", io.outputs, session.outputs)):
        by_name = {port.name: port for port in ports}
        if set(by_name) != {spec.name for spec in specs} or len(by_name) != len(ports):
            got, stated = ", ".join(map(shown_name, sorted(by_name))), ", ".join(spec.name for spec in specs)
            raise IntegrityError(f"{where} has the {kind} {got or 'none'}; the manifest says {stated}.")
        for spec in specs:
            _check_port(ends, spec, form.dtypes.get(spec.name, spec.dtype), by_name[spec.name], where)
    _check_profiles(io, form, session.profiles, where)


def _check_port(ends: Sequence[Mapping[str, int]], spec: TensorSpec, dtype: str, port: Port, where: str) -> None:
    if port.dtype != dtype:
        raise IntegrityError(f"{where}: tensor {spec.name!r} is {shown_name(port.dtype)}; the manifest says {dtype}.")
    if port.shape is None:
        return
    if len(port.shape) != len(spec.dims):
        raise IntegrityError(f"{where}: tensor {spec.name!r} has rank {len(port.shape)}; the manifest says {spec}.")
    for axis, (size, *stated) in enumerate(zip(port.shape, *(spec.known_shape(sizes) for sizes in ends), strict=True)):
        if size is not None and stated != [size] * len(stated):
            raise IntegrityError(
                f"{where}: tensor {spec.name!r} has size {size} on axis {axis}; the manifest says {spec}."
            )


def _check_profiles(io: IO, form: Form, profiles: Sequence[Mapping[str, Range]], where: str) -> None:
    if len(profiles) != len(form.profiles):
        raise IntegrityError(
            f"{where} has {len(profiles)} optimization profiles; the manifest says {len(form.profiles)}."
        )
    for index, (got, stated) in enumerate(zip(profiles, form.profiles, strict=True)):
        ends = tuple(stated.sizes(which) for which in ("min", "max"))
        for spec in io.inputs:
            wanted, got_ends = tuple(map(spec.known_shape, ends)), got.get(spec.name, ((), ()))
            if got_ends != wanted:
                low, high = map(list, got_ends)
                raise IntegrityError(
                    f"{where}: profile {index} takes {spec.name!r} from {low} to {high}; the manifest says "
                    f"{list(wanted[0])} to {list(wanted[1])}."
                )


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
        RuntimeMissing: the runtime, provider or device is missing, does not compute in the form's precision, or is not
            the one that the form requires.
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
    with of_this_copy(f"runtimes.{runtime}"):
        return importlib.import_module(f"{__package__}.{runtime}")


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
        raise RuntimeMissing(f'{runtime} {problem}; pip install "{wanted}".') from (None if absent else err)
    version = str(module.__version__)
    fits = version == requires.runtime if requires.exact else release(version) >= release(requires.runtime)
    if not fits:
        problem = ", that release exactly" if requires.exact else " or later"
        raise RuntimeMissing(f'got {runtime} {version}; expected {requires.runtime}{problem}; pip install "{wanted}".')
    return module


def release(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, for comparison; suffixes of a build are left out."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+-]", version)[0], re.ASCII)[:3])
