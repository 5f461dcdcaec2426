"""The result of a search for a precision plan, as stored with a form. Import these from `artifacts`."""

from __future__ import annotations

from dataclasses import dataclass

from attnport.dims import STRICT


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

    __pydantic_config__ = STRICT


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
