"""Precision plans, and what a search for one found, as stored with a form. Import these from `artifacts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plan:
    """In which types a form computes.

    Attributes:
        name: As options, files and reports have it.
        eps: The distance from 1 to the next number in the type of its results; the floor of a bound is a multiple.
        half: NumPy's name of its half type; "" = it has none.
        islands: Whether only the q, k and v of attention are cast to `half`, and the output back to float32.
        bits: The width of the weights of linear layers in few bits; 0 = none are.
        finer: For linear layers in few bits: what those have that would lose too much.
        searched: Whether a search decides which parts stay finer: by a bound for `auto`, by a metric for integers.
        weights: Whether weights alone are in few bits, in a graph of `half`: for GPUs. `build` writes such forms.
        floats: Whether few bits are floating-point numbers, e4m3 or e2m1, in place of integers.
    """

    name: str
    eps: float
    half: str = ""
    islands: bool = False
    bits: int = 0
    finer: str = ""
    searched: bool = False
    weights: bool = False
    floats: bool = False

    @property
    def least_sm(self) -> int:
        """The compute capability from which on TensorRT's kernels read such weights; 0 = any."""
        return {8: 89, 4: 120}[self.bits] if self.floats else 0

    @property
    def cast(self) -> str:
        """The type that a module is cast to as a whole."""
        return "float32" if self.islands or self.searched or not self.half else self.half


AUTO = "auto"
"""fp16 with the islands of fp32 that a search finds necessary; its eager twin rounds as fp16 and never overflows."""

_OF_FLOATS = (
    Plan("fp32", 2.0**-23),
    Plan("fp16", 2.0**-10, "float16"),
    Plan("bf16", 2.0**-7, "bfloat16"),
    # Nothing but q, k and v is rounded to the half type.
    Plan("fp16_islands", 2.0**-23, "float16", islands=True),
    Plan("bf16_islands", 2.0**-23, "bfloat16", islands=True),
    Plan(AUTO, 2.0**-10, "float16", searched=True),
)
_OF_INTEGERS = (
    Plan("int8_bf16", 2.0**-7, "bfloat16", bits=8, finer="float32", searched=True),
    Plan("int8", 2.0**-7, bits=8, finer="float32", searched=True),
    Plan("int4_bf16", 2.0**-7, "bfloat16", bits=4, finer="8 bits", searched=True),
    Plan("int4", 2.0**-7, bits=4, finer="8 bits", searched=True),
    Plan("int8_fp16", 2.0**-7, "float16", bits=8, finer="float16", searched=True, weights=True),
    Plan("int4_fp16", 2.0**-7, "float16", bits=4, finer="8 bits", searched=True, weights=True),
    Plan("fp8_fp16", 2.0**-7, "float16", bits=8, finer="float16", searched=True, weights=True, floats=True),
    Plan("fp4_fp16", 2.0**-7, "float16", bits=4, finer="8 bits", searched=True, weights=True, floats=True),
    Plan("fp8_bf16", 2.0**-7, "bfloat16", bits=8, finer="bfloat16", searched=True, weights=True, floats=True),
    Plan("fp4_bf16", 2.0**-7, "bfloat16", bits=4, finer="8 bits", searched=True, weights=True, floats=True),
)

PLANS = {plan.name: plan for plan in (*_OF_FLOATS, *_OF_INTEGERS)}
"""Every precision plan by its name, the plainest first."""
CASTS = tuple(name for name, plan in PLANS.items() if not plan.searched)
"""The plans that are a cast of the module, or of q, k and v around its attentions."""
_OTHERWISE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
INTEGERS = tuple(name for name, plan in PLANS.items() if plan.bits)
"""Linear layers in int8 or with weights of 8 or 4 bits, all else in float32, bf16 or fp16; by a metric. `tune` writes
them, and `build` those of engines, also with floating-point numbers of so few bits."""
WEIGHT_PLANS = tuple(name for name, plan in PLANS.items() if plan.weights)
"""Those of engines."""


def plan_of(text: str) -> str:
    """The name of a plan that a user writes otherwise: `fp16-islands`, `BF16`, `float16`; other text as it is."""
    name = text.lower().replace("-", "_")
    name = _OTHERWISE.get(name, name)
    return name if name in PLANS else text


def key_of(text: str) -> str:
    """`TARGET` or `TARGET.PLAN`, as users write it, in the spelling of forms and reports."""
    target, dot, plan = text.partition(".")
    return f"{target.replace('-', '_')}{dot}{plan_of(plan)}"


@dataclass(frozen=True)
class Island:
    """A part of a graph that stays in float32 in a form of half precision.

    Attributes:
        name: The module path, with the operators if a module has several parts.
        operators: Its operators in topological order.
        nodes: Their names in the lowered graph.
        largest: The largest finite magnitude among its inputs and outputs, in float32; that of fp16 is 65504.
        without: The error, as a share of the bound, if this part is in half precision too; None if it is not finite.
    """

    name: str
    operators: tuple[str, ...]
    nodes: tuple[str, ...]
    largest: float
    without: float | None


