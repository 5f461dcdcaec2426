"""The content of `parity.json` and `layers.json`, and where a runtime goes wrong: results by case and output, or layer.

Import these from `artifacts`. Fields with a default are newer than the first reports, which can still be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnport.printed import Printed
from attnport_bundle.format.contract import Ran, Verdict

FILE = "parity.json"
LARGE_VALUES = "large values"
"""The case of large values, which is left out where usual errors are told."""
FACTORS = (2.0, 3.0)
"""How far a result may be off, as factors of PyTorch's own RMS error and largest error; see `parity.bound`."""


@dataclass(frozen=True)
class NonFinite:
    """The numbers of NaN and Inf among some elements."""

    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0

    @property
    def total(self) -> int:
        """The number of all of them."""
        return self.nan + self.positive_inf + self.negative_inf


@dataclass(frozen=True)
class Ulps:
    """Quantiles over the valid elements of |result - reference| in ULP: units in the last place of the reference, in
    the dtype that the runtime returned."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Argmax:
    """The number of valid rows of logits, and of those whose largest value is at the same place as the reference's.

    If the reference has its largest value twice in a row, either place agrees.
    """

    rows: int
    agree: int


@dataclass(frozen=True)
class PaddedRows:
    """The elements of padded query rows, for information: they are not compared, and may have any finite value.

    Errors are None if one of the elements is not finite.
    """

    elements: int
    rms_error: float | None
    max_error: float | None
    nonfinite: NonFinite


def used(*errors: tuple[float | None, float]) -> float | None:
    """The largest of some errors, each divided by its bound: above 1 is a failure. None if there is none of them."""
    shares = [
        error / bound if bound > 0 else math.inf if error > 0 else 0.0 for error, bound in errors if error is not None
    ]
    return max(shares, default=None)


@dataclass(frozen=True)
class CaseResult:
    """One output in one case: the verdict, and all metrics. Errors are against the float64 reference.

    Metrics are over the valid elements. They are None if there is no comparable element, or one is NaN or Inf.

    Attributes:
        relative: The norm of the error over that of the reference.
        cosine: The smallest cosine similarity over valid rows (of the last axis).
        nonfinite: The number of elements that are not finite and made the case fail.
        census: The kinds of these among the valid elements; None if nothing could be compared.
        padded: The elements of padded query rows; None if there are none.
        argmax: For outputs of logits.
    """

    case: str
    output: str
    verdict: Verdict
    reason: str
    elements: int
    rms_error: float | None
    rms_bound: float
    max_error: float | None
    max_bound: float
    relative: float | None
    cosine: float | None
    nonfinite: int
    ulps: Ulps | None = None
    census: NonFinite | None = None
    padded: PaddedRows | None = None
    argmax: Argmax | None = None

    @property
    def used(self) -> float | None:
        """The larger of the two errors, each divided by its bound; None if nothing was compared."""
        return used((self.rms_error, self.rms_bound), (self.max_error, self.max_bound))


@dataclass(frozen=True)
class InvarianceResult:
    """Padding invariance of one output: the largest difference between runs that differ only in padding."""

    comparison: str
    output: str
    verdict: Verdict
    rms_difference: float | None
    rms_bound: float
    max_difference: float | None
    max_bound: float

    @property
    def used(self) -> float | None:
        """The larger of the two differences, each divided by its bound; None if nothing was compared."""
        return used((self.rms_difference, self.rms_bound), (self.max_difference, self.max_bound))


@dataclass(frozen=True)
class Basis:
    """What a row was computed from, as digests: the row is true as long as `model` is the same.

    Attributes:
        model: Of the source, the contract, and the files that were opened.
        runtime: Of the packages and the machine that computed and judged it; "" if it is to be computed again, as its
            process failed.
        cases: Of the cases, and the options that change numbers.
        asked: The options that chose the cases, in words; "" = those of the contract alone.
        files: Whether files of the folder were opened.
    """

    model: str
    runtime: str
    cases: str
    asked: str
    files: bool


@dataclass(frozen=True)
class RuntimeParity:
    """One runtime, or one lowered form run without its target, on all cases.

    Attributes:
        kind: Why it was not run: it cannot run this here, its process died, nothing says how exact it must be, or the
            model was changed since; None if it was run.
        basis: What it was computed from; None if the model was changed since.
    """

    verdict: Verdict
    reason: str
    plan: str
    ran: Ran | None = None
    cases: tuple[CaseResult, ...] = ()
    invariance: tuple[InvarianceResult, ...] = ()
    kind: Literal["unavailable", "died", "no bound", "changed"] | None = None
    basis: Basis | None = None


def overall(runtimes: Mapping[str, RuntimeParity], forms: Mapping[str, RuntimeParity]) -> Verdict:
    """FAIL if any runtime or form fails, else PASS if a runtime passes, else NOT_RUN."""
    verdicts = {found.verdict for found in (*runtimes.values(), *forms.values())}
    passes = any(found.verdict == "PASS" for found in runtimes.values())
    return "FAIL" if "FAIL" in verdicts else "PASS" if passes else "NOT_RUN"


@dataclass(frozen=True, repr=False)
class ParityReport(Printed):
    """`parity.json`.

    Attributes:
        runtimes: By runtime.
        forms: Graph parity by lowered form.
        notes: What the reader must know, such as where the raw module differs from the mask contract.
        absent: The runtimes that are not installed, or need hardware that this machine lacks, and why.
    """

    schema: Literal["attnport/parity/2"] = field(default="attnport/parity/2", kw_only=True)
    verdict: Verdict
    runtimes: Mapping[str, RuntimeParity]
    forms: Mapping[str, RuntimeParity]
    notes: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


OPPOSITE = "in the opposite meaning of what is declared"
"""In the note of a mask whose declaration is the cause of what fails."""


def cause(report: ParityReport) -> str:
    """The note that says why a report fails; "" where no note knows."""
    return next((note for note in report.notes if OPPOSITE in note), "") if report.verdict == "FAIL" else ""


@dataclass(frozen=True)
class Layer:
    """A place in the module where errors were measured.

    Attributes:
        name: The module's path, up to its first number: `encoder.layer.3`. An output has its own name.
        tensor: Its last tensor that has the same name in torch's graph and in every form.
        reference_rms: The RMS of its float64 values, by which errors are divided.
    """

    name: str
    tensor: str
    reference_rms: float


@dataclass(frozen=True)
class LayerError:
    """One runtime's errors at one layer; None if they cannot be compared, for `reason`."""

    verdict: Verdict
    reason: str
    rms_error: float | None = None
    rms_bound: float | None = None
    max_error: float | None = None
    max_bound: float | None = None


