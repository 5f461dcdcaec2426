"""A comparison at one precision plan: modules are cast to it, and PyTorch eager on a GPU can be the one that judges.

A GPU makes the float64 reference in slices of one batch item, since a processor would take the longest part of the
time for it. The reference is itself compared with the processor's on the first case. See ADR 11.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnport.artifacts import Form, IOContract, ParityReport, RuntimeParity, Session
from attnport.cases.inputs import Array, batch_dim
from attnport.errors import ParityFailed
from attnport.folder.openings import not_in, openings_at, why_none
from attnport.parity.comparing import Comparison, _Tried
from attnport.parity.eager import EAGER, Eager
from attnport.processes.isolated import absent, unavailable
from attnport.runtimes.base import Opening, Runtime

AGREES = 1e-9
"""Two float64 runs of one module, as a share of the RMS of the result: their rounding, through many layers."""


@dataclass
class ComparisonAtPlan(Comparison):
    """A comparison of what computes in one precision plan.

    Attributes:
        plan: The plan; forms and engines of others are not in `manifest`.
        eager: The runtime that makes the reference, and whose error bounds that of the others.
    """

    plan: str = "fp32"
    eager: str = EAGER

    def __post_init__(self) -> None:
        super().__post_init__()
        self._processor = self._eager
        if self.eager != EAGER:
            given = self.io, self.spec, self.cases, self.store, self.threads, self.progress, self.eager
            self._eager = self._eager_on_gpu = EagerOnDevice(*given, items=self._items)

    def report(self, chosen: Sequence[Runtime], forms: Mapping[str, Form]) -> ParityReport:
        """As of any comparison.

        Raises:
            ParityFailed: the reference is not what the processor computes.
        """
        if self.eager != EAGER:
            self._check_reference()
        return super().report(chosen, forms)

    def _runtime(self, runtime: Runtime) -> dict[str, RuntimeParity | _Tried]:
        name, found = runtime.name, self.probed[runtime.name]
        if why := not_in(found, self.plan) if found.available else unavailable(found):
            return {name: replace(self._not_run(why, self.plan), absent=absent(found))}
        if name == self.eager:
            return {
                name: _Tried(self.plan, self._eager.measured(self.plan), "PyTorch eager, the yardstick of the others")
            }
        if runtime.opens == "module":
            opening = Opening(self.io, plan=self.plan, spec=self.spec, threads=self.threads, contract=True)
            return {name: self._measured(runtime, opening)}
        openings = openings_at(self.plan, runtime, self.folder, self.manifest, self.threads, self.bundle)
        if not openings:
            return {name: self._not_run(why_none(runtime, self.plan), self.plan)}
        return {key: self._measured(runtime, opening) for key, opening in openings.items()}

    def _form(self, name: str, form: Form) -> RuntimeParity | _Tried:
        if self.eager == EAGER:
            return super()._form(name, form)
        return self._not_run(f"graphs are not run without their target where {self.eager} judges", form.plan)

    def _check_reference(self) -> None:
        """Raises ParityFailed where the float64 run of the device is not that of the processor."""
        case = self.cases[0]
        with self._processor.session("fp32", float64=True) as session:
            expected = session.run(case.feeds)
        with self._eager.session("fp32", float64=True) as session:
            got, device = session.run(case.feeds), session.ran.device
        for name, array in expected.items():
            error = float(np.abs(np.asarray(got[name], np.float64) - array).max(initial=0.0))
            scale = float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
            if not error <= AGREES * scale:
                raise ParityFailed(
                    f"float64 on {device} is not the processor's: {name} of {case.name} differs by up to "
                    f"{error:.2e}; expected at most {AGREES:.0e} of {scale:.2e}.",
                    hint="Nothing can be judged by it: look at the driver, the memory and PyTorch's build. A module "
                    "whose batch items see each other cannot be judged there either: it is run one item at a time.",
                )


class EagerOnDevice(Eager):
    """PyTorch eager whose float64 runs are made one batch item at a time."""

    @contextlib.contextmanager
    def session(self, plan: str, *, float64: bool = False, **how: Any) -> Iterator[Session]:
        """As on the processor."""
        with super().session(plan, float64=float64, **how) as session:
            yield Sliced(session, self.io) if float64 else session


class Sliced:
    """A session that is given one batch item after the other: in float64 a whole batch of scores may not fit.

    Attributes:
        ran: As the session's.
        undefined: As of a session of PyTorch eager, for the last call.
        gave_numbers: The same.
    """

    def __init__(self, session: Session, io: IOContract) -> None:
        self._session, self._io, self.ran = session, io, session.ran
        self.undefined: frozenset[str] = frozenset()
        self.gave_numbers = False
        batch = batch_dim(io)
        self._batch = batch if all(batch in spec.dims for spec in io.outputs) else None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, as of the whole batch where no item sees another."""
        batch = self._batch
        axes = {
            spec.name: spec.dims.index(batch) for spec in self._io.inputs if batch is not None and batch in spec.dims
        }
        counts = {feeds[name].shape[axis] for name, axis in axes.items()}
        self.undefined, self.gave_numbers = frozenset(), False
        if batch is None or len(counts) != 1 or counts == {1}:
            return self._ran(feeds)
        parts = []
        for item in range(counts.pop()):
            taken = {name: feeds[name].take([item], axis) for name, axis in axes.items()}
            parts.append(self._ran({**feeds, **taken}))
        return {
            spec.name: np.concatenate([part[spec.name] for part in parts], spec.dims.index(batch))
            for spec in self._io.outputs
        }

    def _ran(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self._session.run(feeds)
        self.undefined |= getattr(self._session, "undefined", frozenset())
        self.gave_numbers |= getattr(self._session, "gave_numbers", False)
        return outputs

    def close(self) -> None:
        """Closes the session."""
        self._session.close()
