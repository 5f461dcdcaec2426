"""What `parity.json` and `layers.json` hold: results by runtime, and by case and output or by layer.

All import them from `artifacts`.
Fields with a default came later than the first reports, so that those stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnport_bundle.contract import STRICT, Ran, Verdict

FILE = "parity.json"


@dataclass(frozen=True)
class NonFinite:
    """Census of the elements that are no finite number."""

    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0

    __pydantic_config__ = STRICT

    @property
    def total(self) -> int:
        """All of them."""
        return self.nan + self.positive_inf + self.negative_inf


@dataclass(frozen=True)
class Ulps:
    """Quantiles over the valid elements of |result - reference| in ULP: units in the last place of the reference, in
    the dtype that the runtime returned."""

    p50: float
    p90: float
    p99: float
    max: float

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Argmax:
    """Of the valid rows of an output of logits, in how many the largest stands where the reference's does.

    A row in which the reference's largest value stands twice agrees with either.
    """

    rows: int
    agree: int

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class PaddedRows:
    """The elements that are not compared, for the record: they may hold anything finite.

    Errors are None where one of them is no finite number.
    """

    elements: int
    rms_error: float | None
    max_error: float | None
    nonfinite: NonFinite

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class CaseResult:
    """One output on one case: all metrics, and the verdict apart. Errors are against the float64 reference.

    Metrics are over the valid elements, and None when the case has no comparable element or a NaN or Inf in one.

    Attributes:
        relative: The norm of the error over that of the reference.
        cosine: The smallest over valid rows (of the last axis).
        nonfinite: Elements that are no finite number and made the case fail.
        census: Which they are, of the valid elements; None where nothing could be compared.
        padded: The elements of padded query rows; None where there are none.
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

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class InvarianceResult:
    """Padding invariance of one output: the largest difference between runs that differ in padding alone."""

    comparison: str
    output: str
    verdict: Verdict
    rms_difference: float | None
    rms_bound: float
    max_difference: float | None
    max_bound: float

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class RuntimeParity:
    """One runtime, or one lowered form run without its target, on all cases."""

    verdict: Verdict
    reason: str
    plan: str
    ran: Ran | None = None
    cases: tuple[CaseResult, ...] = ()
    invariance: tuple[InvarianceResult, ...] = ()

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class ParityReport:
    """`parity.json`. `runtimes`: by runtime; `forms`: graph parity by lowered form; `notes`: what the reader must know,
    such as where the raw module differs from the mask contract."""

    verdict: Verdict
    runtimes: Mapping[str, RuntimeParity]
    forms: Mapping[str, RuntimeParity]
    notes: tuple[str, ...] = ()

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Layer:
    """A place in the module where errors were measured.

    Attributes:
        name: The module's path, up to its first number: `encoder.layer.3`. An output has its own name.
        tensor: The last tensor of it that torch's graph and every form have by one name.
        reference_rms: The RMS of its float64 values: what errors are seen against.
    """

    name: str
    tensor: str
    reference_rms: float

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class LayerError:
    """One runtime's errors at one layer; None where they cannot be compared, as `reason` says."""

    verdict: Verdict
    reason: str
    rms_error: float | None
    rms_bound: float | None
    max_error: float | None
    max_bound: float | None

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class LayerSeries:
    """The errors of one runtime, one a layer; none where it was not measured, as `reason` says.

    Attributes:
        changed: Whether asking for the layers changed bits of the runtime's own outputs.
    """

    plan: str
    reason: str = ""
    errors: tuple[LayerError, ...] = ()
    changed: bool = False

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class LayerReport:
    """`layers.json`: errors against float64 from layer to layer, of the one case that comes nearest to its bound."""

    case: str
    layers: tuple[Layer, ...]
    runtimes: Mapping[str, LayerSeries]

    __pydantic_config__ = STRICT
