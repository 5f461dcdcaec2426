"""The parity verdict: errors against a float64 reference, judged by PyTorch eager's own at the same precision plan.

A result passes if, over valid elements,

    its RMS error     <= 2 x the worst RMS error of PyTorch's own runs of this case     + 4 eps RMS(reference)
    its largest error <= 3 x the worst largest error of PyTorch's own runs of this case + 4 eps RMS(reference)

PyTorch is run once. Where a result would fail, it is run again with weights and inputs moved by at most one rounding,
and sums of rows taken one after the other, until the result passes or enough runs were made (`comparing`). Nothing is
tuned by hand, for any model or runtime.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from attnport.artifacts import (
    AUTO,
    PLANS,
    CaseResult,
    InvarianceResult,
    ParityReport,
    Ran,
    RuntimeParity,
    Verdict,
)
from attnport.parities import FACTORS as FACTORS
from attnport.parities import overall, used
from attnport.parity.invariance import Spreads
from attnport.parity.metrics import Errors as Errors
from attnport.parity.metrics import failed as failed
from attnport.parity.metrics import measure as measure
from attnport.parity.metrics import measure_all as measure_all

FACTORS_OF_ONE_RUN = (4.0, 4.0)
"""Where PyTorch is run once only, and cannot be asked again: golden cases, and tensors inside a module."""
NO_ROUNDING = 100
"""Times its bound: rounding alone explains no error that is larger."""
JUMPS = 8
"""Further runs of eager for what is farther off. A result may jump, as a ranking where two scores change places."""
COSINE = 0.99999
"""The least cosine of an embedding to the float64 one, in fp32 plans."""

_MOST_NAMED = 4
"""Results that the reason of a failure names."""

ByCase = Mapping[str, Mapping[str, Errors]]


class Yardstick:
    """Eager's errors at one precision plan: what others are judged by."""

    def __init__(
        self, plan: str, errors: ByCase, extremes: Collection[str] = (), factors: tuple[float, float] = FACTORS
    ) -> None:
        """`errors`: eager's worst, by case and output; `extremes`: the cases with extreme values."""
        self.plan, self.factors = plan, factors
        self.extremes = frozenset(extremes)
        self._errors = errors

    @classmethod
    def of_auto(cls, cast: ByCase, ranged: ByCase, extremes: Collection[str] = ()) -> Yardstick:
        """The yardstick of the plan `auto`: the better of two runs of eager.

        Args:
            cast: The errors of the module cast to fp16; where it overflows they are missing or far too large.
            ranged: Those of the run that rounds alike and does not overflow; where a module computes a part in float32
                by itself, they may be larger.
            extremes: The extreme cases, which are the module cast's alone: what fp16 cannot do there, `auto` need not.
        """
        errors = {
            case: by_output
            if case in extremes
            else {output: _better(errors, ranged.get(case, {}).get(output)) for output, errors in by_output.items()}
            for case, by_output in cast.items()
        }
        return cls(AUTO, errors, extremes)

    def errors(self, case: str, output: str) -> Errors:
        """Eager's worst errors; without any where eager has no finite result or was not run."""
        return self._errors.get(case, {}).get(output, Errors())

    def bounds(self, case: str, output: str, reference_rms: float) -> tuple[float, float]:
        """The bounds of RMS and max error."""
        own, least = self.errors(case, output), floor(self.plan, reference_rms)
        of_rms, of_max = self.factors
        return of_rms * (own.rms or 0.0) + least, of_max * (own.max or 0.0) + least


def floor(plan: str, reference_rms: float) -> float:
    """The part of a bound that does not depend on what PyTorch's own error is."""
    return 4 * PLANS[plan].eps * reference_rms


