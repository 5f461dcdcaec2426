"""What a model file takes and gives, as its runtime reads it, against what the manifest says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .contract import IO, TensorSpec
from .errors import IntegrityError
from .manifest import Form
from .names import shown
from .session import Port, Session


def check_ports(io: IO, form: Form, session: Session, where: str) -> None:
    """Raises IntegrityError unless names, dtypes, ranks and fixed sizes of an open session are the manifest's.

    The largest size that a named dim takes cannot be read off a file: there the manifest has to be believed.
    """
    for kind, specs, ports in (("inputs", io.inputs, session.inputs), ("outputs", io.outputs, session.outputs)):
        found = {port.name: port for port in ports}
        if set(found) != {spec.name for spec in specs} or len(found) != len(ports):
            got, stated = ", ".join(map(shown, sorted(found))), ", ".join(spec.name for spec in specs)
            raise IntegrityError(f"{where} has the {kind} {got or 'none'}; the manifest says {stated}.")
        for spec in specs:
            _check_port(io, spec, form.dtypes.get(spec.name, spec.dtype), found[spec.name], where)


def _check_port(io: IO, spec: TensorSpec, dtype: str, port: Port, where: str) -> None:
    if port.dtype != dtype:
        raise IntegrityError(f"{where}: tensor {spec.name!r} is {shown(port.dtype)}; the manifest says {dtype}.")
    if port.shape is None:
        return
    if len(port.shape) != len(spec.dims):
        raise IntegrityError(f"{where}: tensor {spec.name!r} has rank {len(port.shape)}; the manifest says {spec}.")
    ranges = {dim.name: {dim.min, dim.max} for dim in io.dims}
    for axis, (size, dim) in enumerate(zip(port.shape, spec.dims, strict=True)):
        stated = ranges[dim] if isinstance(dim, str) else {dim}
        if size is not None and stated != {size}:
            raise IntegrityError(
                f"{where}: tensor {spec.name!r} has size {size} on axis {axis}; the manifest says {spec}."
            )


def check_profiles(
    io: IO, form: Form, profiles: Sequence[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]], where: str
) -> None:
    """Raises IntegrityError unless an engine's optimization profiles are the manifest's, in order."""
    if len(profiles) != len(form.profiles):
        raise IntegrityError(
            f"{where} has {len(profiles)} optimization profiles; the manifest says {len(form.profiles)}."
        )
    for index, (got, stated) in enumerate(zip(profiles, form.profiles, strict=True)):
        ranges = {dim.name: (dim.min, dim.max) for dim in stated.dims}
        for spec in io.inputs:
            wanted = [(dim, dim) if isinstance(dim, int) else ranges[dim] for dim in spec.dims]
            found = list(zip(*got.get(spec.name, ((), ())), strict=True))
            if found != wanted:
                raise IntegrityError(
                    f"{where}: profile {index} takes {spec.name!r} from {[low for low, _ in found]} to "
                    f"{[high for _, high in found]}; the manifest says {wanted}."
                )
