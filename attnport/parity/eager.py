"""What PyTorch eager makes of the cases at each precision plan: its errors are what others are judged by."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from attnport.artifacts import AUTO, CaseResult, IOContract, ModelSpec, Session
from attnport.cases.inputs import Case
from attnport.parity import bound as parity
from attnport.parity.evaluate import Progress, References, SessionErrors, measure_session
from attnport.runtimes import base
from attnport.runtimes.base import Opening

EAGER = "torch_eager"
DRAWS = 32
"""How often eager is run again where one run of it is too few: of 1050 attentions that are as exact, 75 and 103 were
over the bound by one run, none and 1 by 32 (docs/adr/0014, benchmarks/extreme_draws.py)."""

_ALL_ITEMS = 1 << 30


@dataclass
class Eager:
    """PyTorch eager with the mask contract, run when it is asked for.

    Attributes:
        io: The contract of `spec`.
        cases: Every case; the references of those that are run are in `store`.
        runtime: The name of the runtime that is eager on this device.
        alone: Whether at fp32 every batch item is also run alone and with more padding.
    """

    io: IOContract
    spec: ModelSpec
    cases: Sequence[Case]
    store: References
    threads: int | None
    progress: Progress
    runtime: str = EAGER
    alone: bool = True

    def __post_init__(self) -> None:
        self._found: dict[str, SessionErrors] = {}
        self._bounding: dict[str, dict[str, dict[str, parity.Errors]]] = {}
        self._drawn: set[tuple[str, str]] = set()

    @contextlib.contextmanager
    def session(
        self,
        plan: str,
        *,
        contract: bool = True,
        float64: bool = False,
        step_by_step: bool = False,
        nudged: int | None = None,
    ) -> Iterator[Session]:
        """The module, opened at a plan; the arguments are those of `Opening`."""
        given = Opening(self.io, plan=plan, spec=self.spec, threads=self.threads, contract=contract)
        opening = replace(given, float64=float64, step_by_step=step_by_step, nudged=nudged)
        with contextlib.closing(base.get(self.runtime).open(opening)) as session:
            yield session

    @property
    def extremes(self) -> list[str]:
        """The cases with extreme values."""
        return [case.name for case in self.cases if case.group == "extremes"]

    def measured(self, plan: str, names: Collection[str] | None = None) -> SessionErrors:
        """Eager's errors on the named cases, or on all, and on whichever it had before; each is run once."""
        had = self._found.get(plan)
        asked = {case.name for case in self.cases} if names is None else set(names)
        todo = [case for case in self.cases if case.name in asked and not (had and case.name in had.errors)]
        if todo:
            items = _ALL_ITEMS if self.alone and plan == "fp32" else 0
            with self.session(plan) as session:
                found = measure_session(session, self.io, todo, self.store, self._saying(plan), items=items)
            self._found[plan] = replace(had, errors={**had.errors, **found.errors}) if had else found
            self._bounding.setdefault(plan, {}).update(found.errors)
            if plan != "fp32":
                self._step_by_step(plan, [case for case in todo if case.group != "text"])
        return self._found[plan]

    def yardstick(self, plan: str) -> parity.Yardstick:
        """The bounds at a plan, by the errors on every case that was measured."""
        if plan == AUTO:
            return parity.Yardstick.of_auto(self._bounding["fp16"], self._bounding[AUTO], self.extremes)
        return parity.Yardstick(plan, self._bounding[plan], self.extremes)

    def judged(self, plan: str, found: parity.ByCase, left_out: Collection[tuple[str, str]] = ()) -> list[CaseResult]:
        """The verdicts of another's errors, on cases that were measured; `left_out` are cases and outputs.

        Where nothing but extreme cases is over its bound, that is not by one run of eager there, but by many.
        """
        results = self._judged(plan, found, left_out)
        failed = [result for result in results if result.verdict == "FAIL"]
        open_yet = all(result.case in self.extremes and _over(result) for result in failed)
        if open_yet and self._draw_again(plan, {result.case for result in failed}):
            results = self._judged(plan, found, left_out)
        return results

    def notes(self) -> list[str]:
        """Whose bounds are by more than one run of eager."""
        return [
            f"{case}, {plan}: something was over its bound by one run of eager, so the bound is by {DRAWS} further "
            "ones, with weights and inputs moved by one rounding"
            for plan, case in sorted(self._drawn)
        ]

    def _judged(self, plan: str, found: parity.ByCase, left_out: Collection[tuple[str, str]]) -> list[CaseResult]:
        by = self.yardstick(plan)
        return [
            parity.judge(case, output, errors, by)
            for case, by_output in found.items()
            for output, errors in by_output.items()
            if (case, output) not in left_out
        ]

    def _step_by_step(self, plan: str, todo: Sequence[Case]) -> None:
        """Lets the errors that bound others in half precision be attention's step by step, where these are larger.

        Its one kernel keeps the scores in float32: either way is eager's, and the evaluator of forms takes the first.
        At scores of thousands they are far apart. Sentences are too many to be run twice. See ADR 12.
        """
        if todo:
            with self.session(plan, step_by_step=True) as session:
                label = self._saying(f"{plan}, step by step")
                self._widen(plan, measure_session(session, self.io, todo, self.store, label).errors)

    def _draw_again(self, plan: str, names: Collection[str]) -> bool:
        """Lets the errors that bound others on extreme cases be the largest of `DRAWS` further runs.

        In these, weights and inputs are moved by one rounding. Where two scores nearly tie, one row's error is all of
        the RMS error, and that of one run a single draw of it: another as exact may be any multiple of it. See ADR 14.

        Returns:
            Whether any had not been drawn before.
        """
        plan = "fp16" if plan == AUTO else plan  # whose extreme cases these are, as in `Yardstick.of_auto`
        todo = [case for case in self.cases if case.name in names and (plan, case.name) not in self._drawn]
        self._drawn |= {(plan, case.name) for case in todo}
        if not todo:
            return False
        module = self.spec.make()
        made = replace(self, spec=replace(self.spec, make=lambda: module))  # once, since some read it from a disk
        for draw in range(DRAWS):
            with made.session(plan, step_by_step=plan != "fp32", nudged=draw) as session:
                label = self._saying(f"{plan}, draw {draw + 1} of {DRAWS}")
                self._widen(plan, measure_session(session, self.io, todo, self.store, label).errors)
        return True

    def _widen(self, plan: str, found: parity.ByCase) -> None:
        kept = self._bounding[plan]
        for case, by_output in found.items():
            kept[case] = {name: parity.worse(kept[case][name], errors) for name, errors in by_output.items()}

    def _saying(self, label: str) -> Progress:
        return lambda message: self.progress(f"{self.runtime} {label}: {message}")


def _over(result: CaseResult) -> bool:
    """Whether a finite error is over its bound; what fails otherwise fails by any."""
    pairs = ((result.rms_error, result.rms_bound), (result.max_error, result.max_bound))
    return any(error is not None and error > bound for error, bound in pairs)
