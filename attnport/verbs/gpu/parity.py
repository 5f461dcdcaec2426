"""Parity on a device: every runtime against a float64 run of the module there, by PyTorch eager's own error there.

The GPU makes that run, in slices of one batch item, since a processor would take the longest part of the time for it.
It is itself compared with the processor's on the first case. See ADR 11.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import Manifest, ModelSpec, RuntimeParity, Session
from attnport.cases.inputs import Array, Case, batch_dim, cases, full_case
from attnport.errors import ArtifactError, AttnportError, BundleError, ParityFailed, UnavailableError
from attnport.folder.portable import portable
from attnport.parity import bound as parity
from attnport.parity.eager import EAGER, Eager
from attnport.parity.evaluate import Progress, References, SessionErrors, make_references, measure_session
from attnport.processes.child import ChildError
from attnport.processes.isolated import IsolatedSession, Limits, reason_of_failure
from attnport.runtimes.base import Opening, Runtime

MOST_ELEMENTS = 1 << 24
"""Of an output of a case: comparing takes NumPy seconds from there on."""
AGREES = 1e-9
"""Two float64 runs of one module, as a share of the RMS of the result: their rounding, through many layers."""
_FAILED_KEPT = 10


@dataclass(frozen=True)
class Judging:
    """What a piece is judged with.

    Attributes:
        eager: The runtime that makes the reference, and whose error bounds that of the others.
        scratch: An empty folder for the references.
    """

    folder: Path
    manifest: Manifest
    spec: ModelSpec
    plan: str
    eager: str
    threads: int | None
    limits: Limits
    scratch: Path
    progress: Progress

    def judged(
        self, openings: Mapping[str, tuple[Runtime, Opening]], sizes: Sequence[Mapping[str, int]]
    ) -> dict[str, RuntimeParity]:
        """The verdict of each runtime.

        Args:
            openings: What each runtime opens, by the name that reports use.
            sizes: Those of the calls that are timed; the ones that are not too large are cases as well.

        Raises:
            ParityFailed: the reference is not what the processor computes.
        """
        io = self.manifest.io
        tried = cases_of(io, sizes)
        store = References(self.scratch)
        saying = self._saying("yardstick")
        eager = Eager(io, self.spec, tried, store, self.threads, saying, self.eager, alone=False)
        with eager.session("fp32", float64=True) as session:
            sliced = Sliced(session, io)
            self._check_reference(sliced, replace(eager, runtime=EAGER))
            make_references(sliced, io, tried, store, saying)
        own = eager.measured(self.plan)
        ran, found = {}, {}
        for name, (runtime, opening) in openings.items():
            if runtime.name == self.eager:
                ran[name] = own
                continue
            try:
                with contextlib.closing(self._apart(runtime, opening)) as session:
                    ran[name] = measure_session(session, io, tried, store, self._saying(f"{name} {self.plan}"))
            except (ChildError, MemoryError) as err:
                found[name] = self._said("NOT_RUN", reason_of_failure(err))
            except UnavailableError as err:
                found[name] = self._said("NOT_RUN", err.message)
            except (ArtifactError, BundleError) as err:
                found[name] = self._said("FAIL", f"it cannot be opened: {err.message}")
            except AttnportError as err:
                found[name] = self._said("FAIL", f"{type(err).__name__}: {err.message}")
        for measured in ran.values():
            eager.judged(self.plan, measured.errors)  # for the bounds: all are judged by the same
        for name, measured in ran.items():
            notes = ["PyTorch eager, the yardstick of the others"] if measured is own else []
            found[name] = self._concluded(measured, eager, "; ".join(notes + eager.notes()))
        return found

    def _apart(self, runtime: Runtime, opening: Opening) -> Session:
        return IsolatedSession(runtime, opening, self.folder, self.manifest, self.limits)

    def _concluded(self, measured: SessionErrors, eager: Eager, note: str = "") -> RuntimeParity:
        results = eager.judged(self.plan, measured.errors)
        found = parity.conclude(self.plan, measured.ran, results, note=note)
        failed = [result for result in found.cases if result.verdict == "FAIL"]
        return replace(found, cases=tuple(failed[:_FAILED_KEPT]))

    def _said(self, verdict: Any, reason: str) -> RuntimeParity:
        return RuntimeParity(verdict, portable(reason, self.folder), self.plan)

    def _check_reference(self, session: Session, processor: Eager) -> None:
        """Raises ParityFailed where the float64 run of the device is not that of the processor."""
        case = processor.cases[0]
        with processor.session("fp32", float64=True) as other:
            expected = other.run(case.feeds)
        got = session.run(case.feeds)
        for name, array in expected.items():
            error = float(np.abs(np.asarray(got[name], np.float64) - array).max(initial=0.0))
            scale = float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
            if not error <= AGREES * scale:
                raise ParityFailed(
                    f"float64 on {session.ran.device} is not the processor's: {name} of {case.name} differs by up to "
                    f"{error:.2e}; expected at most {AGREES:.0e} of {scale:.2e}.",
                    hint="Nothing can be judged by it: look at the driver, the memory and PyTorch's build.",
                )

    def _saying(self, label: str) -> Progress:
        return lambda message: self.progress(f"parity, {label}: {message}")


class Sliced:
    """A session that is given one batch item after the other: in float64 a whole batch of scores may not fit.

    Attributes:
        ran: As the session's.
    """

    def __init__(self, session: Session, io: Any) -> None:
        self._session, self._io, self.ran = session, io, session.ran
        self._batch = batch_dim(io)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, as of the whole batch: in the models that are measured no item sees another."""
        axes = {spec.name: spec.dims.index(self._batch) for spec in self._io.inputs if self._batch in spec.dims}
        counts = {feeds[name].shape[axis] for name, axis in axes.items()}
        if len(counts) != 1 or counts == {1}:
            return self._session.run(feeds)
        parts = []
        for item in range(counts.pop()):
            taken = {name: feeds[name].take([item], axis) for name, axis in axes.items()}
            parts.append(self._session.run({**feeds, **taken}))
        return {
            spec.name: np.concatenate([part[spec.name] for part in parts], spec.dims.index(str(self._batch)))
            for spec in self._io.outputs
        }

    def close(self) -> None:
        """Closes the session."""
        self._session.close()


def cases_of(io: Any, sizes: Sequence[Mapping[str, int]]) -> list[Case]:
    """The contract's own cases and full batches of the timed sizes, as far as their outputs are not too large."""
    found = cases(io)
    had = {case.name for case in found}
    found += [case for case in (full_case(io, one) for one in sizes) if case.name not in had]

    def elements(case: Case) -> int:
        dims: dict[str, int] = {}
        for spec in io.inputs:
            dims |= {
                dim: size
                for dim, size in zip(spec.dims, case.feeds[spec.name].shape, strict=True)
                if isinstance(dim, str)
            }
        return max(int(np.prod(spec.shape(dims), dtype=np.int64)) for spec in io.outputs)

    return [case for case in found if elements(case) <= MOST_ELEMENTS]
