"""Running a session over cases: the float64 reference once, everything else measured against it.

References lie in a temporary folder and are mapped when needed, so that one model and one case are in memory at a
time, whatever the number of runtimes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from attnport.artifacts import IOContract, Ran, Session
from attnport.budget import Budget
from attnport.cases.choosing import DECODING, in_steps, of_all_tokens
from attnport.cases.inputs import Array, Case, batch_dim, full_case, validity
from attnport.dims import TensorSpec
from attnport.errors import AttnportError, SpecError, whole_cause
from attnport.parity.invariance import IN_A_BATCH, Spread, Variant, follows, tells_items, variants
from attnport.parity.metrics import Errors, failed, measure_all
from attnport.processes.isolated import Died, Limits
from attnport_bundle.feeds import check_shapes

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Means:
    """How runtimes are run: what no result depends on.

    Attributes:
        threads: Compute threads; None = the physical cores.
        limits: What a process of its own may use, and whether every runtime gets one.
        progress: Called with a line for each step.
    """

    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    progress: Progress = lambda message: None


class References:
    """The float64 outputs of each case, on disk.

    Attributes:
        undefined: The cases and outputs in which the unchanged module gives NaN or Inf.
        without_empty: By name, cases whose items without any key are not compared, as the module gives numbers there
            where forms give zero.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: an empty folder that the caller deletes."""
        self.undefined: set[tuple[str, str]] = set()
        self.without_empty: dict[str, Case] = {}
        self._folder = folder
        self._index: dict[str, int] = {}

    def save(self, case: str, outputs: Mapping[str, Array]) -> None:
        """Keeps the outputs of a case."""
        number = self._index.setdefault(case, len(self._index))
        for position, array in enumerate(outputs.values()):
            np.save(self._folder / f"{number}-{position}.npy", array, allow_pickle=False)

    def load(self, case: str, names: Sequence[str]) -> dict[str, Array]:
        """The outputs of a case, read-only, in the order in which they were saved."""
        number = self._index[case]
        return {
            name: np.load(self._folder / f"{number}-{position}.npy", mmap_mode="r", allow_pickle=False)
            for position, name in enumerate(names)
        }

    def compared(self, case: Case) -> Case:
        """The case with the rows that are compared: see `without_empty`."""
        return self.without_empty.get(case.name, case)


@dataclass
class SessionErrors:
    """What a session gave on the cases.

    Attributes:
        errors: By case and output.
        compared: The cases whose batch items went into `spreads`.
        by_size: The outputs in which an item's rows are told by their number: see `invariance.follows`.
    """

    ran: Ran
    errors: dict[str, dict[str, Errors]] = field(default_factory=dict)
    spreads: defaultdict[tuple[str, str], Spread] = field(default_factory=lambda: defaultdict(Spread))
    compared: list[str] = field(default_factory=list)
    by_size: set[str] = field(default_factory=set)


def make_references(
    session: Session, io: IOContract, cases: list[Case], store: References, progress: Progress
) -> list[str]:
    """Runs the module in float64 on every case and keeps the outputs.

    Args:
        cases: Those whose sizes may not fit into memory or time are removed, after smaller sizes on the way to them.

    Returns:
        Notes: cases that were removed, and outputs that did not come back in float64, because the module casts inside.

    Raises:
        SpecError: the module's outputs are not the declared ones.
    """
    narrow: dict[str, str] = {}
    names = [spec.name for spec in io.outputs]
    whole = of_all_tokens(io)
    budget = Budget([batch] if (batch := batch_dim(whole)) else [])
    outputs: dict[str, Array] = {}

    def run(case: Case, own: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
        outputs.clear()
        outputs.update(session.run(case.feeds if sizes == own else full_case(whole, sizes).feeds))
        return True

    left_out = {}
    for number, case in enumerate(sorted(cases, key=_elements), start=1):
        progress(f"float64 reference {number}/{len(cases)}: {case.name}")
        sizes = check_shapes(whole, case.feeds)
        if budget.reach(sizes, partial(run, case, sizes)) is None:
            stated = ",".join(f"{name}={size}" for name, size in sizes.items())
            left_out[case.name] = f"the case {case.name} ({stated}) was left out: {budget.why_not(sizes)}"
            continue
        if list(outputs) != names:
            raise SpecError(f"the module returns {', '.join(outputs)}; the contract declares {', '.join(names)}.")
        for spec in io.outputs:
            shape, leading = outputs[spec.name].shape, case.valid[spec.name].shape
            if len(shape) != len(spec.dims) or shape[: len(leading)] != leading:
                raise SpecError(
                    f"output {spec.name!r}, case {case.name}: the module gives shape {list(shape)}; declared {spec}."
                )
            if "float" in spec.dtype and outputs[spec.name].dtype != np.float64:
                narrow[spec.name] = str(outputs[spec.name].dtype)
        store.save(case.name, outputs)
        compared = as_compared(session, io, case)
        if compared is not case:
            store.without_empty[case.name] = compared
        store.undefined |= {(case.name, name) for name in getattr(session, "undefined", ())}
    cases[:] = [case for case in cases if case.name not in left_out]
    return [*left_out.values()] + [
        f"the reference of {name} came back in {dtype}: the module casts inside, so its own rounding is in every error"
        for name, dtype in narrow.items()
    ]


def as_compared(session: Session, io: IOContract, case: Case) -> Case:
    """The case that a float64 session has just run, with the rows that are compared.

    These are not the rows of items without any key if the module gives other numbers than zero there.
    """
    if not getattr(session, "gave_numbers", False):
        return case
    valid = validity(io, case.feeds, empty_items=False)
    return replace(case, valid=valid) if any((valid[name] != case.valid[name]).any() for name in valid) else case


def _elements(case: Case) -> int:
    return sum(array.size for array in case.feeds.values())


def measure_session(
    session: Session,
    io: IOContract,
    cases: Sequence[Case],
    store: References,
    progress: Progress,
    *,
    items: int = 0,
) -> SessionErrors:
    """Runs a session on cases and measures each against its reference; a case that raises is an error of that case.

    Args:
        items: How many batch items are also run alone and with more padding; the first of each case that
            `invariance_cases` names, spread evenly over them.

    Raises:
        Died: the session's process crashed, hung or had no memory left.
        MemoryError: the runtime had no memory left, in this process.
    """
    found = SessionErrors(session.ran)
    names = [spec.name for spec in io.outputs]
    pairs = invariance_cases(cases)
    for number, case in enumerate(cases, start=1):
        progress(f"{number}/{len(cases)} {case.name}")
        if case.group == DECODING:
            outputs = _answered(partial(in_steps, session, io, case.feeds))
        else:
            outputs = _run(session, case.feeds)
        if isinstance(outputs, str):
            found.errors[case.name] = failed(io, outputs)
            continue
        found.errors[case.name] = measure_all(outputs, store.load(case.name, names), store.compared(case), io)
        if case.name in pairs and items:
            share = -(-items // len(pairs))
            measure_items(session, io, case, outputs, found, share)
    return found


def invariance_cases(cases: Sequence[Case]) -> list[str]:
    """The cases whose items are run alone: the sentences, or where there are none a case with padding on the right.

    Documents have none; their items are as long as the batch and are given padding.
    """
    text = [case.name for case in cases if case.group == "text"]
    names = {case.name for case in cases}
    padded: list[str] = [name for name in ("right padding", "documents of several lengths") if name in names]
    return text or padded[:1]


def measure_items(
    session: Session, io: IOContract, case: Case, outputs: Mapping[str, Array], found: SessionErrors, limit: int
) -> None:
    """Runs `limit` items of a case with padding on the right, for which the session gave `outputs`, alone and with more
    padding, and adds what changes to `found.spreads`."""
    for count, variant in enumerate(variants(io, case)):
        by_size = [spec for spec in io.outputs if follows(io, variant.keys, spec)]
        outputs_told = [spec for spec in io.outputs if spec in by_size or tells_items(io, variant.keys, spec)]
        if count == limit or not outputs_told:
            break
        found.by_size |= {spec.name for spec in by_size}
        alone = _run(session, variant.alone)
        padded = {name: (start, _run(session, feeds)) for name, (start, feeds) in variant.padded.items()}
        for spec in outputs_told:
            whole = _part(io, variant, alone, spec, 0, 0)
            inside = _part(io, variant, outputs, spec, variant.row, 0)
            found.spreads[f"{IN_A_BATCH}{variant.about}", spec.name].add(whole, inside)
            for name, (start, result) in padded.items():
                if start and spec in by_size:
                    continue  # rows that follow from several places do not move with them
                part = _part(io, variant, result, spec, 0, start)
                found.spreads[f"{name}{variant.about}", spec.name].add(whole, part)
        if case.name not in found.compared:
            found.compared.append(case.name)


def _part(
    io: IOContract, variant: Variant, outputs: Mapping[str, Array] | str, spec: TensorSpec, row: int, start: int
) -> Array:
    """One item's rows; empty, which never passes, where the run failed."""
    if isinstance(outputs, str) or spec.name not in outputs:
        return np.empty(0)
    return variant.part(io, spec, outputs[spec.name], row, start)


def _run(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array] | str:
    """The outputs, or in one line why there are none; raises Died and MemoryError, which are no matter of the case."""
    return _answered(lambda: session.run(feeds))


def _answered(call: Callable[[], dict[str, Array]]) -> dict[str, Array] | str:
    try:
        return call()
    except (Died, MemoryError):
        raise
    except AttnportError as err:
        return f"it raised: {err.message}"
    except Exception as err:  # a runtime's own exceptions have no common base; all mean that this case failed
        return f"it raised {type(err).__name__}: {whole_cause(err)}"