def judge(case: str, output: str, errors: Errors, by: Yardstick) -> CaseResult:
    """The verdict of one output on one case.

    NOT_RUN for an extreme case on which eager, at the same precision plan, has no finite result either: it lies outside
    what the plan or the module can do, and nobody can tell what would be right. On any other case that is a failure.
    NOT_RUN too where eager raises an error at a plan in half precision: then the module has no such precision.
    """
    rms_bound, max_bound = by.bounds(case, output, errors.reference_rms)
    reasons = [errors.problem] if errors.problem else []
    eager = by.errors(case, output)
    no_bound = eager.rms is None
    if errors.rms is None or errors.max is None:
        reasons = reasons or ["nothing was compared"]
    elif no_bound:
        reasons.append(f"PyTorch eager at {by.plan} has no finite result here, so there is no bound")
    else:
        if errors.rms > rms_bound:
            reasons.append(_over("RMS", errors.rms, rms_bound))
        if errors.max > max_bound:
            reasons.append(_over("max", errors.max, max_bound))
        own = eager.unequal or 0
        if errors.unequal is not None and errors.unequal > FACTORS[0] * own:
            reasons.append(f"{errors.unequal} of {errors.elements} whole numbers are others; of PyTorch's own {own}")
        if by.plan == "fp32" and errors.embedding and errors.cosine is not None and errors.cosine < COSINE:
            reasons.append(f"cosine {errors.cosine:.7f} is under {COSINE}")
        # Alone it is no reason: within the bounds, what changes places was equal but for rounding.
        if reasons and errors.argmax is not None and errors.argmax.agree < errors.argmax.rows:
            reasons.append(f"argmax differs in {errors.argmax.rows - errors.argmax.agree} of {errors.argmax.rows} rows")
    verdict: Verdict = "FAIL" if reasons else "PASS"
    if eager.raised and by.plan != "fp32" and not errors.problem:
        verdict = "NOT_RUN"
        reasons = [f"PyTorch cannot run the module in {by.plan}, so there is no bound: {eager.raised}"]
    elif no_bound and case in by.extremes and errors.elements:
        verdict = "NOT_RUN"
        reasons = [f"PyTorch eager at {by.plan} has no finite result here either, so there is no bound"]
    return CaseResult(
        case=case,
        output=output,
        verdict=verdict,
        reason="; ".join(reasons),
        elements=errors.elements,
        rms_error=errors.rms,
        rms_bound=rms_bound,
        max_error=errors.max,
        max_bound=max_bound,
        relative=errors.relative,
        cosine=errors.cosine,
        nonfinite=errors.nonfinite,
        ulps=errors.ulps,
        census=errors.census,
        padded=errors.padded,
        argmax=errors.argmax,
    )


def judge_invariance(spreads: Spreads, by: Yardstick, cases: Sequence[str]) -> list[InvarianceResult]:
    """The verdicts of padding invariance.

    Two results that are each within their bound of float64 differ by at most twice that bound: the widest of `cases`,
    the ones whose items were compared. An output of which eager raises an error in all of them is left out.
    """
    judged = []
    for (comparison, output), spread in spreads.items():
        ran = [case for case in cases if not by.errors(case, output).raised]
        if cases and not ran and by.plan != "fp32":
            continue
        bounds = [by.bounds(case, output, by.errors(case, output).reference_rms) for case in ran] or [(0.0, 0.0)]
        rms_bound, max_bound = 2 * max(rms for rms, _ in bounds), 2 * max(largest for _, largest in bounds)
        passed = spread.rms is not None and spread.rms <= rms_bound and spread.largest <= max_bound
        judged.append(
            InvarianceResult(
                comparison=f"{comparison} ({spread.problem})" if spread.problem else comparison,
                output=output,
                verdict="PASS" if passed else "FAIL",
                rms_difference=spread.rms,
                rms_bound=rms_bound,
                max_difference=spread.largest if spread.rms is not None else None,
                max_bound=max_bound,
            )
        )
    return judged


def not_compared(comparison: str, output: str, change: str = "") -> InvarianceResult:
    """An output that was not compared with other padding.

    Args:
        change: How much the module's own rows change, in words; "" where that is not why.
    """
    named = f"{comparison} (the module's own rows change {change})" if change else comparison
    return InvarianceResult(named, output, "NOT_RUN", None, 0.0, None, 0.0)


