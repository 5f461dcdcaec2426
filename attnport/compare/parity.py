"""The parity verdict: errors against a float64 reference, judged by PyTorch eager's own at the same precision plan.

The bound, per output and case over valid elements: RMS error <= 2x eager's RMS error there + floor, and max error
<= 4x eager's largest max error over all cases of that output + floor, where floor = 4 eps RMS(reference). Nothing in
it is tuned by hand: a runtime may round as often as eager does, not be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.artifacts import (
    CaseResult,
    InvarianceResult,
    IOContract,
    ParityReport,
    Ran,
    RuntimeParity,
    Verdict,
)
from attnport.compare.inputs import Array, Case
from attnport.compare.invariance import Spreads
from attnport.dims import TensorSpec

COSINE = 0.99999
"""The least cosine of an embedding to the float64 one, in fp32 plans."""

# An islands model computes in float32 but for q, k and v, so float32 rounding is its floor.
EPS = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7, "fp16_islands": 2.0**-23, "bf16_islands": 2.0**-23}


@dataclass(frozen=True)
class Errors:
    """One output on one case against the reference, before any judgement.

    Attributes:
        problem: Why there is nothing to judge (another shape, NaN, ...); "" when `rms` and `max` are numbers.
    """

    elements: int = 0
    rms: float | None = None
    max: float | None = None
    reference_rms: float = 0.0
    cosine: float | None = None
    nonfinite: int = 0
    problem: str = ""


def measure(got: Array | None, expected: Array, valid: Array, spec: TensorSpec) -> Errors:
    """Compares one output with the reference.

    Args:
        got: The result; None when the runtime did not return it.
        expected: The float64 reference.
        valid: Which elements count, over the leading dims of `expected`.
        spec: The declared output; two dims and a floating dtype make it an embedding, whose rows' cosine is taken.
    """
    if got is None:
        return Errors(problem="the output is missing")
    if got.shape != expected.shape:
        return Errors(problem=f"got shape {list(got.shape)}; expected {list(expected.shape)}")
    kinds = _kind(got), _kind(np.empty(0, dtype=np.float64) if _floating(spec) else expected)
    if kinds[0] != kinds[1]:
        return Errors(problem=f"got dtype {got.dtype}, {kinds[0]}; expected {kinds[1]}")
    result, wanted = got.astype(np.float64), expected.astype(np.float64)
    picked, reference = result[valid], wanted[valid]
    if picked.size == 0:
        return Errors(problem="no element to compare")
    scale = math.sqrt(float(np.mean(np.square(np.where(np.isfinite(reference), reference, 0.0)))))
    counts = Errors(elements=picked.size, reference_rms=scale)
    if not np.isfinite(wanted).all():
        return _with(counts, nonfinite=0, problem="the float64 reference itself has NaN or Inf")
    inside, everywhere = int((~np.isfinite(picked)).sum()), int((~np.isfinite(result)).sum())
    if inside:
        return _with(counts, nonfinite=inside, problem=f"NaN or Inf in {inside} of {picked.size} valid elements")
    if everywhere:
        problem = f"NaN or Inf in {everywhere} elements of padded query rows, which may hold anything finite"
        return _with(counts, nonfinite=everywhere, problem=problem)
    error = picked - reference
    return Errors(
        elements=picked.size,
        rms=math.sqrt(float(np.mean(np.square(error)))),
        max=float(np.abs(error).max()),
        reference_rms=scale,
        cosine=_least_cosine(result, wanted, valid) if len(spec.dims) == 2 and _floating(spec) else None,
    )


def measure_all(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], case: Case, io: IOContract
) -> dict[str, Errors]:
    """Compares every declared output; one that was not declared is an error of the first."""
    found = {
        spec.name: measure(outputs.get(spec.name), expected[spec.name], case.valid[spec.name], spec)
        for spec in io.outputs
    }
    unknown = sorted(set(outputs) - set(found))
    if unknown:
        first = io.outputs[0].name
        found[first] = Errors(problem=f"got an undeclared output {', '.join(unknown)}; expected {', '.join(found)}")
    return found


def failed(io: IOContract, problem: str) -> dict[str, Errors]:
    """The errors of a case that the runtime could not run."""
    return {spec.name: Errors(problem=problem) for spec in io.outputs}


class Yardstick:
    """Eager's errors at one precision plan: what others are judged by."""

    def __init__(self, plan: str, errors: Mapping[str, Mapping[str, Errors]]) -> None:
        """`errors`: eager's, by case and output."""
        self.plan = plan
        self._errors = errors

    def rms(self, case: str, output: str) -> float | None:
        """Eager's RMS error; None where eager has no finite result or was not run."""
        return self._errors.get(case, {}).get(output, Errors()).rms

    def largest(self, output: str) -> float:
        """Eager's largest max error of an output over all cases; 0 where it has none."""
        found = [errors[output].max for errors in self._errors.values() if output in errors]
        return max((error for error in found if error is not None), default=0.0)

    def pooled(self, output: str, cases: Iterable[str]) -> tuple[float, float]:
        """Eager's RMS error and the reference's RMS over several cases together."""
        squares = references = elements = 0.0
        for case in cases:
            errors = self._errors.get(case, {}).get(output, Errors())
            if errors.rms is not None:
                squares += errors.rms**2 * errors.elements
                references += errors.reference_rms**2 * errors.elements
                elements += errors.elements
        return (math.sqrt(squares / elements), math.sqrt(references / elements)) if elements else (0.0, 0.0)

    def bounds(self, case: str, output: str, reference_rms: float) -> tuple[float, float]:
        """The bounds of RMS and max error."""
        floor = 4 * EPS[self.plan] * reference_rms
        return 2 * (self.rms(case, output) or 0.0) + floor, 4 * self.largest(output) + floor


