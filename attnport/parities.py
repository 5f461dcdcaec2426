"""The content of `parity.json` and `layers.json`: results by runtime, and by case and output or by layer.

Import these from `artifacts`. Fields with a default are newer than the first reports, which can still be read.
"""

from __future__ import annotations

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
        absent: Whether its probe found that it is not installed, or needs hardware that this machine lacks.
        basis: What it was computed from; None in reports that did not record it.
    """

    verdict: Verdict
    reason: str
    plan: str
    ran: Ran | None = None
    cases: tuple[CaseResult, ...] = ()
    invariance: tuple[InvarianceResult, ...] = ()
    absent: bool = False
    basis: Basis | None = None


def overall(runtimes: Mapping[str, RuntimeParity], forms: Mapping[str, RuntimeParity]) -> Verdict:
    """FAIL if any runtime or form fails, else PASS if a runtime passes, else NOT_RUN."""
    verdicts = {found.verdict for found in (*runtimes.values(), *forms.values())}
    passes = any(found.verdict == "PASS" for found in runtimes.values())
    return "FAIL" if "FAIL" in verdicts else "PASS" if passes else "NOT_RUN"


@dataclass(frozen=True)
class ParityReport(Printed):
    """`parity.json`. `runtimes` is by runtime, `forms` is graph parity by lowered form, and `notes` are what the reader
    must know, such as where the raw module differs from the mask contract."""

    schema: Literal["attnport/parity/1"] = field(default="attnport/parity/1", kw_only=True)
    verdict: Verdict
    runtimes: Mapping[str, RuntimeParity]
    forms: Mapping[str, RuntimeParity]
    notes: tuple[str, ...] = ()


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
    rms_error: float | None
    rms_bound: float | None
    max_error: float | None
    max_bound: float | None


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
