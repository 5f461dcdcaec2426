"""What a searched precision plan is, as a form's record keeps it. Everything imports these from `artifacts`."""

from __future__ import annotations

from dataclasses import dataclass

from attnport.dims import STRICT


@dataclass(frozen=True)
class Island:
    """A part of a graph that stays in float32 in a form of half precision.

    Attributes:
        name: The module path, with the operators where a module has several parts.
        operators: In topological order.
        nodes: Their names in the lowered graph.
        largest: The largest finite magnitude among what it reads and makes, in float32; fp16 ends at 65504.
        without: The error, as a share of the bound, with this part alone in half precision too; None where that is
            not finite.
    """

    name: str
    operators: tuple[str, ...]
    nodes: tuple[str, ...]
    largest: float
    without: float | None

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class PrecisionPlan:
    """Which parts of a form stay in float32, and what was measured to say so.

    Shares are the largest, over the cases and outputs of the search, of RMS or max error to its bound: over 1 is
    beyond it, None is NaN or Inf.

    Attributes:
        half: The type of everything else.
        budget: How many times PyTorch eager's RMS error is allowed.
        share: With these islands.
        share_of_half: Without any.
        parts: How many parts the graph was searched in.
        evaluations: How many graphs were run to find them.
        capped: The search ended at its limit of evaluations, so that fewer islands may do.
        cases: What the search ran.
        held_out: How many further cases the result was tried on.
        evaluator: The runtime that ran the graphs, probed to compute in the types that a graph declares.
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

    __pydantic_config__ = STRICT

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
