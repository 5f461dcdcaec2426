"""How the result of a search for a precision plan is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.artifacts import PrecisionPlan


def show_precision(plan: PrecisionPlan) -> Iterator[doc.Block]:
    """The parts that stay in float32, and the error with and without them."""
    count = f"{len(plan.islands)} of {plan.parts} parts" if plan.islands else f"none of {plan.parts} parts"
    if plan.islands:
        numbers = ("largest value", "without it")
        columns = cells.columns("part in fp32", "operators", *numbers, right=numbers, whole=numbers)
        rows = (
            (
                island.name,
                ", ".join(island.operators),
                f"{island.largest:.3g}",
                "not measured" if plan.capped and island.without is None else _share(island.without),
            )
            for island in plan.islands
        )
        yield doc.Table(f"{plan.half}, {count} in fp32", columns, doc.rows(rows))
    else:
        yield doc.Text(f"{plan.half}: {count} needs fp32")
    yield doc.Text(
        f"error: {_share(plan.share)} of the bound at a budget of {plan.budget:g}x; in {plan.half} alone "
        f"{_share(plan.share_of_half)}"
    )
    if plan.islands:
        yield from cells.quiet("without it: the error with that part alone in half precision too, of the bound")
    yield from cells.quiet(
        f"{plan.evaluations} graph{'' if plan.evaluations == 1 else 's'} run by {plan.evaluator} on {len(plan.cases)} "
        f"cases; tried on {plan.held_out} more"
    )
    if plan.capped:
        yield doc.Text("the search ended at its limit: the bound is kept, but fewer parts in fp32 may be enough")


def _share(share: float | None) -> str:
    return "NaN or Inf" if share is None else f"{share:.2f}x"
