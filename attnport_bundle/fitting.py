"""Compares the inputs and outputs of a model file, as its runtime reads them, with the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .contract import IO, Profile, TensorSpec
from .errors import IntegrityError, UsageError
from .manifest import Form
from .names import shown
from .session import Port, Session


def check_ports(io: IO, form: Form, session: Session, where: str) -> None:
    """Raises IntegrityError unless names, dtypes, ranks and fixed sizes of an open session are the manifest's.

    A file does not tell the largest size of a named dim, so that the manifest's cannot be checked.
    """
    ends = tuple(Profile(io.dims).sizes(which) for which in ("min", "max"))
    for kind, specs, ports in (("inputs", io.inputs, session.inputs), ("outputs", io.outputs, session.outputs)):
        by_name = {port.name: port for port in ports}
        if set(by_name) != {spec.name for spec in specs} or len(by_name) != len(ports):
            got, stated = ", ".join(map(shown, sorted(by_name))), ", ".join(spec.name for spec in specs)
            raise IntegrityError(f"{where} has the {kind} {got or 'none'}; the manifest says {stated}.")
        for spec in specs:
            _check_port(ends, spec, form.dtypes.get(spec.name, spec.dtype), by_name[spec.name], where)


def _check_port(ends: Sequence[Mapping[str, int]], spec: TensorSpec, dtype: str, port: Port, where: str) -> None:
    if port.dtype != dtype:
        raise IntegrityError(f"{where}: tensor {spec.name!r} is {shown(port.dtype)}; the manifest says {dtype}.")
    if port.shape is None:
        return
    if len(port.shape) != len(spec.dims):
        raise IntegrityError(f"{where}: tensor {spec.name!r} has rank {len(port.shape)}; the manifest says {spec}.")
    for axis, (size, dim) in enumerate(zip(port.shape, spec.dims, strict=True)):
        if size is not None and any(size != _stated(dim, sizes) for sizes in ends):
            raise IntegrityError(
                f"{where}: tensor {spec.name!r} has size {size} on axis {axis}; the manifest says {spec}."
            )


def _stated(dim: str | int, sizes: Mapping[str, int]) -> int | None:
    """The size that the contract gives an axis at these sizes; None where an expression has no value there."""
    try:
        return TensorSpec("", "float32", (dim,)).shape(sizes)[0]
    except UsageError:
        return None


def check_profiles(
    io: IO, form: Form, profiles: Sequence[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]], where: str
) -> None:
    """Raises IntegrityError unless an engine's optimization profiles are the manifest's, in order."""
    if len(profiles) != len(form.profiles):
        raise IntegrityError(
            f"{where} has {len(profiles)} optimization profiles; the manifest says {len(form.profiles)}."
        )
    for index, (got, stated) in enumerate(zip(profiles, form.profiles, strict=True)):
        ends = tuple(stated.sizes(which) for which in ("min", "max"))
        for spec in io.inputs:
            wanted = [tuple(_stated(dim, sizes) for sizes in ends) for dim in spec.dims]
            got_ranges = list(zip(*got.get(spec.name, ((), ())), strict=True))
            if got_ranges != wanted:
                raise IntegrityError(
                    f"{where}: profile {index} takes {spec.name!r} from {[low for low, _ in got_ranges]} to "
                    f"{[high for _, high in got_ranges]}; the manifest says {wanted}."
                )