def judge(case: str, output: str, errors: Errors, by: Yardstick) -> CaseResult:
    """The verdict of one output on one case."""
    rms_bound, max_bound = by.bounds(case, output, errors.reference_rms)
    reasons = [errors.problem] if errors.problem else []
    if errors.rms is None or errors.max is None:
        reasons = reasons or ["nothing was compared"]
    else:
        if by.rms(case, output) is None:
            reasons.append(f"PyTorch eager at {by.plan} has no finite result here, so there is no bound")
        if errors.rms > rms_bound:
            reasons.append(f"RMS error {errors.rms:.2e} is over its bound {rms_bound:.2e}")
        if errors.max > max_bound:
            reasons.append(f"max error {errors.max:.2e} is over its bound {max_bound:.2e}")
        if by.plan == "fp32" and errors.cosine is not None and errors.cosine < COSINE:
            reasons.append(f"cosine {errors.cosine:.7f} is under {COSINE}")
    return CaseResult(
        case=case,
        output=output,
        verdict="FAIL" if reasons else "PASS",
        reason="; ".join(reasons),
        elements=errors.elements,
        rms_error=errors.rms,
        rms_bound=rms_bound,
        max_error=errors.max,
        max_bound=max_bound,
        relative=errors.rms / errors.reference_rms if errors.rms is not None and errors.reference_rms > 0 else None,
        cosine=errors.cosine,
        nonfinite=errors.nonfinite,
    )


def judge_invariance(spreads: Spreads, by: Yardstick, cases: Sequence[str]) -> list[InvarianceResult]:
    """The verdicts of padding invariance.

    Two results of one runtime may differ by what two independent roundings do: the root of 2 times the parity bound
    over `cases`, the ones whose items were compared.
    """
    judged = []
    for (comparison, output), spread in spreads.found.items():
        rms, reference = by.pooled(output, cases)
        floor = 4 * EPS[by.plan] * reference
        rms_bound, max_bound = math.sqrt(2) * (2 * rms + floor), math.sqrt(2) * (4 * by.largest(output) + floor)
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


def conclude(
    plan: str,
    ran: Ran | None,
    cases: Sequence[CaseResult],
    invariance: Sequence[InvarianceResult] = (),
    note: str = "",
) -> RuntimeParity:
    """The verdict of one runtime or form. No case at all is a failure: nothing was shown."""
    bad_cases = [result for result in cases if result.verdict != "PASS"]
    bad_pairs = [result for result in invariance if result.verdict != "PASS"]
    if not cases:
        reason = "no case was compared"
    elif bad_cases:
        first = bad_cases[0]
        reason = f"{len(bad_cases)} of {len(cases)} results fail; first: {first.case}, {first.output}: {first.reason}"
    elif bad_pairs:
        reason = f"padding changes valid rows: {bad_pairs[0].comparison}, {bad_pairs[0].output}"
    else:
        closest = max(cases, key=_nearness)
        reason = (
            f"{len(cases)} results within their bounds; the nearest, {closest.case}, {closest.output}, "
            f"at {_nearness(closest):.2f} of its"
        )
    verdict: Verdict = "FAIL" if bad_cases or bad_pairs or not cases else "PASS"
    reason = f"{reason}; {note}" if note else reason
    return RuntimeParity(verdict, reason, plan, ran, tuple(cases), tuple(invariance))


def report(
    runtimes: Mapping[str, RuntimeParity], forms: Mapping[str, RuntimeParity], notes: Sequence[str] = ()
) -> ParityReport:
    """The whole report: FAIL if any runtime or form fails, else PASS if a runtime passes, else NOT_RUN."""
    verdicts = {found.verdict for found in (*runtimes.values(), *forms.values())}
    passes = any(found.verdict == "PASS" for found in runtimes.values())
    verdict: Verdict = "FAIL" if "FAIL" in verdicts else "PASS" if passes else "NOT_RUN"
    return ParityReport(verdict, dict(runtimes), dict(forms), tuple(notes))


def _nearness(result: CaseResult) -> float:
    """How much of its bound a result uses, the larger of RMS and max; 0 where the bound is 0 and kept."""
    pairs = ((result.rms_error, result.rms_bound), (result.max_error, result.max_bound))
    return max((error / bound for error, bound in pairs if error is not None and bound > 0), default=0.0)


def _kind(array: Array) -> str:
    if array.dtype.name == "bfloat16" or np.issubdtype(array.dtype, np.floating):
        return "floating"
    if array.dtype == np.bool_:
        return "boolean"
    return "integer" if np.issubdtype(array.dtype, np.integer) else "neither floating, integer nor boolean"


def _floating(spec: TensorSpec) -> bool:
    return "float" in spec.dtype


def _with(errors: Errors, nonfinite: int, problem: str) -> Errors:
    return Errors(errors.elements, None, None, errors.reference_rms, None, nonfinite, problem)


def _least_cosine(got: Array, expected: Array, valid: Array) -> float:
    """The smallest cosine between rows [B, E]; two zero rows agree, one alone does not."""
    rows = np.asarray(valid if valid.ndim == 1 else valid.any(axis=1))
    one, other = got[rows], expected[rows]
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    both_zero = ~one.any(axis=1) & ~other.any(axis=1)
    cosine = np.where(both_zero, 1.0, (one * other).sum(axis=1) / np.where(norms > 0, norms, 1.0))
    return float(cosine.min())
