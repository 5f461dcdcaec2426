"""Golden cases: what export stores of them, and the bounds that a bundle judges by, both by the rule of parity."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from attnport.artifacts import INTEGERS, IOContract, ModelSpec, Session
from attnport.bundling import golden
from attnport.cases.inputs import cases
from attnport.errors import ArtifactError, AttnportError
from attnport.masks.numpy_builders import numpy_dtype
from attnport.parity.bound import FACTORS_OF_ONE_RUN, ByCase, Errors, Yardstick, measure
from attnport.parity.evaluate import as_compared
from attnport.parity.metrics import fills_of
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport_bundle.format.manifest import Bound

FILE = "golden.npz"

CASES = (
    *("right padding", "one row fully masked", "usual sizes", "primes"),
    *("prefixes of several lengths", "documents of several lengths", "random global tokens"),
)
Array = np.ndarray[Any, Any]
_FACTORS_OF_ITSELF = (1.5, 1.5)
"""How far a form in integers may be from what it gave itself, as factors of its own errors.

These come from the rounding of weights, which is in the file and the same everywhere, and from that of activations,
which another processor's kernels redo, or leave out: what that changes is about as large as the errors, at most. Of
MiniLM in int8, WebAssembly and ONNX's reference evaluator are up to 0.36 of them away from ONNX Runtime with VNNI.
"""


def write_golden(spec: ModelSpec, path: Path) -> None:
    """Writes a few cases with the module's outputs in float64, and eager's in float32 as a measure of error."""
    arrays: dict[str, Array] = {}
    feeds: dict[str, Mapping[str, Array]] = {}
    reference = Opening(spec.io, spec=spec, float64=True, contract=True)
    with contextlib.closing(base.get("torch_eager").open(reference)) as session:
        for case in (case for case in cases(spec.io) if case.name in CASES):
            outputs = session.run(case.feeds)
            valid = as_compared(session, spec.io, case).valid
            if not all(rows.any() for rows in valid.values() if rows.size):
                continue  # a single item, without any key
            feeds[case.name] = case.feeds
            for kind, tensors in (("in", case.feeds), ("valid", valid), ("out", outputs)):
                arrays |= _named(case.name, kind, tensors)
    arrays |= _run(feeds, golden.eager("fp32"), Opening(spec.io, plan="fp32", spec=spec, contract=True))
    _save(path, arrays)


def add_eager(
    spec: ModelSpec,
    path: Path,
    to: Callable[[], Path],
    plans: Collection[str],
    redrawn: Mapping[str, ByCase] = MappingProxyType({}),
) -> None:
    """Adds PyTorch's outputs at the given plans to a file of `write_golden`, except for plans that it already has.

    A plan that PyTorch cannot compute the module in is left out: what has no twin has no bound. That of `auto` is the
    run that does not overflow, so that there is one for a module that does in fp16.

    Args:
        to: Gives the path to write to. It is called only if something was added.
        redrawn: The worst errors where `check` ran PyTorch more than once, by plan and case; the larger ones stay.
    """
    arrays = golden.load(path)
    feeds = _feeds(arrays, spec.io)
    added: dict[str, Array] = {}
    for plan in sorted(plans):
        kind = golden.eager(plan)
        if plan in INTEGERS or any(name.split("/")[1] == kind for name in arrays):
            continue
        with contextlib.suppress(AttnportError):
            added |= _run(feeds, kind, Opening(spec.io, plan=plan, spec=spec, contract=True))
    for plan, by_case in redrawn.items():
        for case, by_output in by_case.items():
            for output, errors in by_output.items():
                name = f"{_stored(case)}/{golden.redrawn(plan)}/{output}"
                worst = np.array([errors.rms or 0.0, errors.max or 0.0])
                if case in CASES and np.any(worst > (had := arrays.get(name, np.zeros(2)))):
                    added[name] = np.maximum(worst, had)
    if added:
        _save(to(), arrays | added)


def set_own(session: Session, io: IOContract, form: str, path: Path, to: Path) -> None:
    """Writes a file of `write_golden` with what a form in integers gives: it has no twin, and is its own reference."""
    arrays = golden.load(path)
    for case, feeds in _feeds(arrays, io).items():
        arrays |= _named(case, golden.eager(form), session.run(feeds))
    _save(to, arrays)


def drop_own(forms: Collection[str], path: Path, to: Path) -> None:
    """Writes a file of `write_golden` without what `set_own` added of some forms."""
    gone = {golden.eager(form) for form in forms}
    _save(to, {name: array for name, array in golden.load(path).items() if name.split("/")[1] not in gone})


def _feeds(arrays: Mapping[str, Array], io: IOContract) -> dict[str, dict[str, Array]]:
    """The inputs of each golden case; the file has bfloat16 as float32."""
    feeds: dict[str, dict[str, Array]] = {case: {} for case in golden.cases(arrays)}
    dtypes = {each.name: numpy_dtype(each.dtype) for each in io.inputs}
    for name, array in arrays.items():
        case, kind, tensor = name.split("/", 2)
        if kind == "in":
            feeds[case][tensor] = array.astype(dtypes[tensor], copy=False)
    return feeds


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _run(feeds: Mapping[str, Mapping[str, Array]], kind: str, opening: Opening) -> dict[str, Array]:
    found: dict[str, Array] = {}
    with contextlib.closing(base.get("torch_eager").open(opening)) as session:
        for case, tensors in feeds.items():
            found |= _named(case, kind, session.run(tensors))
    return found


def _named(case: str, kind: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{_stored(case)}/{kind}/{name}": _plain(array) for name, array in arrays.items()}


def _stored(case: str) -> str:
    """A case's name in the file."""
    return case.replace(" ", "_")