@dataclass(frozen=True)
class PrecisionPlan:
    """The parts of a form that stay in float32, and the measurements behind this.

    A share is the largest RMS or max error divided by its bound, over the cases and outputs of the search: above 1 it
    exceeds the bound, None is NaN or Inf.

    Attributes:
        half: The type of everything else.
        budget: The allowed error, as a multiple of PyTorch eager's RMS error.
        share: The share with these islands.
        share_of_half: The share without islands.
        parts: The number of parts that the graph was divided into for the search.
        evaluations: The number of graphs that were run.
        capped: Whether the search ended at its limit of evaluations, so that fewer islands may be enough.
        cases: The cases of the search.
        held_out: The number of further cases that the result was tried on.
        evaluator: The runtime that ran the graphs, tested to compute in the types that a graph declares.
    """

    half: str
    budget: float
    share: float
    share_of_half: float | None
    islands: tuple[Island, ...]
    parts: int
    evaluations: int
    capped: bool
    cases: tuple[str, ...]
    held_out: int
    evaluator: str

    def __str__(self) -> str:
        """`fp16, 2 of 26 parts in fp32: layers.0.norm, last`."""
        if not self.islands:
            return f"{self.half}, no part of {self.parts} needs fp32"
        names = ", ".join(island.name for island in self.islands)
        return f"{self.half}, {len(self.islands)} of {self.parts} parts in fp32: {names}"

    @property
    def nodes(self) -> frozenset[str]:
        """The names of all nodes that stay in float32."""
        return frozenset(name for island in self.islands for name in island.nodes)


@dataclass(frozen=True)
class Score:
    """What a metric says of a model: the larger, the better.

    Attributes:
        value: What is judged.
        parts: Further figures, by what they measure.
        counts: Answers by their kind: how many are those of the reference, and of how many.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def same(self) -> str:
        """`184 of 200 nearest neighbours the same`; "" of a metric that counts no answers."""
        return ", ".join(f"{same} of {every} {kind} the same" for kind, (same, every) in self.counts.items())


@dataclass(frozen=True)
class IntegerPlan:
    """Which linear layers of a form are in int8 or have weights of 4 bits, and what that costs by a metric.

    Such a form has no twin in PyTorch, so that it has no bound: the metric takes its place.

    Attributes:
        bits: 8 or 4.
        metric: Its name: `FILE:FUNCTION`, or what is measured without one.
        score: That of this form.
        reference: That of the same target's form in float32.
        max_drop: The largest drop that was allowed, as a share of `reference`.
        layers: The number of linear layers.
        kept: Those that stay in what `Plan.finer` says, since the drop would be larger.
        drop_of_all: The drop with every layer in integers.
        items: How many inputs ranges were taken of for int8, and how many others were scored.
        evaluations: The number of graphs that were scored.
        inputs: A digest of all that the search depends on.
        floats: See `Plan`.
    """

    bits: int
    metric: str
    score: Score
    reference: Score
    max_drop: float
    layers: int
    kept: tuple[str, ...]
    drop_of_all: float
    items: tuple[int, int]
    evaluations: int
    inputs: str
    floats: bool = False

    @property
    def drop(self) -> float:
        """By how much the metric gets worse, as a share of what it is in float32; negative if better."""
        return drop(self.score, self.reference)

    def __str__(self) -> str:
        """`20 of 24 layers in int8; perplexity: worse by 0.40% (0.50% allowed)`, and answers that are the same."""
        counted = f"; {self.score.same}" if self.score.same else ""
        return f"{self.share}; {self.metric}: worse by {self.drop:z.2%} ({self.max_drop:.2%} allowed){counted}"

    @property
    def share(self) -> str:
        """`20 of 24 layers in int8`, or `in int4, the others in 8 bits`; what the metric is with all 24."""
        form = f"{'fp' if self.floats else 'int'}{self.bits}"
        told = f"{self.layers - len(self.kept)} of {self.layers} layers in {form}"
        if not self.kept:
            return told
        fall = f"worse by {self.drop_of_all:.2%}" if math.isfinite(self.drop_of_all) else "no finite number"
        others = ", the others in 8 bits" if self.bits == 4 else ""
        return f"{told}{others}; with all {self.layers} in {form} the metric is {fall}"


def drop(score: Score, reference: Score) -> float:
    """By how much a score is below a reference, as a share of it; infinite where the reference is 0 or no number."""
    if not math.isfinite(score.value) or not math.isfinite(reference.value) or not reference.value:
        return math.inf
    return (reference.value - score.value) / abs(reference.value)