def conclude(
    by: Yardstick,
    ran: Ran | None,
    cases: Sequence[CaseResult],
    invariance: Sequence[InvarianceResult] = (),
    note: str = "",
    sizes: Mapping[str, str] | None = None,
) -> RuntimeParity:
    """The verdict of one runtime or form: NOT_RUN where no case has a bound. No case at all is a failure.

    Args:
        by: What judged the cases.
        sizes: By case, the sizes of its dims in words.
    """
    bad_cases = [result for result in cases if result.verdict == "FAIL"]
    passed = [result for result in cases if result.verdict == "PASS"]
    # An output that is empty at some sizes passes there by its shape, which alone shows nothing.
    judged = passed if any(result.elements for result in passed) else []
    bad_pairs = [result for result in invariance if result.verdict == "FAIL"]
    raised = [
        result for result in cases if result.verdict == "NOT_RUN" and by.errors(result.case, result.output).raised
    ]
    without_bound = not judged and not bad_cases and bool(raised)
    if without_bound:
        reason = raised[0].reason
    elif not judged and not bad_cases:
        reason = "no case was compared"
    elif bad_cases:
        reason = _failure(bad_cases, cases, sizes or {})
    elif bad_pairs:
        pair = max(bad_pairs, key=_farthest)
        far = f", by {_times(_farthest(pair))}its bound" if _farthest(pair) < math.inf else ""
        reason = f"padding changes valid rows: {pair.comparison}, output {pair.output!r}{far}"
    else:
        closest = max(judged, key=_farthest)
        reason = (
            f"{len(judged)} results within their bounds; the nearest, {closest.case}, {closest.output}, "
            f"at {_farthest(closest):.2f} of its"
        )
        if extreme := len(cases) - len(judged) - len(raised):
            reason += f"; {extreme} extreme results without a bound: PyTorch has no finite one there"
        if raised:
            reason += f"; {len(raised)} results without a bound: {raised[0].reason}"
    verdict: Verdict = "NOT_RUN" if without_bound else "FAIL" if bad_cases or bad_pairs or not judged else "PASS"
    reason = f"{reason}; {note}" if note else reason
    kind: Literal["no bound"] | None = "no bound" if without_bound else None
    return RuntimeParity(verdict, reason, by.plan, ran, tuple(cases), tuple(invariance), kind)


def _failure(bad: Sequence[CaseResult], cases: Sequence[CaseResult], sizes: Mapping[str, str]) -> str:
    """How many results fail, which where few of them do or do not, and the worst."""
    worst = max(bad, key=_farthest)
    several = len({one.output for one in cases}) > 1
    failing, passing, unjudged = (
        [f"{one.case}, {one.output}" if several else one.case for one in cases if one.verdict == verdict]
        for verdict in ("FAIL", "PASS", "NOT_RUN")
    )
    which = ""
    if 0 < len(passing) <= _MOST_NAMED:
        which = f"; these pass: {'; '.join(passing)}" if len(failing) > 1 else ""
    elif passing and len(failing) > 1:
        more = len(failing) - _MOST_NAMED
        which = f" ({'; '.join(failing[:_MOST_NAMED])}{f'; {more} more' if more > 0 else ''})"
    at = f" ({sizes[worst.case]})" if worst.case in sizes else ""
    told = f"case {worst.case}{at}, output {worst.output!r}: {worst.reason}"
    judged = f", {len(unjudged)} were not judged" if unjudged else ""
    return f"{len(bad)} of {len(cases)} results fail{which}{judged}; worst: {told}"


def report(
    runtimes: Mapping[str, RuntimeParity],
    forms: Mapping[str, RuntimeParity],
    notes: Sequence[str] = (),
    absent: Mapping[str, str] = MappingProxyType({}),
) -> ParityReport:
    """The whole report, with the verdict of all rows."""
    return ParityReport(
        overall(runtimes, forms), dict(runtimes), dict(forms), tuple(dict.fromkeys(notes)), dict(absent)
    )


def _better(one: Errors, other: Errors | None) -> Errors:
    """The errors with the smaller RMS; those without one only where there are no others."""
    if other is None or other.rms is None:
        return one
    return other if one.rms is None or other.rms < one.rms else one


def worse(one: Errors, other: Errors) -> Errors:
    """The errors with the larger RMS and the larger maximum of two finite results; `one` where either is not finite."""
    if one.rms is None or other.rms is None or one.max is None or other.max is None:
        return one
    whole = None if one.unequal is None else max(one.unequal, other.unequal or 0)
    return replace(max(one, other, key=lambda errors: errors.rms or 0.0), max=max(one.max, other.max), unequal=whole)


def _farthest(result: CaseResult | InvarianceResult) -> float:
    """How much of its bound a result uses; infinite where it has no finite error."""
    nonfinite = isinstance(result, CaseResult) and result.nonfinite
    return math.inf if result.used is None or nonfinite else result.used


def within_rounding(result: CaseResult) -> bool:
    """Whether rounding may explain a result's errors: they are finite and at most `NO_ROUNDING` times their bound."""
    return _farthest(result) <= NO_ROUNDING


def _over(what: str, error: float, bound: float) -> str:
    """How far an error is over its bound, in words."""
    return f"{what} error {error:.2e} is {_times(used((error, bound)) or 0.0)}its bound {bound:.2e}"


def _times(share: float) -> str:
    """`3.14 times `; `over ` where the bound is zero."""
    if not math.isfinite(share):
        return "over "
    return f"{share:.2f} times " if share < 10 else f"{share:.3g} times "