def _plain(array: Array) -> Array:
    """An array that a file can hold: bfloat16 is no type of NumPy's own, and float32 holds every value of it."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def read_goldens(
    path: Path, io: IOContract, plans: Collection[str], own: Mapping[str, str] = MappingProxyType({})
) -> golden.GoldenSet:
    """The golden cases of an artifact with a bound for every output and plan.

    A form in integers is compared with what it gave itself where it was judged, in cases of its own: measured from
    float64, one that computes something else might pass. Fill values, which differ between precisions,
    are not compared.

    Args:
        own: For each of the plans that is in integers, the form in it.

    Raises:
        ArtifactError: the file is damaged, or has nothing for a plan; or a result is not finite in a valid element.
    """
    arrays = golden.read(path, io, [own.get(plan, plan) for plan in plans])
    kept: dict[str, Array] = {}
    made: list[Bound] = []
    for plan in sorted(plans):
        kind = golden.eager(own[plan]) if plan in own else "out"
        for bound in bounds(arrays, io, plan, own.get(plan, plan)):
            reference, valid = (arrays[f"{bound.case}/{each}/{bound.output}"] for each in (kind, "valid"))
            if plan not in own and (fills := fills_of(reference, valid)) is not None:
                if not np.isfinite(arrays[f"{bound.case}/{golden.eager(plan)}/{bound.output}"][valid]).all():
                    raise ArtifactError(
                        f"golden case {bound.case}, output {bound.output}: it is infinite in {plan}.",
                        hint="What a bundle proves is finite: fill with a number that the precision has, as -1e4.",
                    )
                rows = valid.reshape(*valid.shape, *(1,) * (reference.ndim - valid.ndim))
                valid = rows & (np.abs(reference) < fills.level)
            named = f"{bound.case}.{plan}" if plan in own else bound.case
            kept |= {f"{named}/in/{spec.name}": arrays[f"{bound.case}/in/{spec.name}"] for spec in io.inputs}
            kept |= {f"{named}/valid/{bound.output}": valid, f"{named}/out/{bound.output}": reference}
            made.append(replace(bound, case=named))
    return golden.GoldenSet(kept, tuple(made))


def bounds(arrays: Mapping[str, Array], io: IOContract, plan: str, run: str = "") -> tuple[Bound, ...]:
    """The bound of every output of every case at a plan: see `attnport.parity.bound`.

    It comes from one run of PyTorch, or from those of `check` where it made several and they allow more.

    Args:
        run: Whose outputs are measured: of a plan in integers the form; "" = PyTorch at the plan.

    Raises:
        ArtifactError: a reference or eager's output is not finite in a valid element, or a case has none.
    """
    errors: dict[str, dict[str, Errors]] = {}
    for case in golden.cases(arrays):
        for spec in io.outputs:
            got, expected, valid = (
                arrays[f"{case}/{kind}/{spec.name}"] for kind in (golden.eager(run or plan), "out", "valid")
            )
            found = measure(got, expected, valid, spec)
            if found.problem:
                raise ArtifactError(
                    f"golden case {case}, output {spec.name}, PyTorch at {plan}: {found.problem}.",
                    hint="Export again; if it stays, the module itself has no finite result there.",
                )
            errors.setdefault(case, {})[spec.name] = found
    made = []
    if plan in INTEGERS:
        once = Yardstick("fp32", errors, factors=_FACTORS_OF_ITSELF)  # an integer's step is in its errors
    else:
        once = Yardstick(plan, errors, factors=FACTORS_OF_ONE_RUN)
    for case, by_output in errors.items():
        for output, error in by_output.items():
            of_rms, of_max = once.bounds(case, output, error.reference_rms)
            if (further := arrays.get(f"{case}/{golden.redrawn(plan)}/{output}")) is not None:
                worst = replace(error, rms=float(further[0]), max=float(further[1]))
                often = Yardstick(plan, {case: {output: worst}}).bounds(case, output, error.reference_rms)
                of_rms, of_max = max(of_rms, often[0]), max(of_max, often[1])
            made.append(Bound(case, output, plan, of_rms, of_max))
    return tuple(made)