@dataclass(frozen=True)
class LayerSeries:
    """The errors of one runtime, an item for each layer; empty if it was not measured, for `reason`.

    Attributes:
        changed: Whether marking the layers as outputs changed bits of the runtime's own outputs.
    """

    plan: str
    reason: str = ""
    errors: tuple[LayerError, ...] = ()
    changed: bool = False


@dataclass(frozen=True)
class LayerReport:
    """`layers.json`: errors against float64 from layer to layer, for the case that is closest to its bound."""

    case: str
    layers: tuple[Layer, ...]
    runtimes: Mapping[str, LayerSeries]


@dataclass(frozen=True)
class Finding:
    """Where one runtime or form goes wrong, on one of the cases that failed or has no bound.

    Attributes:
        subject: As in the parity report; a form has `form ` in front.
        reason: Why no tensor is named; "" if one is.
        tensor: The first that diverges, though all that it is computed from and that can be compared is fine.
        module: The path of the torch module that it belongs to.
        line: The line of the module's code that computes it, as `net.py, line 7: y = x @ w`; "" if torch kept none.
        fused: Whether the fault goes away if tensors inside of `module` are marked as outputs, so that it lies in what
            the runtime fuses there; `tensor` is then the module's last one, or an output.
        between: The operators from the fine tensors to `tensor`, its own one last.
        fine: The nearest tensors before it, all measured; empty if it is made of the inputs.
        case: The case.
        readings: The errors there by runtime, or by form and evaluator.
        notes: What else the reader must know: whether the graph itself is wrong, tensors that were not measured.
    """

    subject: str
    reason: str = ""
    tensor: str = ""
    module: str = ""
    line: str = ""
    fused: bool = False
    between: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()
    case: str = ""
    readings: Mapping[str, LayerError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Bisected(Printed):
    """What `check --bisect` gives: the report, and a finding for each runtime or form that failed.

    Of half precision, there is one too for PyTorch itself where it overflows in a case that nothing is judged by.
    """

    schema: Literal["attnport/bisect/2"] = field(default="attnport/bisect/2", kw_only=True)
    parity: ParityReport
    findings: tuple[Finding, ...]
